"""The parser: what is understood, what is refused, and that every command has help with an example."""

from importlib import import_module

import pytest

from enginehouse.cli import parse

COMMANDS = {
    "run": ["run"],
    "sessions": [
        *("list", "show", "events", "attach", "send", "interrupt", "set"),
        *("queue", "queue list", "queue edit", "queue withdraw", "queue resume"),
        *("prompt", "rename", "close", "delete", "check"),
    ],
    "inbox": ["answer"],
    "hub": ["serve", "status", "stop", "logs"],
    "permissions": ["list", "allow", "deny", "remove", "explain"],
    "profile": ["path", "check"],
    "providers": ["add", "list", "test", "remove"],
    "engines": [],
    "doctor": [],
    "demo": [],
}
EVERY = [[name] for name in COMMANDS] + [
    [name, *verb.split()] for name, verbs in COMMANDS.items() if name != "run" for verb in verbs
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
        ["sessions", "attach", "s_1"],
        ["sessions", "send", "s_1"],
        ["sessions", "interrupt", "s_1"],
        ["sessions", "set", "s_1"],
        *(["sessions", "queue", *words] for words in (["list", "s_1"], ["withdraw", "s_1"], ["resume", "s_1"])),
        ["sessions", "queue", "edit", "s_1", "m_1"],
        ["inbox"],
        ["inbox", "answer", "p_1", "allow"],
        *(["hub", verb] for verb in ("serve", "status", "stop", "logs")),
        ["permissions", "allow", "edit"],
        ["profile", "path"],
        *(["providers", verb, "p"] for verb in ("add", "test", "remove")),
        ["providers", "list"],
        ["sessions", "prompt", "s_1"],
        ["doctor"],
    ],
)
def test_a_command_finds_its_room(words: list[str]) -> None:
    command, _ = parse(words)
    assert command.__module__.startswith("enginehouse.commands.")
    assert getattr(import_module(command.__module__), command.__name__) is command


def test_the_options_of_run() -> None:
    _, parsed = parse(
        "run -C d --engine e --provider p -m m --effort x --mode accept-edits --session s_1 --json "
        "--max-steps 3 --image a.png --image b.png prompt".split()
    )
    assert vars(parsed) | {"command": ""} == {
        "command": "",
        "prompt": "prompt",
        "images": ["a.png", "b.png"],
        "directory": "d",
        "engine": "e",
        "provider": "p",
        "model": "m",
        "effort": "x",
        "mode": "accept_edits",
        "newest": False,
        "session": "s_1",
        "json": True,
        "max_steps": 3,
        "no_hub": False,
    }


def test_a_prompt_may_begin_with_a_dash_behind_two() -> None:
    _, parsed = parse(["run", "-c", "--", "--version"])
    assert (parsed.prompt, parsed.newest) == ("--version", True)


@pytest.mark.parametrize("text,seconds", [("0", 0.0), ("2.5", 2.5), ("never", None)])
def test_a_hub_ends_after_seconds_or_never(text: str, seconds: float | None) -> None:
    assert parse(["hub", "serve", "--idle-after", text])[1].idle_after == seconds


def test_the_inbox_lists_unless_something_is_answered() -> None:
    assert parse(["inbox", "--json"])[0].__name__ == "list_inbox"
    command, parsed = parse(["inbox", "answer", "q_1", "one", "two", "--yes"])
    assert (command.__name__, parsed.id, parsed.answers, parsed.yes) == ("answer", "q_1", ["one", "two"], True)


def test_explain_takes_a_command_with_options_as_it_is() -> None:
    _, parsed = parse(["permissions", "explain", "git", "push", "--force", "-C", "x"])
    assert parsed.words == ["git", "push", "--force", "-C", "x"]


@pytest.mark.parametrize(
    "words",
    [
        ["frob"],
        ["sessions"],
        ["sessions", "frob"],
        ["sessions", "queue"],
        ["sessions", "queue", "edit", "s_1"],
        ["sessions", "set", "s_1", "--mode", "fast"],
        ["run", "a", "b"],
        ["sessions", "list", "--js"],
        ["inbox", "answer", "p_1"],
        ["hub", "serve", "--idle-after", "-1"],
        ["hub", "serve", "--idle-after", "nan"],
    ],
)
def test_a_wrong_call_ends_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
