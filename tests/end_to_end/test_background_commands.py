"""Commands in the background, from start to finish: read, stopped, ended by Ctrl-C and with the hub, and never left
behind."""

import re
import signal
import subprocess

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S
from model_server import ChatRequest, call, hold, reply
from model_server.script import Answer

STAYING = ("sleep 71.25", "sleep 72.25")
SERVER = "(trap '' TERM; exec sleep 72.25) & echo listening; sleep 71.25"
_NAME = re.compile(r"Started in the background as (bg_\w+)\.")


def test_it_is_started_read_and_stopped_by_its_name(meet: Introduction, run: tuple[str, ...]) -> None:
    def script(request: ChatRequest) -> Answer:
        match [result.text for result in request.tool_results]:
            case []:
                return reply(calls=[call("bash", {"command": SERVER, "background": True})])
            case [started]:
                return reply(calls=[call("bash_output", {"id": _name(started)})])
            case [started, _]:
                return reply(calls=[call("bash_stop", {"id": _name(started)})])
            case _:
                return reply("Done.")

    person = meet(script)
    ended = person.runs(*run, "--mode", "yolo", "serve")
    assert (ended.code, ended.out) == (0, "Done.\n"), ended.err
    started, read, stopped = [result.text for result in meet.asked()[-1].tool_results]
    assert started == f"Started in the background as {_name(started)}.\nlistening\n[still running]"
    assert read == "[no new output]\n[still running]"
    assert stopped == "[no new output]\n[stopped]"
    assert person.alive(*STAYING) == []


def test_ctrl_c_ends_it_and_the_next_turn_hears_how(meet: Introduction) -> None:
    """Through the hub, where the session goes on: nothing that runs in the background outlives an interrupt."""

    def script(request: ChatRequest) -> Answer:
        match [result.text for result in request.tool_results]:
            case []:
                return reply(calls=[call("bash", {"command": SERVER, "background": True})])
            case [started] if request.last_user_text.endswith("and now?"):
                return reply(calls=[call("bash_output", {"id": _name(started)})])
            case [_]:
                return reply("Never sent.", before=(hold("here"),))
            case _:
                return reply("Gone.")

    person = meet(script)
    with person.starts("run", "--mode", "yolo", "serve") as process:
        meet.server.reached("here", PATIENCE_S)
        assert set(STAYING) <= set(person.alive(*STAYING))
        _interrupt(process)
    assert person.alive(*STAYING) == []
    again = person.runs("run", "--session", person.session_id(), "and now?")
    assert (again.code, again.out) == (0, "Gone.\n"), again.err
    last = meet.asked()[-1].tool_results[-1].text
    assert "[ended by signal" in last or "there are none" in last


def test_it_does_not_outlive_a_run_without_a_hub(meet: Introduction) -> None:
    person = meet([reply(calls=[call("bash", {"command": SERVER, "background": True})]), reply("Left running.")])
    ended = person.runs("run", "--no-hub", "--mode", "yolo", "serve")
    assert (ended.code, ended.out) == (0, "Left running.\n"), ended.err
    assert person.alive(*STAYING) == []


def test_it_does_not_outlive_the_hub(meet: Introduction) -> None:
    person = meet([reply(calls=[call("bash", {"command": SERVER, "background": True})]), reply("Left running.")])
    ended = person.runs("run", "--mode", "yolo", "serve")
    assert (ended.code, ended.out) == (0, "Left running.\n"), ended.err
    assert sorted(person.alive(*STAYING)) == sorted(STAYING)
    person.ends_hubs()
    assert person.alive(*STAYING) == []


def _name(started: str) -> str:
    found = _NAME.match(started)
    assert found is not None, started
    return found[1]


def _interrupt(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, b"interrupted" in err) == (130, True), err
