"""Rules are kept as text, once each, without touching what a person wrote around them."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from enginehouse_core.profile.rules_file import WrittenRule, add_rule, read_rules, remove_rules
from enginehouse_protocol.errors import ProfileInvalid, RuleRefused

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
STATUS = WrittenRule(effect="allow", rule="execute(git status *)", project="/srv/a project", added_at=NOON)
LOCKS = WrittenRule(effect="deny", rule="edit(**/*.lock)", added_at=NOON)

BY_HAND = """\
# my rules

[[rule]]
effect = "deny"
rule = "execute(rm *)"
why = "once was enough"  # kept

# the next one is for work
[[rule]]
effect = "ask"
rule = "fetch(https://example.com/*)"
"""


def test_without_a_file_there_are_no_rules_and_none_is_made(tmp_path: Path) -> None:
    assert read_rules(tmp_path / "permissions.toml") == []
    assert remove_rules(tmp_path / "permissions.toml", lambda rule: True) == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_added_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    assert add_rule(path, STATUS)
    assert add_rule(path, LOCKS)
    assert read_rules(path) == [STATUS, LOCKS]
    assert path.read_text() == (
        'version = 1\n\n[[rule]]\neffect = "allow"\nrule = "execute(git status *)"\nproject = "/srv/a project"\n'
        'added_at = 2026-11-30T12:00:00Z\n\n[[rule]]\neffect = "deny"\nrule = "edit(**/*.lock)"\n'
        "added_at = 2026-11-30T12:00:00Z\n"
    )


def test_a_rule_is_there_once_whenever_it_was_added(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    assert add_rule(path, STATUS)
    again = WrittenRule(effect="allow", rule=STATUS.rule, project=STATUS.project)
    assert not add_rule(path, again)
    assert add_rule(path, WrittenRule(effect="allow", rule=STATUS.rule))
    assert len(read_rules(path)) == 2


def test_a_rule_without_a_time_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    before = datetime.now(UTC).replace(microsecond=0)
    add_rule(path, WrittenRule(effect="ask", rule="fetch(https://example.com/*)"))
    (rule,) = read_rules(path)
    assert rule.added_at is not None
    assert before <= rule.added_at <= datetime.now(UTC)


def test_adding_and_removing_leaves_a_file_written_by_hand_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text(BY_HAND)
    assert add_rule(path, LOCKS)
    assert path.read_text().startswith(BY_HAND)
    for _ in range(3):
        assert remove_rules(path, LOCKS.same_as) == [LOCKS]
        assert path.read_text() == f"{BY_HAND}\n"
        assert add_rule(path, LOCKS)


def test_removing_takes_out_every_match_and_says_which(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text(BY_HAND)
    add_rule(path, LOCKS)
    removed = remove_rules(path, lambda rule: rule.effect == "deny")
    assert [rule.rule for rule in removed] == ["execute(rm *)", "edit(**/*.lock)"]
    assert [rule.rule for rule in read_rules(path)] == ["fetch(https://example.com/*)"]
    assert "# my rules" in path.read_text()
    assert remove_rules(path, lambda rule: True) != []
    assert read_rules(path) == []
    assert add_rule(path, LOCKS)
    assert read_rules(path) == [LOCKS]


def test_rules_written_as_a_list_stay_a_list(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text('rule = [{ effect = "ask", rule = "tool(deploy)" }]  # short\n')
    assert add_rule(path, LOCKS)
    assert [rule.rule for rule in read_rules(path)] == ["tool(deploy)", "edit(**/*.lock)"]
    assert "[[rule]]" not in path.read_text()
    assert "# short" in path.read_text()
    remove_rules(path, lambda rule: rule.rule == "tool(deploy)")
    assert read_rules(path) == [LOCKS]


def test_a_list_of_no_rules_can_be_added_to(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text("rule = []\n")
    assert add_rule(path, LOCKS)
    assert read_rules(path) == [LOCKS]


@pytest.mark.parametrize("text", ['execute(echo "quoted" \\n)', "edit(日本/🏠/**)", "execute(a = b # c)", "[[rule]]"])
def test_any_printable_text_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    rule = WrittenRule(effect="deny", rule=text, project="/srv/ünï 🏠", added_at=NOON)
    add_rule(tmp_path / "permissions.toml", rule)
    assert read_rules(tmp_path / "permissions.toml") == [rule]


@pytest.mark.parametrize(
    "rule",
    [
        WrittenRule(effect="allow", rule=""),
        WrittenRule(effect="allow", rule="execute(a\nb)"),
        WrittenRule(effect="allow", rule="execute(a\udcffb)"),
        WrittenRule(effect="allow", rule="execute(a\u2028b)"),
        WrittenRule(effect="allow", rule="execute(a)", project="relative"),
        WrittenRule(effect="allow", rule="execute(a)", project="/srv/\udcff"),
    ],
)
def test_what_the_file_cannot_hold_is_refused_and_nothing_is_written(tmp_path: Path, rule: WrittenRule) -> None:
    with pytest.raises(RuleRefused, match="cannot be stored"):
        add_rule(tmp_path / "permissions.toml", rule)
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_a_mistake_is_neither_half_read_nor_changed(tmp_path: Path) -> None:
    path = tmp_path / "permissions.toml"
    broken = BY_HAND.replace("ask", "perhaps")
    path.write_text(broken)
    uses: list[Callable[[Path], object]] = [
        read_rules,
        lambda path: add_rule(path, LOCKS),
        lambda path: remove_rules(path, LOCKS.same_as),
    ]
    for use in uses:
        with pytest.raises(ProfileInvalid, match=r"rule\[1\]\.effect"):
            use(path)
    assert path.read_text() == broken
