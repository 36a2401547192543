"""The matrix, the rules over it, and what "always" would store."""

from typing import get_args

import pytest
from permissions.shell_verdicts import HOME, PROFILE, ROOT

from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.policy import MATRIX, Judgement, judge
from enginehouse_core.permissions.rules import StoredRule, parse_rule
from enginehouse_protocol.permissions import RISKS, JsonObject, Risk, ToolKind, Verdict
from enginehouse_protocol.settings import Mode

PLACES = Places(roots=(ROOT,), home=HOME, profile=PROFILE)

CELLS: list[tuple[Mode, Risk, Verdict]] = [
    ("plan", "safe", "allow"),
    ("plan", "write", "deny"),
    ("plan", "dangerous", "deny"),
    ("plan", "critical", "deny"),
    ("default", "safe", "allow"),
    ("default", "write", "ask"),
    ("default", "dangerous", "ask"),
    ("default", "critical", "ask"),
    ("accept_edits", "safe", "allow"),
    ("accept_edits", "write", "allow"),
    ("accept_edits", "dangerous", "ask"),
    ("accept_edits", "critical", "ask"),
    ("yolo", "safe", "allow"),
    ("yolo", "write", "allow"),
    ("yolo", "dangerous", "allow"),
    ("yolo", "critical", "allow"),
]
BY_RISK: dict[Risk, str] = {"safe": "ls", "write": "touch x", "dangerous": "make", "critical": "rm -rf /"}
PATHS: dict[Risk, tuple[ToolKind, str]] = {
    "safe": ("read", "a.py"),
    "write": ("edit", "a.py"),
    "dangerous": ("read", "/elsewhere/x"),
    "critical": ("edit", ".git/config"),
}


def rule(text: str, effect: Verdict = "allow", project: str | None = None) -> StoredRule:
    return StoredRule(effect=effect, rule=text, project=project)


def use(
    kind: ToolKind,
    tool_input: JsonObject | None = None,
    paths: tuple[str, ...] = (),
    *,
    rules: tuple[StoredRule, ...] = (),
    mode: Mode = "default",
    sandboxed: bool = False,
    name: str = "anything",
) -> Judgement:
    return judge(kind, name, tool_input or {}, paths, mode=mode, rules=rules, places=PLACES, sandboxed=sandboxed)


def run(
    command: str, *rules: StoredRule, mode: Mode = "default", sandboxed: bool = False, name: str = "bash"
) -> Judgement:
    return use("execute", {"command": command}, rules=rules, mode=mode, sandboxed=sandboxed, name=name)


def test_the_matrix_has_sixteen_cells_and_all_are_tested() -> None:
    assert {(mode, risk) for mode, risk, _ in CELLS} == {(mode, risk) for mode in get_args(Mode) for risk in RISKS}
    assert all(MATRIX[mode][risk] == verdict for mode, risk, verdict in CELLS)


@pytest.mark.parametrize("mode, risk, verdict", CELLS)
def test_a_sandboxed_command_is_judged_by_the_matrix(mode: Mode, risk: Risk, verdict: Verdict) -> None:
    found = run(BY_RISK[risk], mode=mode, sandboxed=True)
    assert (found.verdict, found.risk, found.by) == (verdict, risk, "mode")
    assert found.reasons or found.verdict != "deny"


@pytest.mark.parametrize("mode, risk, verdict", CELLS)
def test_a_file_use_is_judged_by_the_matrix(mode: Mode, risk: Risk, verdict: Verdict) -> None:
    kind, path = PATHS[risk]
    found = use(kind, paths=(path,), mode=mode)
    assert (found.verdict, found.risk) == (verdict, risk)


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_command_without_a_sandbox_is_judged_as_dangerous(mode: Mode) -> None:
    found = run("ls", mode=mode)
    assert (found.verdict, found.risk) == (MATRIX[mode]["dangerous"], "dangerous")


