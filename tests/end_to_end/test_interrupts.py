"""Ctrl-C at every kind of moment: the session idle within two seconds, nothing left running, the model told.

Rule: when the turn ended is read from the record; what the model knows, from the request it got next.
"""

import os
import signal
import subprocess
import time
from select import select
from typing import Any

import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S, Person
from model_server import Reply, call, hold, reply

IDLE_WITHIN_MS = 2_000
GONE_WITHIN_S = 5
TOLD = "The person interrupted your previous turn"
STAYING = ("sleep 60.25", "sleep 61.25", "sleep 62.25")
LEAVES_THINGS_BEHIND = """\
setsid nohup sleep 61.25 >/dev/null 2>&1 &
env -i setsid nohup bash -c 'trap "" TERM INT HUP; sleep 62.25' >/dev/null 2>&1 &
trap '' INT TERM
echo running > ready
sleep 60.25
"""
"""One that detached itself, one that also dropped its environment and is deaf, and a deaf shell waiting for 60 s."""


@pytest.mark.parametrize(
    "stopped,kept",
    [
        (reply("Never sent.", before=(hold("here"),)), ""),
        (reply(deltas=["Half an ", "answer", hold("here"), " and the rest."]), "Half an answer"),
        (reply(deltas=["I write. "], calls=[call("write_file", ['{"path": "a', hold("here"), '.txt"}'])]), "I write. "),
    ],
    ids=["before the first byte", "in its text", "in a tool call"],
)
def test_while_the_model_streams(meet: Introduction, run: tuple[str, ...], stopped: Reply, kept: str) -> None:
    person = meet(lambda request: reply("Back.") if TOLD in str(request.messages) else stopped)
    with person.starts(*run, "talk") as process:
        meet.server.reached("here", PATIENCE_S)
        _interrupt(person, process)
    said = [body["text"] for body in _recorded(person, "message.assistant")]
    assert said == ([kept] if kept else [])
    assert all(body["complete"] is False for body in _recorded(person, "message.assistant"))
    assert not list(person.project.iterdir())
    assert kept in _goes_on(meet, person)


def test_while_a_command_sleeps_that_left_others_behind(meet: Introduction, run: tuple[str, ...]) -> None:
    person = meet([reply(calls=[call("bash", {"command": LEAVES_THINGS_BEHIND})]), reply("Back.")])
    os.mkfifo(person.project / "ready")
    ready = os.open(person.project / "ready", os.O_RDONLY | os.O_NONBLOCK)
    with person.starts(*run, "--mode", "yolo", "sleep") as process:
        assert select([ready], [], [], PATIENCE_S)[0]
        os.close(ready)
        _until_all_stay(person)
        _interrupt(person, process)
    assert person.alive(*STAYING) == []
    assert [body["status"] for body in _recorded(person, "tool.result")] == ["interrupted"]
    assert "sleep 60.25" in _goes_on(meet, person)


def test_while_two_commands_run_and_a_third_waits(meet: Introduction, run: tuple[str, ...]) -> None:
    """Parallel calls of one reply: each gets exactly one result, and the one that never ran is not said to have."""
    calls = [call("bash", {"command": f"echo {n} >> ready; sleep 6{n}.75"}) for n in range(3)]
    person = meet([reply(calls=calls), reply("Back.")])
    os.mkfifo(person.project / "ready")
    ready = os.open(person.project / "ready", os.O_RDONLY | os.O_NONBLOCK)
    with person.starts(*run, "--mode", "yolo", "sleep") as process:
        assert select([ready], [], [], PATIENCE_S)[0]
        os.close(ready)
        _interrupt(person, process)
    assert person.alive(*(f"sleep 6{n}.75" for n in range(3))) == []
    uses = [body["call_id"] for body in _recorded(person, "tool.use")]
    results = {body["call_id"]: body["status"] for body in _recorded(person, "tool.result")}
    assert sorted(results) == sorted(uses)
    assert set(results.values()) == {"interrupted"}
    _goes_on(meet, person)
    answered = {answer.call_id for answer in meet.asked()[-1].tool_results}
    assert len(answered) == len(uses) == 3


