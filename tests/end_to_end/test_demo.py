"""`enginehouse demo`: everything in ten seconds, and nothing of the person's touched."""

from pathlib import Path

from end_to_end.person import Person

SCENES = (
    "script, there is no model",  # honest
    "read basket/total.py",
    "1 to 2 > 1    (the demo answers for you)",
    "? $ python3",
    "FAIL: test_a_discount",
    "+    return round(full - full * discount_percent / 100)",
    "✓ allowed",
    "OK",
    "interrupting",
    "interrupted",
    "a new one opens the same profile",
    "The record says that the last turn was interrupted",
    "OPENAI_BASE_URL",
    "enginehouse run",
)


def test_the_demo_shows_every_scene_without_a_terminal_and_leaves_nothing(person: Person, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before = sorted(person.home.rglob("*"))
    ended = person.runs("demo", also={"TMPDIR": str(temporary)})
    assert (ended.code, ended.err) == (0, "")
    at = 0
    for scene in SCENES:
        at = ended.out.find(scene, at)
        assert at >= 0, f"{scene!r} is missing or out of order in:\n{ended.out}"
    assert "\x1b" not in ended.out
    assert not list(temporary.iterdir())
    assert sorted(person.home.rglob("*")) == before


def test_the_demo_on_a_terminal_is_coloured_and_ctrl_c_ends_it(person: Person) -> None:
    with person.sits_at("demo") as terminal:
        terminal.until("read basket/total.py")
        terminal.presses_ctrl_c()
        ended = terminal.ends()
    assert ended.code == 130
    assert "\x1b[" in ended.err
