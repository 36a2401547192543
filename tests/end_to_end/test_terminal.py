"""`enginehouse run` on a terminal: asking, answering, interrupting."""

import json
import os
import sys
import time
from pathlib import Path
from select import select

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S, Person
from model_server import call, hold, reply

WRITE = call("write_file", {"path": "src/note.txt", "content": "hello\n"})
WRITE_AGAIN = call("write_file", {"path": "src/other.txt", "content": "again\n"})
ASK = "n: deny > "


def test_allowing_once_runs_it_once_and_the_card_shows_what_would_change(meet: Introduction) -> None:
    person = meet([reply(calls=[WRITE]), reply(calls=[WRITE_AGAIN]), reply("Both written.")])
    with person.sits_at("run", "write") as terminal:
        card = terminal.until(ASK)
        assert "src/note.txt" in card
        assert "+hello" in card
        assert "write" in card
        assert not (person.project / "src").exists()
        terminal.types("y\n")
        assert "+again" in terminal.until(ASK)
        terminal.types("yes\n")
        terminal.until("Both written.")
        assert terminal.ends().code == 0
    assert (person.project / "src" / "other.txt").read_text() == "again\n"


def test_always_stores_the_rule_for_this_project_and_does_not_ask_again(meet: Introduction) -> None:
    person = meet([reply(calls=[WRITE]), reply(calls=[WRITE_AGAIN]), reply("Both written.")])
    with person.sits_at("run", "write") as terminal:
        assert "a: always in this project, edit(./src/**)" in terminal.until("e: edit")
        terminal.types("a\n")
        assert "a: always" not in terminal.until("Both written.")
        assert terminal.ends().code == 0
    rules = [json.loads(line) for line in person.runs("permissions", "list", "--json").out.splitlines()]
    assert [(rule["effect"], rule["rule"], rule["project"]) for rule in rules] == [
        ("allow", "edit(./src/**)", str(person.project))
    ]


def test_a_denial_carries_its_reason_to_the_model(meet: Introduction) -> None:
    person = meet([reply(calls=[WRITE]), reply("Then not.")])
    with person.sits_at("run", "write") as terminal:
        terminal.until(ASK)
        terminal.types("maybe\n")  # not understood: asked again, never a yes
        terminal.until(ASK)
        terminal.types("n\n")
        terminal.until("why?")
        terminal.types("use docs/ instead\n")
        terminal.until("Then not.")
        assert terminal.ends().code == 0
    assert "use docs/ instead" in meet.asked()[-1].tool_results[0].text
    assert not (person.project / "src").exists()


def test_an_edited_input_is_what_runs(meet: Introduction) -> None:
    person = meet([reply(calls=[call("bash", {"command": "touch wrong.txt"})]), reply("Touched.")])
    with person.sits_at("run", "touch") as terminal:
        assert "$ touch wrong.txt" in terminal.until(ASK)
        terminal.types("e\n")
        terminal.until("as JSON on one line")
        terminal.types('{"command": "touch right.txt"}\n')
        terminal.until("allowed, as edited")
        assert terminal.ends().code == 0
    assert sorted(path.name for path in person.project.iterdir()) == ["right.txt"]


def test_an_edit_that_is_no_input_is_asked_again(meet: Introduction) -> None:
    person = meet([reply(calls=[call("bash", {"command": "touch a.txt"})]), reply("Fine.")])
    with person.sits_at("run", "touch") as terminal:
        terminal.until(ASK)
        terminal.types("e\n")
        terminal.until("as JSON on one line")
        terminal.types("rm -rf /\n")
        terminal.until("no JSON object")
        terminal.until(ASK)
        terminal.types("n\n")
        terminal.until("why?")
        terminal.types("\n")
        assert terminal.ends().code == 0
    assert not list(person.project.iterdir())


def test_the_persons_editor_edits_also_while_stdout_is_a_pipe(meet: Introduction) -> None:
    person = meet([reply(calls=[call("bash", {"command": "touch wrong.txt"})]), reply("Touched.")])
    editor = person.home / "an editor.py"
    editor.write_text(
        "import pathlib, sys\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "assert sys.stdout.isatty() and sys.stdin.isatty() and file.stat().st_mode & 0o077 == 0\n"
        "file.write_text(file.read_text().replace('wrong', 'right'))\n"
    )
    also = {"EDITOR": f"{sys.executable} '{editor}'"}
    with person.sits_at("run", "touch", piped=True, also=also) as terminal:
        terminal.until(ASK)
        terminal.types("e\n")
        ended = terminal.ends()
    assert (ended.code, ended.out) == (0, "Touched.\n")
    assert [path.name for path in person.project.iterdir()] == ["right.txt"]


def test_critical_is_asked_and_never_offered_as_always(meet: Introduction) -> None:
    person = meet([reply(calls=[call("bash", {"command": "rm -rf /"})]), reply("Good.")])
    with person.sits_at("run", "clean up") as terminal:
        card = terminal.until(ASK)
        assert "critical" in card
        assert "a: always" not in card
        terminal.types("n\n")
        terminal.until("why?")
        terminal.types("are you mad\n")
        assert terminal.ends().code == 0


def test_ctrl_c_while_asked_withdraws_the_question_and_leaves_the_session_usable(meet: Introduction) -> None:
    person = meet([reply(calls=[WRITE]), reply("Welcome back.")])
    with person.sits_at("run", "write") as terminal:
        terminal.until(ASK)
        pressed_at_ms = time.time() * 1000
        terminal.presses_ctrl_c()
        terminal.until("no answer is needed any more")
        assert terminal.ends().code == 130
    assert _ended_at_ms(person) - pressed_at_ms < 2000
    assert not (person.project / "src").exists()
    assert person.runs("run", "-c", "again").out == "Welcome back.\n"