def test_while_a_permission_is_pending(meet: Introduction, run: tuple[str, ...]) -> None:
    person = meet([reply(calls=[call("write_file", {"path": "note.txt", "content": "x\n"})]), reply("Back.")])
    with person.sits_at(*run, "write") as terminal:
        terminal.until("n: deny > ")
        pressed_at_ms = _now_ms()
        terminal.presses_ctrl_c()
        assert terminal.ends().code == 130
    _is_idle(person, pressed_at_ms)
    assert not list(person.project.iterdir())
    [decided] = _recorded(person, "permission.decided")
    assert (decided["decision"]["type"], decided["by"]) == ("expired", "expiry")
    assert "write note.txt" in _goes_on(meet, person)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, None], ids=["SIGTERM", "SIGHUP", "Ctrl-C twice"])
def test_leaving_at_once_leaves_no_command_behind_either(
    meet: Introduction, run: tuple[str, ...], number: signal.Signals | None
) -> None:
    person = meet([reply(calls=[call("bash", {"command": LEAVES_THINGS_BEHIND})]), reply("Back.")])
    os.mkfifo(person.project / "ready")
    ready = os.open(person.project / "ready", os.O_RDONLY | os.O_NONBLOCK)
    with person.sits_at(*run, "--mode", "yolo", "sleep") as terminal:
        assert select([ready], [], [], PATIENCE_S)[0]
        os.close(ready)
        _until_all_stay(person)
        sent_at = time.monotonic()
        if number is None:
            terminal.presses_ctrl_c()
            terminal.until("Ctrl-C again leaves")
            terminal.presses_ctrl_c()
        else:
            terminal.gets(number)
        code = terminal.ends().code
        assert time.monotonic() - sent_at < GONE_WITHIN_S
    assert code == (130 if number is None else 128 + number)
    if "--no-hub" not in run:  # leaving is bounded; the hub ends what it has begun to end
        _until_none_stays(person)
    assert person.alive(*STAYING) == []
    assert [body["status"] for body in _recorded(person, "tool.result")] in ([], ["interrupted"])
    again = person.runs(*run, "--session", person.session_id(), "are you there?")
    assert (again.code, again.out) == (0, "Back.\n"), again.err
    [result] = _recorded(person, "tool.result")
    assert result["status"] in ("interrupted", "unknown")


def _until_all_stay(person: Person) -> None:
    """They did start, so that their end means something. That a detached program runs can only be seen by looking."""
    deadline = time.monotonic() + PATIENCE_S
    while not set(STAYING) <= set(person.alive(*STAYING)):
        assert time.monotonic() < deadline, person.alive(*STAYING)
        time.sleep(0.02)


def _until_none_stays(person: Person) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while person.alive(*STAYING) and time.monotonic() < deadline:
        time.sleep(0.02)


def _interrupt(person: Person, process: "subprocess.Popen[bytes]") -> None:
    """Send SIGINT and see that it holds."""
    sent_at_ms, sent_at = _now_ms(), time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    took_s = time.monotonic() - sent_at
    assert (process.returncode, b"interrupted" in err) == (130, True), err
    assert took_s < GONE_WITHIN_S
    _is_idle(person, sent_at_ms)


def _is_idle(person: Person, since_ms: float) -> None:
    [ended] = [event for event in _events(person) if event["body"]["type"] == "turn.completed"]
    assert ended["body"]["stop"] == "interrupted"
    assert -5 <= ended["at_ms"] - since_ms < IDLE_WITHIN_MS
    assert person.newest_session()["state"] == "idle"
    assert person.alive() == []


def _goes_on(meet: Introduction, person: Person) -> str:
    """Use the session again; returns the texts of the request the model got, in which the interrupt is told."""
    again = person.runs("run", "--session", person.session_id(), "are you there?")
    assert (again.code, again.out) == (0, "Back.\n"), again.err
    request = meet.asked()[-1]
    assert request.last_user_text.endswith("are you there?")
    [told] = [text for text in request.user_texts if TOLD in text]
    assert person.runs("sessions", "check").code == 0
    return f"{told}\n{request.messages}"


def _events(person: Person) -> list[dict[str, Any]]:
    return person.runs("sessions", "events", person.session_id()).events


def _recorded(person: Person, tag: str) -> list[dict[str, Any]]:
    return person.runs("sessions", "events", person.session_id()).bodies(tag)


def _now_ms() -> float:
    return time.time() * 1000
