"""The parser: what is understood, what is refused, and that every command has help with an example."""

from importlib import import_module

import pytest

from enginehouse.cli import parse

COMMANDS = {
    "run": ["run"],
    "sessions": ["list", "show", "events", "rename", "close", "delete", "check"],
    "permissions": ["list", "allow", "deny", "remove", "explain"],
    "profile": ["path", "check"],
    "engines": [],
    "doctor": [],
    "demo": [],
}
EVERY = [[name] for name in COMMANDS] + [
    [name, verb] for name, verbs in COMMANDS.items() if name != "run" for verb in verbs
]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_has_help_with_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*words, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "example" in shown
    assert f"enginehouse {words[0]}" in shown.partition("example")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["sessions", "list"],
        ["sessions", "events", "s_1"],
        ["permissions", "allow", "edit"],
        ["profile", "path"],
        ["doctor"],
    ],
)
def test_a_command_finds_its_room(words: list[str]) -> None:
    command, _ = parse(words)
    assert command.__module__.startswith("enginehouse.commands.")
    assert getattr(import_module(command.__module__), command.__name__) is command


def test_the_options_of_run() -> None:
    _, parsed = parse(
        "run -C d --engine e -m m --effort x --mode accept-edits --session s_1 --json --max-steps 3 prompt".split()
    )
    assert vars(parsed) | {"command": ""} == {
        "command": "",
        "prompt": "prompt",
        "directory": "d",
        "engine": "e",
        "model": "m",
        "effort": "x",
        "mode": "accept_edits",
        "newest": False,
        "session": "s_1",
        "json": True,
        "max_steps": 3,
    }


def test_a_prompt_may_begin_with_a_dash_behind_two() -> None:
    _, parsed = parse(["run", "-c", "--", "--version"])
    assert (parsed.prompt, parsed.newest) == ("--version", True)


def test_explain_takes_a_command_with_options_as_it_is() -> None:
    _, parsed = parse(["permissions", "explain", "git", "push", "--force", "-C", "x"])
    assert parsed.words == ["git", "push", "--force", "-C", "x"]


@pytest.mark.parametrize(
    "words", [["frob"], ["sessions"], ["sessions", "frob"], ["run", "a", "b"], ["sessions", "list", "--js"]]
)
def test_a_wrong_call_ends_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