def test_a_window_that_is_closed_while_asked_answers_nothing(meet: Introduction) -> None:
    person = meet([reply(calls=[WRITE]), reply("Welcome back.")])
    with person.sits_at("run", "write") as terminal:
        terminal.until(ASK)
        assert terminal.is_closed() == 129
    assert not (person.project / "src").exists()
    events = person.runs("sessions", "events", person.session_id()).events
    [decided] = [event["body"] for event in events if event["body"]["type"] == "permission.decided"]
    assert (decided["by"], decided["decision"]["type"]) == ("expiry", "expired")
    assert events[-1]["body"] | {"detail": ""} == {"type": "turn.completed", "stop": "interrupted", "detail": ""}
    assert person.runs("run", "-c", "again").out == "Welcome back.\n"


def test_a_command_is_on_the_card_whatever_hides_in_it(meet: Introduction) -> None:
    hiding = "true\n\x1b]x; touch ran; : \x07\necho \u200bfine"
    person = meet([reply(calls=[call("bash", {"command": hiding})]), reply("Good.")])
    with person.sits_at("run", "go", also={"NO_COLOR": "1"}) as terminal:
        card = terminal.until(ASK)
        assert "␛]x; touch ran; : ␇" in card
        assert "echo \\u200bfine" in card
        terminal.types("n\n")
        terminal.until("why?")
        terminal.types("\n")
        assert terminal.ends().code == 0


def test_ctrl_c_ends_a_running_command_and_what_it_started(meet: Introduction) -> None:
    person = meet([reply(calls=[call("bash", {"command": "setsid sleep 61.5 & echo go > ready; sleep 62.5"})])])
    os.mkfifo(person.project / "ready")
    ready = os.open(person.project / "ready", os.O_RDONLY | os.O_NONBLOCK)
    with person.sits_at("run", "--mode", "yolo", "sleep") as terminal:
        terminal.until("sleep 62.5")
        assert select([ready], [], [], PATIENCE_S)[0]
        os.close(ready)
        pressed_at_ms = time.time() * 1000
        terminal.presses_ctrl_c()
        assert terminal.ends().code == 130
    assert _ended_at_ms(person) - pressed_at_ms < 2000
    assert not _running("sleep 61.5")
    assert not _running("sleep 62.5")


def test_a_second_ctrl_c_leaves(meet: Introduction) -> None:
    person = meet([reply(deltas=["Half ", hold("middle")]), reply("Back.")])
    with person.sits_at("run", "talk") as terminal:
        meet.server.reached("middle", PATIENCE_S)
        terminal.until("Half")
        terminal.presses_ctrl_c()
        terminal.presses_ctrl_c()
        assert terminal.ends().code == 130
    assert person.runs("run", "-c", "again").out == "Back.\n"


def test_the_answer_streams_as_it_comes_and_is_not_repeated(meet: Introduction) -> None:
    person = meet(reply(deltas=["First half, ", hold("middle"), "second half."]))
    with person.sits_at("run", "talk") as terminal:
        terminal.until("First half, ")
        meet.server.release("middle")
        terminal.until("second half.")
        ended = terminal.ends()
    assert (ended.code, ended.err.count("First half")) == (0, 1)


def test_colours_on_a_terminal_and_none_with_no_color(meet: Introduction) -> None:
    look = call("list_dir", {"path": "."})
    person = meet([reply(calls=[look]), reply("Seen."), reply(calls=[look]), reply("Seen.")])
    with person.sits_at("run", "look") as terminal:
        assert "\x1b[" in terminal.ends().err
    with person.sits_at("run", "-c", "look", also={"NO_COLOR": "1"}) as terminal:
        ended = terminal.ends()
    assert "Seen." in ended.err
    assert "\x1b" not in ended.err


def test_nothing_a_tool_prints_reaches_the_terminal_as_a_command(meet: Introduction) -> None:
    hostile = r"printf '\033]0;owned\007\033[2J\033[31mred\033[0m\r\n\233[2Jend'"
    person = meet([reply(calls=[call("bash", {"command": hostile})]), reply("Look: \x1b]0;owned\x07\u202etxt.")])
    with person.sits_at("run", "--mode", "yolo", "print", also={"NO_COLOR": "1"}) as terminal:
        ended = terminal.ends()
    assert ended.code == 0
    assert "red" in ended.err
    assert not set(ended.err) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_a_moved_project_is_asked_about(meet: Introduction) -> None:
    person = meet([reply("One."), reply("Two.")])
    assert person.runs("run", "first").code == 0
    person.project = person.project.rename(person.home / "renamed")
    with person.sits_at("run", "-c", "second") as terminal:
        terminal.until("should it go on here? [y/N] ")
        terminal.types("y\n")
        terminal.until("Two.")
        assert terminal.ends().code == 0


def _ended_at_ms(person: Person) -> int:
    """When the last turn ended, by the record."""
    events = person.runs("sessions", "events", person.session_id()).events
    [ended] = [event["at_ms"] for event in events if event["body"]["type"] == "turn.completed"]
    return ended


def _running(command: str) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if b" ".join(words[:-1]) == command.encode() and state != "Z":
            return True
    return False
