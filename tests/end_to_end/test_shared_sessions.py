"""Several windows on one session, and commands that reach into it from outside.

Rule: every window is a process of its own, on a terminal of its own where somebody sits at it.
"""

import json
import signal
from typing import Any

import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S, Person
from model_server import call, hold, reply

WRITE = call("write_file", {"path": "src/note.txt", "content": "hello\n"})
TOUCH = call("bash", {"command": "touch wrong.txt"})
ASK = "n: deny > "
HALVES = reply(deltas=["First half, ", hold("middle"), "second half."])
PLAIN = {"NO_COLOR": "1"}


def bodies(person: Person, tag: str) -> list[dict[str, Any]]:
    return person.runs("sessions", "events", person.session_id()).bodies(tag)


# --- looking ----------------------------------------------------------------------------------------------------------


def test_who_comes_in_the_middle_of_a_reply_sees_exactly_the_same_text(meet: Introduction) -> None:
    person = meet([HALVES])
    with person.sits_at("run", "talk", also=PLAIN) as first:
        first.until("First half, ")
        with person.sits_at("sessions", "attach", person.session_id(), also=PLAIN) as second:
            second.until("> talk")
            assert second.until("First half, ").strip() == ""
            meet.server.release("middle")
            assert second.until("second half.\n") == ""
            assert first.until("second half.\n") == ""
            assert first.ends().code == 0
            second.presses_ctrl_c()
            ended = second.ends()
    assert (ended.code, "detached; the session goes on" in ended.err) == (0, True)
    assert ended.err.count("First half") == 1


def test_detaching_interrupts_nobody(meet: Introduction) -> None:
    person = meet([HALVES])
    with person.starts("run", "talk") as process:
        meet.server.reached("middle", PATIENCE_S)
        with person.sits_at("sessions", "attach", person.session_id(), also=PLAIN) as second:
            hint = second.until("First half, ")
            assert f"`enginehouse sessions interrupt {person.session_id()}` stops its turn" in hint
            second.presses_ctrl_c()
            assert second.ends().code == 0
        with person.starts("sessions", "attach", person.session_id()) as follower:
            assert follower.stdout is not None
            while b"live.state" not in follower.stdout.readline():
                pass
            follower.send_signal(signal.SIGINT)
            assert follower.wait(PATIENCE_S) == 0
        meet.server.release("middle")
        assert process.communicate(timeout=PATIENCE_S)[0] == b"First half, second half.\n"
        assert process.returncode == 0


def test_without_a_terminal_it_is_every_event_as_it_stands_in_the_record(meet: Introduction) -> None:
    person = meet([reply("One."), HALVES])
    assert person.runs("run", "first").code == 0
    with person.starts("run", "-c", "second") as process:
        meet.server.reached("middle", PATIENCE_S)
        with person.starts("sessions", "attach", person.session_id()) as follower:
            assert follower.stdout is not None
            lines = [follower.stdout.readline()]
            while b"live.state" not in lines[-1]:
                lines.append(follower.stdout.readline())
            meet.server.release("middle")
            assert process.wait(PATIENCE_S) == 0
            assert person.runs("sessions", "close", person.session_id()).code == 0
            rest, _ = follower.communicate(timeout=PATIENCE_S)
            assert follower.returncode == 0
    heard = [line for line in (*lines, *rest.splitlines(keepends=True)) if b'"seq":' in line[:80]]
    assert b"".join(heard) == person.runs("sessions", "events", person.session_id()).out_bytes
    [live] = [json.loads(line)["body"] for line in lines if b"live.state" in line]
    assert [message["text"] for message in live["messages"]] == ["First half, "]


def test_a_closed_session_is_shown_and_that_is_all(meet: Introduction) -> None:
    person = meet([reply("One.")])
    assert person.runs("run", "first").code == 0
    session_id = person.session_id()
    assert person.runs("sessions", "close", session_id).code == 0
    with person.sits_at("sessions", "attach", session_id, also=PLAIN) as terminal:
        terminal.until("> first\n")
        terminal.until("One.\n")
        terminal.until("the session is closed\n")
        assert terminal.ends().code == 0
    assert person.runs("sessions", "attach", session_id).events[-1]["body"]["type"] == "session.closed"
    refused = person.runs("sessions", "send", session_id, "more")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)


# --- answering --------------------------------------------------------------------------------------------------------