@pytest.mark.parametrize(
    "kind, tool_input, paths, risk",
    [
        ("read", {}, (), "dangerous"),
        ("search", {}, (), "safe"),
        ("search", {}, ("/",), "dangerous"),
        ("read", {}, ("../x",), "dangerous"),
        ("read", {}, (f"{HOME}/.ssh/id_rsa",), "dangerous"),
        ("read", {}, ("a.py", "/elsewhere/x"), "dangerous"),
        ("read", {}, ("~/notes.txt",), "dangerous"),
        ("read", {}, ("~root/x",), "dangerous"),
        ("read", {}, ("file:///etc/shadow",), "dangerous"),
        ("read", {}, ("C:\\x",), "dangerous"),
        ("edit", {}, ("~/.ssh/authorized_keys",), "critical"),
        ("edit", {}, ("~/.bashrc",), "critical"),
        ("edit", {}, (), "dangerous"),
        ("edit", {}, ("/elsewhere/x",), "dangerous"),
        ("edit", {}, ("src/.git/hooks/x",), "critical"),
        ("edit", {}, (".GIT/config",), "critical"),
        ("edit", {}, (".enginehouse/x",), "critical"),
        ("edit", {}, ("a/../.git",), "critical"),
        ("edit", {}, (".gi\u200dt/config",), "critical"),
        ("edit", {}, (f"{PROFILE}/permissions.toml",), "critical"),
        ("edit", {}, ("a.py", ".git/x"), "critical"),
        ("execute", {}, (), "dangerous"),
        ("execute", {"command": 7}, (), "dangerous"),
        ("execute", {"command": ["rm", "-rf", "/"]}, (), "critical"),
        ("execute", {"command": "touch x", "cwd": ".git"}, (), "critical"),
        ("fetch", {"url": "https://example.com"}, (), "dangerous"),
        ("delegate", {}, (), "dangerous"),
        ("other", {}, (), "dangerous"),
    ],
)
def test_every_kind_has_its_risk(kind: ToolKind, tool_input: JsonObject, paths: tuple[str, ...], risk: Risk) -> None:
    found = use(kind, tool_input, paths, mode="default")
    assert found.risk == risk
    assert found.reasons or risk == "safe"


@pytest.mark.parametrize("join", [" && ", "; ", " | ", " || ", "\n", " & "])
def test_a_rule_for_one_segment_does_not_carry_another(join: str) -> None:
    """D09."""
    command = f"git log{join}rm -rf x"
    assert run(command, rule("execute(git *)")).verdict == "ask"
    found = run(command, rule("execute(git *)"), rule("execute(rm *)", "deny"))
    assert (found.verdict, found.by, found.rule) == ("deny", "rule", "execute(rm *)")
    assert run(command, rule("execute(git *)"), rule("execute(rm *)")).verdict == "allow"


@pytest.mark.parametrize("spelled", ["rm -rf /", "rm -fr /", "rm -r -f /", "rm --recursive --force /"])
@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_deny_holds_however_the_flags_are_spelled_and_in_every_mode(spelled: str, mode: Mode) -> None:
    """D11."""
    assert run(spelled, rule("execute(rm -rf *)", "deny"), mode=mode).verdict == "deny"


def test_no_rule_lifts_what_the_mode_denies() -> None:
    found = run("pytest", rule("execute(pytest *)"), mode="plan")
    assert (found.verdict, found.by) == ("deny", "mode")
    assert use("edit", paths=("a.py",), rules=(rule("edit"),), mode="plan").verdict == "deny"


@pytest.mark.parametrize("mode", ["default", "accept_edits"])
def test_critical_is_asked_whatever_a_rule_says_and_never_always(mode: Mode) -> None:
    for found in (
        run("git push --force", rule("execute(git push *)"), mode=mode),
        use("edit", paths=(".git/config",), rules=(rule("edit"), rule("edit(**)")), mode=mode),
    ):
        assert (found.verdict, found.risk, found.can_always, found.always_rule) == ("ask", "critical", False, None)


def test_strictest_wins_among_rules_that_match() -> None:
    rules = [rule("execute(git *)"), rule("execute(git push *)", "ask"), rule("execute(git push origin *)", "deny")]
    assert run("git pull", *rules).verdict == "allow"
    assert run("git push", *rules).verdict == "ask"
    assert run("git push origin", *rules).verdict == "deny"
    assert run("git push origin", *reversed(rules)).verdict == "deny"


def test_an_ask_rule_tightens_what_the_mode_allows_and_offers_no_always() -> None:
    for mode in ("accept_edits", "yolo"):
        found = use("edit", paths=("secrets/a",), rules=(rule("edit(secrets/**)", "ask"),), mode=mode)
        assert (found.verdict, found.by, found.can_always) == ("ask", "rule", False)


def test_bare_execute_may_deny_every_command() -> None:
    assert run("ls", rule("execute", "deny"), mode="yolo").verdict == "deny"
    assert use("read", paths=("a",), rules=(rule("execute", "deny"),)).verdict == "allow"


def test_a_deny_for_commands_holds_when_the_command_cannot_be_seen() -> None:
    assert use("execute", {}, rules=(rule("execute(rm *)", "deny"),), mode="yolo").verdict == "deny"


def test_readers_ride_along_with_a_segment_a_rule_speaks_for_and_nothing_else_does() -> None:
    allow = rule("execute(pytest *)")
    assert run("cd src && pytest -q 2>&1 | tail -5", allow).verdict == "allow"
    assert run("pytest -q | tee out.txt", allow).verdict == "ask"
    assert run("pytest -q | tee out.txt", allow, mode="accept_edits").verdict == "allow"
    assert run("pytest -q; make", allow).verdict == "ask"
    assert run("ls | tail", allow).verdict == "ask"


def test_an_allow_by_tool_name_never_speaks_for_commands_and_a_deny_does() -> None:
    assert run("ls", rule("tool(bash)")).verdict == "ask"
    assert run("ls", rule("tool(bash)", "deny"), mode="yolo").verdict == "deny"
    assert use("other", name="mcp__x__y", rules=(rule("tool(mcp__x__y)"),)).verdict == "allow"
    assert use("other", name="mcp__x__z", rules=(rule("tool(mcp__x__y)"),)).verdict == "ask"


def test_every_path_of_a_use_needs_its_rule_and_one_denied_path_is_enough() -> None:
    allow = rule("edit(src/**)")
    assert use("edit", paths=("src/a", "src/b"), rules=(allow,)).verdict == "allow"
    assert use("edit", paths=("src/a", "lib/b"), rules=(allow,)).verdict == "ask"
    assert use("edit", paths=("src/a", "lib/b"), rules=(allow, rule("edit(lib/**)", "deny"))).verdict == "deny"


def test_a_read_rule_holds_for_searches_too() -> None:
    assert use("search", paths=("/elsewhere",), rules=(rule("read(/elsewhere)"),)).verdict == "allow"
    assert use("search", rules=(rule("read", "deny"),)).verdict == "deny"


def test_a_rule_of_another_project_does_not_count() -> None:
    assert run("make", rule("execute(make *)", project="/home/ada/other")).verdict == "ask"
    assert run("make", rule("execute(make *)", project=ROOT)).verdict == "allow"
    assert run("make", rule("execute(make *)", project="/home/ada")).verdict == "allow"
    assert run("make", rule("execute(make *)", project="/home/ada/proj")).verdict == "ask"


def test_a_rule_nobody_understands_allows_nothing_and_makes_everything_be_asked() -> None:
    assert run("make", rule("execute(make"), mode="default").verdict == "ask"
    found = run("make", rule("execut(make)", "deny"), mode="yolo")
    assert (found.verdict, found.by, found.rule) == ("ask", "rule", "execut(make)")
    assert run("rm -rf x", rule("execute(*)"), mode="default").verdict == "ask"


@pytest.mark.parametrize(
    "command, offered",
    [
        ("pytest -q", "execute(pytest *)"),
        ("cd src && pytest -q 2>&1 | tail -5", "execute(pytest *)"),
        ("git commit -m 'x y'", "execute(git commit *)"),
        ("npm run test", "execute(npm run test *)"),
        ("uv run pytest -q", "execute(uv run pytest *)"),
        ("python -m pytest -q", "execute(python -m pytest *)"),
        ("python x.py a", "execute(python x.py *)"),
        ("cargo build --release", "execute(cargo build *)"),
        ("rm notes.txt", "execute(rm notes.txt)"),
        ("curl https://example.com", "execute(curl https://example.com)"),
        ("ls -la", "execute(ls -la)"),
        ("python -c 'print(1)'", None),
        ('bash -c "$X"', None),
        ("$TOOL x", None),
        ("make; npm test", None),
        ("git push --force", None),
        ("FOO=1 pytest", None),
        ("pytest > /tmp/x", None),
        ("pytest 'unclosed", None),
        ("eval 'pytest'", None),
        ("uv run python -c x", None),
        ("sudo pytest", None),
        ("cat ~/.ssh/id_rsa", "execute(cat /home/ada/.ssh/id_rsa)"),
    ],
)
def test_always_is_offered_only_where_it_would_answer_this_very_use(command: str, offered: str | None) -> None:
    found = run(command)
    assert (found.verdict, found.can_always, found.always_rule) == ("ask", offered is not None, offered)
    if offered is not None:
        assert parse_rule(offered, "allow").text == offered
        assert run(command, rule(offered)).verdict == "allow"


@pytest.mark.parametrize(
    "kind, tool_input, paths, offered",
    [
        ("edit", {}, ("src/a/b.py",), "edit(./src/a/**)"),
        ("edit", {}, ("src/a/b.py", "src/c.py"), "edit(./src/**)"),
        ("edit", {}, ("README.md",), "edit(./README.md)"),
        ("edit", {}, ("we[i]rd.md",), "edit(./we\\[i\\]rd.md)"),
        ("edit", {}, ("/elsewhere/x",), None),
        ("edit", {}, (".git/config",), None),
        ("read", {}, ("/elsewhere/x",), "read(/elsewhere/x)"),
        ("fetch", {"url": "https://example.com/a?b"}, (), "fetch(https://example.com/*)"),
        ("fetch", {"url": "https://a@example.com/"}, (), None),
        ("other", {}, (), "tool(anything)"),
    ],
)
def test_always_for_other_kinds(
    kind: ToolKind, tool_input: JsonObject, paths: tuple[str, ...], offered: str | None
) -> None:
    found = use(kind, tool_input, paths)
    assert (found.verdict, found.always_rule) == ("ask", offered)
    if offered is not None:
        assert use(kind, tool_input, paths, rules=(rule(offered),)).verdict == "allow"