def test_an_answer_from_the_second_window_withdraws_the_card_in_the_first(meet: Introduction) -> None:
    person = meet([reply(calls=[WRITE]), reply("Written.")])
    with person.sits_at("run", "write", also=PLAIN) as first:
        first.until(ASK)
        with person.sits_at("sessions", "attach", person.session_id(), also=PLAIN) as second:
            card = second.until(ASK)
            assert "src/note.txt" in card
            assert "+hello" in card
            second.types("y\n")
            second.until("Written.")
        ended = first.ends()
    assert (ended.code, "Written." in ended.err, "no answer is needed any more" in ended.err) == (0, True, True)
    assert (person.project / "src" / "note.txt").read_text() == "hello\n"
    [decided] = bodies(person, "permission.decided")
    assert (decided["by"], decided["decision"]["type"]) == ("person", "allow")


def test_a_third_process_answers_from_the_inbox_and_a_fourth_is_told(meet: Introduction) -> None:
    person = meet([reply(calls=[WRITE]), reply("Written.")])
    with person.sits_at("run", "write", also=PLAIN) as first:
        first.until(ASK)
        [waiting] = person.runs("inbox", "--json").events
        request = waiting["request"]
        assert (waiting["kind"], waiting["session_id"]) == ("permission", person.session_id())
        assert (request["risk"], request["input"]["path"]) == ("write", "src/note.txt")
        listed = person.runs("inbox").out
        assert waiting["id"] in listed
        assert "write src/note.txt" in listed

        unsure = person.runs("inbox", "answer", waiting["id"], "allow")
        assert (unsure.code, "--yes" in unsure.err) == (2, True)
        assert "hello" in unsure.err  # what would be allowed is shown
        allowed = person.runs("inbox", "answer", waiting["id"][:12], "allow", "--yes")
        assert allowed.code == 0, allowed
        ended = first.ends()
    assert (ended.code, "Written." in ended.err, "no answer is needed any more" in ended.err) == (0, True, True)
    late = person.runs("inbox", "answer", waiting["id"], "deny")
    assert (late.code, len(late.err.splitlines())) == (2, 1)
    assert "settled already: allowed by terminal" in late.err
    assert person.runs("inbox").err == "nothing waits for you\n"


@pytest.mark.parametrize("verdict", ["deny", "allow"])
def test_what_a_message_sent_by_nobody_in_particular_asks_waits_in_the_inbox(meet: Introduction, verdict: str) -> None:
    person = meet([reply("Hello."), reply(calls=[TOUCH]), reply("Fine.")])
    assert person.runs("run", "hello").code == 0
    session_id = person.session_id()
    sent = person.runs("sessions", "send", session_id, "touch it")
    assert (sent.code, sent.out.split()[1]) == (0, "started")
    waiting = _until_waiting(person)
    if verdict == "deny":
        assert person.runs("inbox", "answer", waiting["id"], "deny", "--reason", "not here").code == 0
    else:
        edited = ("--input", '{"command": "touch right.txt"}')
        with person.sits_at("inbox", "answer", waiting["id"], "allow", *edited, also=PLAIN) as terminal:
            assert "touch right.txt" in terminal.until("Allow this? [y/N] ")
            terminal.types("y\n")
            assert terminal.ends().code == 0
    _until_said(person, "Fine.")
    answered = meet.asked()[-1].tool_results[0].text
    if verdict == "deny":
        assert "not here" in answered
    assert [path.name for path in person.project.iterdir()] == ([] if verdict == "deny" else ["right.txt"])


def test_who_is_second_to_answer_hears_who_was_first(meet: Introduction) -> None:
    person = meet([reply(calls=[WRITE]), reply("Written.")])
    with person.sits_at("run", "write", also=PLAIN) as first:
        first.until(ASK)
        [waiting] = person.runs("inbox", "--json").events
        with person.sits_at("inbox", "answer", waiting["id"], "always", also=PLAIN) as second:
            assert "hello" in second.until("always in its project: edit(./src/**)? [y/N] ")
            first.types("y\n")
            first.until("Written.")
            second.types("y\n")
            ended = second.ends()
    assert ended.code == 2
    assert len(ended.err.partition("[y/N] ")[2].strip().splitlines()) == 2  # the y that was typed, and one line
    assert person.runs("permissions", "list", "--json").out == ""


def test_a_question_is_answered_from_the_inbox_by_number_label_or_words(meet: Introduction) -> None:
    which = {"question": "Which?", "options": [{"label": "red"}, {"label": "blue"}], "free_text": False}
    several = {"question": "What?", "options": [{"label": "a"}, {"label": "b, c"}], "multiple": True}
    person = meet(
        [
            reply("Hello."),
            *(reply(calls=[call("ask_user", each)]) for each in (which, several, {"question": "Name?"})),
            reply("Fine."),
        ]
    )
    assert person.runs("run", "hello").code == 0
    assert person.runs("sessions", "send", person.session_id(), "ask me").code == 0
    replies = ((("2",), ("green",)), (("2", "a"), None), (("Ada", "Lovelace"), None))
    for number, (given, refused) in enumerate(replies, 1):
        waiting = _until_waiting(person, number)
        assert waiting["kind"] == "question"
        assert waiting["question"]["text"] in person.runs("inbox").out
        if refused is not None:
            wrong = person.runs("inbox", "answer", waiting["id"], *refused)
            assert (wrong.code, "1. red; 2. blue" in wrong.err) == (2, True)
        assert person.runs("inbox", "answer", waiting["id"], *given).code == 0
    _until_said(person, "Fine.")
    answers = [tuple(each["answers"]) for each in bodies(person, "question.answered")]
    assert answers == [("blue",), ("b, c", "a"), ("Ada Lovelace",)]


def test_looking_into_the_inbox_starts_no_hub_and_makes_nothing(person: Person) -> None:
    ended = person.runs("inbox")
    assert (ended.code, ended.out, ended.err) == (0, "", "nothing waits for you\n")
    assert person.runs("inbox", "--json").out == ""
    nothing = person.runs("inbox", "answer", "p_1", "allow")
    assert (nothing.code, len(nothing.err.splitlines())) == (2, 1)
    assert person.hubs() == []
    assert not person.profile.exists()


def _until_waiting(person: Person, count: int = 1) -> dict[str, Any]:
    """What waits in the inbox, once `count` things were asked in this session."""
    with person.starts("sessions", "attach", person.session_id()) as follower:
        assert follower.stdout is not None
        while count:
            line = follower.stdout.readline()
            assert line, "the session ended before anything was asked"
            count -= b'"type":"permission.requested"' in line[:200] or b'"type":"question.asked"' in line[:200]
    [waiting] = person.runs("inbox", "--json").events
    return waiting


def _until_said(person: Person, text: str) -> None:
    with person.starts("sessions", "attach", person.session_id()) as follower:
        assert follower.stdout is not None
        while text.encode() not in (line := follower.stdout.readline()):
            assert line, f"the session ended before {text!r} was said"


# --- steering ---------------------------------------------------------------------------------------------------------


def test_what_is_queued_can_be_listed_edited_and_taken_back_with_its_text(meet: Introduction) -> None:
    person = meet([HALVES, reply("Two.")])
    with person.starts("run", "talk") as process:
        meet.server.reached("middle", PATIENCE_S)
        session_id = person.session_id()
        sent = [person.runs("sessions", "send", session_id, text) for text in ("second\nmessage", "third")]
        assert [each.out.split()[1] for each in sent] == ["queued", "queued"]
        assert "1 more message waits before it" in sent[1].err
        second, third = (each.out.split()[0] for each in sent)
        listed = person.runs("sessions", "queue", "list", session_id, "--json").events
        assert [(each["message_id"], each["content"][0]["text"]) for each in listed] == [
            (second, "second\nmessage"),
            (third, "third"),
        ]
        assert person.runs("sessions", "queue", "edit", session_id, third, "third, edited").code == 0
        which = person.runs("sessions", "queue", "withdraw", session_id)
        assert (which.code, third in which.err) == (2, True)
        taken = person.runs("sessions", "queue", "withdraw", session_id, second)
        assert (taken.code, taken.out) == (0, "second\nmessage\n")
        assert person.runs("sessions", "queue", "withdraw", session_id, second).code == 2
        meet.server.release("middle")
        assert process.wait(PATIENCE_S) == 0
        _until_said(person, "Two.")
    assert [each["content"][0]["text"] for each in bodies(person, "message.user")] == ["talk", "third, edited"]
    assert person.runs("sessions", "queue", "list", session_id).err == "nothing waits in this session\n"


def test_the_editor_opens_what_is_queued(meet: Introduction) -> None:
    person = meet([HALVES, reply("Two.")])
    editor = person.home / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i s/wrong/right/ "$1"\n')
    editor.chmod(0o700)
    with person.starts("run", "talk") as process:
        meet.server.reached("middle", PATIENCE_S)
        session_id = person.session_id()
        message_id = person.runs("sessions", "send", session_id, "the wrong one").out.split()[0]
        with person.sits_at(
            "sessions", "queue", "edit", session_id, message_id, also={"EDITOR": str(editor)}
        ) as terminal:
            assert terminal.ends().code == 0
        assert person.runs("sessions", "queue", "withdraw", session_id).out == "the right one\n"
        meet.server.release("middle")
        assert process.wait(PATIENCE_S) == 0


def test_an_interrupt_from_outside_ends_the_turn_and_the_queue_waits_for_a_person(meet: Introduction) -> None:
    person = meet([HALVES, reply("Two.")])
    with person.starts("run", "talk") as process:
        meet.server.reached("middle", PATIENCE_S)
        session_id = person.session_id()
        with person.starts("run", "--session", session_id, "waits") as waiting:
            _until_queued(person, session_id)
            interrupted = person.runs("sessions", "interrupt", session_id)
            assert interrupted.code == 0
            assert "interrupted; 1 queued message is held" in interrupted.err
            assert process.wait(PATIENCE_S) == 130
            _, said = waiting.communicate(timeout=PATIENCE_S)
            assert waiting.returncode == 1
            assert f"`enginehouse sessions queue resume {session_id}`" in said.decode()
    assert person.runs("sessions", "interrupt", session_id).err.startswith("nothing ran in this session")
    assert person.runs("sessions", "queue", "resume", session_id).code == 0
    _until_said(person, "Two.")


def test_a_message_the_hub_died_under_waits_and_goes_on_when_told(meet: Introduction) -> None:
    person = meet([HALVES, reply("Two.")])
    with person.starts("run", "talk") as process:
        meet.server.reached("middle", PATIENCE_S)
        session_id = person.session_id()
        with person.starts("run", "--session", session_id, "waits") as waiting:
            _until_queued(person, session_id)
            [hub] = person.hubs()
            hub.kill()
            _, cut_off = process.communicate(timeout=PATIENCE_S)
            _, said = waiting.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "interrupted" in cut_off.decode()) == (1, True)
    assert (waiting.returncode, "the hub ended before this message began" in said.decode()) == (1, True)
    [held] = person.runs("sessions", "queue", "list", session_id, "--json").events
    assert held["held"] is True
    assert person.runs("sessions", "queue", "resume", session_id).code == 0
    _until_said(person, "Two.")


def test_leaving_takes_back_what_had_not_begun_and_leaves_the_others_turn_alone(meet: Introduction) -> None:
    person = meet([HALVES])
    with person.starts("run", "talk") as process:
        meet.server.reached("middle", PATIENCE_S)
        session_id = person.session_id()
        with person.starts("run", "--session", session_id, "waits") as waiting:
            _until_queued(person, session_id)
            waiting.send_signal(signal.SIGTERM)
            assert waiting.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert person.runs("sessions", "queue", "list", session_id).out == ""
        meet.server.release("middle")
        assert process.communicate(timeout=PATIENCE_S)[0] == b"First half, second half.\n"


def test_settings_change_while_a_turn_runs(meet: Introduction) -> None:
    person = meet([HALVES])
    with person.starts("run", "talk") as process:
        meet.server.reached("middle", PATIENCE_S)
        session_id = person.session_id()
        changed = person.runs("sessions", "set", session_id, "--mode", "plan", "--title", "The parser")
        assert (changed.code, "mode plan" in changed.err) == (0, True)
        meet.server.release("middle")
        assert process.wait(PATIENCE_S) == 0
    info = person.newest_session()
    assert (info["title"], info["settings"]["mode"]) == ("The parser", "plan")
    refused = person.runs("sessions", "set", session_id)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)


def test_sending_and_waiting_is_a_run(meet: Introduction) -> None:
    person = meet([reply("One."), reply("Two.")])
    assert person.runs("run", "first").code == 0
    sent = person.runs("sessions", "send", person.session_id()[:20], "--wait", typed=b"from a pipe")
    assert (sent.code, sent.out) == (0, "Two.\n")
    unconfigured = person.runs(
        "sessions", "send", person.session_id(), "x", also={"OPENAI_BASE_URL": "", "OPENAI_API_KEY": ""}
    )
    assert (unconfigured.code, "there is no model to talk to" in unconfigured.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("attach", "s_none"),
        ("send", "s_none", "hi"),
        ("interrupt", "s_none"),
        ("set", "s_none", "--mode", "plan"),
        ("queue", "list", "s_none"),
        ("queue", "edit", "s_none", "m", "text"),
        ("queue", "withdraw", "s_none"),
        ("queue", "resume", "s_none"),
    ],
    ids=" ".join,
)
def test_a_session_that_is_none_is_one_line_and_no_hub(person: Person, arguments: tuple[str, ...]) -> None:
    refused = person.runs("sessions", *arguments)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused
    assert person.hubs() == []


def _until_queued(person: Person, session_id: str) -> None:
    """One message waits, by the record, and the hub has answered others since."""
    with person.starts("sessions", "attach", session_id) as follower:
        assert follower.stdout is not None
        while b'"source":"queue"' not in (line := follower.stdout.readline()):
            assert line, "the session ended before anything was queued"
    assert len(person.runs("sessions", "queue", "list", session_id, "--json").events) == 1
