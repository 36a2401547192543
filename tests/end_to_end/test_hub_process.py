"""The hub as a process: started by whoever needs it, one per profile, ended when nobody does.

Rule: real processes, each profile fresh, and what is claimed of a process is read from the operating system.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S, Person, hub_status, one_line, until
from enginehouse.connecting import connected
from enginehouse.hub_place import hub_place
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import EnginehouseError
from enginehouse_protocol.hub import CreateSession, Launch, SendMessage, SetSession
from enginehouse_protocol.ids import EngineName, SessionId, new_session_id
from enginehouse_protocol.local_socket import status
from enginehouse_protocol.settings import SessionSettings
from model_server import hold, reply

CLIENTS = 12
RACES = int(os.environ.get("ENGINEHOUSE_TEST_RACES", "50"))
GIVEN = {
    "HOME",
    "LANG",
    "PATH",
    "ENGINEHOUSE_PROFILE",
    *(f"XDG_{n}_HOME" for n in ("DATA", "CACHE", "STATE", "CONFIG")),
}
HELLO = ("run", "hello")


@pytest.fixture
def person(meet: Introduction) -> Person:
    """Somebody whose model always answers the same."""
    return meet(reply("Hi."))


def test_the_first_command_starts_it_the_next_ones_share_it_and_stop_ends_it(person: Person) -> None:
    assert (person.runs("hub", "status").code, person.hubs()) == (3, [])
    assert not person.profile.exists()
    assert person.runs(*HELLO).code == 0
    [hub] = person.hubs()
    told = hub_status(person)
    assert (told["running"], told["pid"], told["answers"], told["idle"]) == (True, hub.pid, True, True)
    assert (told["sessions"], told["waiting"], told["problem"]) == ([], [], None)
    assert f"process {hub.pid}" in person.runs("hub", "status").out
    assert person.runs(*HELLO).code == 0
    assert person.hubs() == [hub]
    assert (
        f"process {hub.pid}"
        in person.runs(
            "doctor",
        ).out
    )
    second = person.runs("hub", "serve")
    assert (second.code, f"already running as process {hub.pid}" in second.err) == (75, True)

    assert person.runs("hub", "stop").code == 0
    assert person.runs("hub", "status").code == 3
    until(lambda: person.hubs() == [])
    again = person.runs("hub", "stop")
    assert (again.code, "no hub runs" in again.err) == (0, True)
    assert len(person.runs("sessions", "list", "--json").out.splitlines()) == 2


def test_twelve_clients_at_once_have_one_hub(person: Person) -> None:
    clients = [
        subprocess.Popen(
            [sys.executable, "-m", "enginehouse", *HELLO],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=person.project,
            env=person.environment,
        )
        for _ in range(CLIENTS)
    ]
    ended = [(each.communicate(timeout=PATIENCE_S), each.returncode) for each in clients]
    assert [code for _, code in ended] == [0] * CLIENTS, ended
    assert len(person.hubs()) == 1
    assert person.runs("hub", "logs", "-n", "1000").out.count(" serves ") == 1
    assert len(person.runs("sessions", "list", "--json").out.splitlines()) == CLIENTS


async def _create(person: Person, session_id: SessionId, created: list[SessionId]) -> None:
    try:
        async with connected(Folders.of(person.environment), person.environment, can_answer=False) as hub:
            info = await hub.sessions_create(
                CreateSession(
                    engine=EngineName("rehearsal"),
                    directory=str(person.project),
                    settings=SessionSettings(),
                    launch=Launch(),
                    session_id=session_id,
                )
            )
            await hub.sessions_set(SetSession(session_id=info.id, title="made"))
            created.append(info.id)
    except* EnginehouseError:
        pass  # it was told that the hub ends, or that it dies too often: no session is promised


async def _disturb(person: Person, dice: random.Random) -> None:
    await anyio.sleep(dice.uniform(0, 0.6))
    if dice.random() < 0.3:
        await anyio.run_process([sys.executable, "-m", "enginehouse", "hub", "stop"], env=person.environment)
    for each in await anyio.to_thread.run_sync(person.hubs):
        with suppress(psutil.NoSuchProcess):
            victim = each.parent() if dice.random() < 0.3 else each
            if victim is not None and dice.random() < 0.8:
                victim.kill()


def test_whatever_starts_stops_and_kills_it_no_session_is_lost_and_nobody_writes_beside_another(
    person: Person,
) -> None:
    dice = random.Random(7)
    tried: set[SessionId] = set()
    created: list[SessionId] = []

    async def race() -> None:
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    session_id = new_session_id()
                    tried.add(session_id)
                    tasks.start_soon(_create, person, session_id, created)
                tasks.start_soon(_disturb, person, dice)

    for _ in range(RACES):
        anyio.run(race)
    person.ends_hubs()
    listed = [info["id"] for info in person.runs("sessions", "list", "--json").events]
    assert len(created) >= RACES
    assert len(set(created)) == len(created)
    assert set(created) <= set(listed) <= tried
    found = person.runs("sessions", "check", "--json").events
    assert {damage["kind"] for each in found for damage in each["damage"]} <= {"torn_tail"}  # what a kill may cut off
    assert person.runs("sessions", "check", "--repair").code == 0
    archive = Archive(Folders.of(person.environment).transcripts)
    for session_id in created:
        lines = archive.lines_after(session_id, 0)
        seqs, bodies = zip(*((event["seq"], event["body"]) for event in map(json.loads, lines)), strict=True)
        assert seqs == tuple(range(1, len(seqs) + 1))
        assert [body["type"] for body in bodies].count("session.created") == 1
        assert "made" in [body.get("title") for body in bodies]


def test_it_ends_by_itself_when_nobody_needs_it_and_not_while_a_turn_runs(meet: Introduction) -> None:
    person = meet(reply(deltas=["Half ", hold("middle"), "whole."]))
    folders = Folders.of(person.environment)
    with person.starts("hub", "serve", "--idle-after", "2") as serving:
        until(lambda: anyio.run(status, hub_place(folders)) is not None)  # a command may start slower than it ends

        async def send_and_leave() -> SessionId:
            launch = Launch(secrets={"K": "sk-end-to-end-0123456789"}, key="K", provider=_provider(person))
            async with connected(folders, person.environment, can_answer=False) as hub:
                create = CreateSession(
                    engine=EngineName("openai_compatible"),
                    directory=str(person.project),
                    settings=SessionSettings(),
                    launch=launch,
                )
                info = await hub.sessions_create(create)
                await hub.sessions_send(SendMessage(session_id=info.id, content=(Text(text="talk"),), launch=launch))
            return info.id

        session_id = anyio.run(send_and_leave)
        meet.server.reached("middle", PATIENCE_S)
        with pytest.raises(subprocess.TimeoutExpired):
            serving.wait(4)  # twice its patience
        told = hub_status(person)
        assert (told["idle"], [each["id"] for each in told["sessions"]]) == (False, [session_id])
        meet.server.release("middle")
        assert serving.wait(PATIENCE_S) == 0
    assert person.runs("hub", "status").code == 3
    assert person.runs("sessions", "show", session_id).out.count("Half whole.") == 1


def test_stop_interrupts_what_runs_and_the_client_hears_that_the_hub_ends(meet: Introduction) -> None:
    person = meet(reply(deltas=["Half ", hold("middle"), "whole."]))
    with person.starts("run", "talk") as client:
        meet.server.reached("middle", PATIENCE_S)
        assert person.runs("hub", "stop").code == 0
        out, err = client.communicate(timeout=PATIENCE_S)
    assert (client.returncode, out) == (1, b""), err
    assert b"ended" in err
    assert b"Traceback" not in err
    assert person.hubs() == []  # told that it ends, the client starts no other
    assert [body["stop"] for body in _events(person, "turn.completed")] == ["interrupted"]


def test_a_killed_hub_is_started_again_by_the_client_that_needs_it(meet: Introduction) -> None:
    person = meet(reply("Hi."))
    assert person.runs("run", "hello").code == 0
    [first] = person.hubs()
    first.parent().kill()  # pyright: ignore[reportOptionalMemberAccess]
    first.kill()
    assert (person.profile / "run" / "hub.sock").exists()  # what it left is no hindrance
    assert person.runs("run", "-c", "again").out == "Hi.\n"
    [second] = person.hubs()
    assert second != first


def test_nothing_of_the_person_is_in_its_environment_its_command_line_or_what_it_prints(meet: Introduction) -> None:
    person = meet(reply("Hi."))
    secret, proxy = "sk-planted-0123456789abcdef", "http://someone:planted-password@proxy.invalid:1"
    also = {"OPENAI_API_KEY": secret, "NO_PROXY": "*", "HTTPS_PROXY": proxy, "VIRTUAL_ENV": "/venv", "PYTHONPATH": "/p"}
    also |= {"LC_TOKEN": "planted-lc-token", "PATH": f"{person.home}/bin:{person.environment['PATH']}"}
    assert person.runs("run", "hello", also=also).out == "Hi.\n"
    [hub] = person.hubs()
    keeper = hub.parent()
    assert keeper is not None
    for process in (hub, keeper):
        environment = (Path("/proc") / str(process.pid) / "environ").read_bytes()
        names = {line.partition(b"=")[0].decode() for line in environment.split(b"\0") if line}
        assert names - GIVEN <= {"LC_CTYPE"}  # which Python may add by itself
        assert str(person.home / "bin").encode() not in environment
        assert process.cmdline()[1:] == ["-P", "-m", "enginehouse", "hub", "serve"]
    place = hub_place(Folders.of(person.environment))
    printed = person.runs("hub", "logs", "-n", "1000")
    kept = b"".join(path.read_bytes() for path in person.home.rglob("*") if path.is_file())
    for planted in (secret, "planted-password", "planted-lc-token"):
        assert planted not in printed.out
        assert planted.encode() not in kept
    assert place.log.stat().st_mode & 0o777 == 0o600
    assert place.folder.stat().st_mode & 0o777 == 0o700


def test_two_shells_that_differ_in_everything_meet_at_one_hub(meet: Introduction) -> None:
    person = meet(reply("Hi."))
    one, two = (person.home / name for name in ("run-1", "run-2"))
    for each in (one, two):
        each.mkdir(mode=0o700)
    assert person.runs("run", "hello", also={"XDG_RUNTIME_DIR": str(one), "LANG": "C"}).code == 0
    hubs = person.hubs()
    also = {"XDG_RUNTIME_DIR": str(two), "TMPDIR": str(two), "OPENAI_API_KEY": "sk-another-0123456789"}
    assert person.runs("run", "hello", also=also, cwd=person.home).code == 0
    assert person.hubs() == hubs
    keys = [request.headers["authorization"] for request in meet.asked()]
    assert keys == ["Bearer sk-end-to-end-0123456789", "Bearer sk-another-0123456789"]


def test_a_profile_in_use_without_a_hub_is_said_in_one_line_and_the_other_way_round(meet: Introduction) -> None:
    person = meet([reply(deltas=["Half ", hold("middle"), "whole."]), reply("Hi.")])
    with person.starts("run", "--no-hub", "talk") as alone:
        meet.server.reached("middle", PATIENCE_S)
        for arguments in (("run", "hello"), ("sessions", "rename", person.session_id(), "A title")):
            one_line(person.runs(*arguments), 2, f"in use by `enginehouse run` (pid {_program(alone.pid)}")
        by_hand = person.runs("hub", "serve")
        one_line(by_hand, 2, "in use by `enginehouse run` (pid ")
        meet.server.release("middle")
        assert alone.wait(PATIENCE_S) == 0
    assert person.runs("run", "hello").out == "Half whole.\n"
    [hub] = person.hubs()
    held = f"in use by `enginehouse hub serve` (pid {hub.pid}"
    for arguments, ending in (
        (("run", "--no-hub", "hello"), "stop it with `enginehouse hub stop`, or leave out --no-hub"),
        (("sessions", "check", "--repair"), "stop it with `enginehouse hub stop`"),
    ):
        refused = person.runs(*arguments)
        one_line(refused, 2, held)
        assert refused.err.rstrip().endswith(ending)
    assert person.runs("hub", "stop").code == 0
    assert person.runs("run", "--no-hub", "-c", "hello").out == "Hi.\n"
    assert person.hubs() == []


# --- its end and its logs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(person: Person, number: signal.Signals) -> None:
    with person.starts("hub", "serve") as serving:
        until(lambda: person.runs("hub", "status").code == 0)
        serving.send_signal(number)
        _, err = serving.communicate(timeout=PATIENCE_S)
    assert (serving.returncode, err) == (0, b"")
    assert sorted(path.name for path in (person.profile / "run").iterdir()) == ["hub.lock"]


def test_a_hub_that_does_not_answer_is_named_and_not_waited_for_without_end(person: Person) -> None:
    assert person.runs(*HELLO).code == 0
    [hub] = person.hubs()
    hub.suspend()
    try:
        told = hub_status(person)
        assert (told["running"], told["answers"], told["idle"]) == (True, False, None)
        assert "does not answer" in person.runs("hub", "status").out
    finally:
        hub.resume()


def test_logs_show_what_it_wrote_and_follow_what_it_writes(person: Person) -> None:
    nothing = person.runs("hub", "logs")
    assert (nothing.code, nothing.out) == (0, "")
    assert person.runs(*HELLO).code == 0
    shown = person.runs("hub", "logs")
    assert f"serves {person.profile}" in shown.out
    assert "enginehouse.log" in shown.err
    assert person.runs("hub", "logs", "-n", "0").out == ""
    with person.starts("hub", "logs", "-n", "0", "--follow") as following:
        assert following.stderr is not None
        assert following.stdout is not None
        while b"enginehouse.log" not in following.stderr.readline():
            pass
        assert person.runs("hub", "stop").code == 0
        assert b"hub ended: asked" in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE_S) == 130


def test_it_starts_from_anywhere_and_outlives_the_directory_it_was_started_in(person: Person) -> None:
    doomed = person.home / "doomed"
    doomed.mkdir()
    (doomed / "enginehouse.py").write_text("raise SystemExit('imported from the current directory')\n")
    assert person.runs(*HELLO, cwd=doomed).code == 0
    [hub] = person.hubs()
    assert hub.cwd() == "/"
    shutil.rmtree(doomed)
    assert person.runs(*HELLO).code == 0


def _events(person: Person, tag: str) -> list[dict[str, Any]]:
    return person.runs("sessions", "events", person.session_id()).bodies(tag)


def _program(pid: int) -> int:
    """The process a keeper keeps."""
    [program] = psutil.Process(pid).children()
    return program.pid


def _provider(person: Person) -> Provider:
    return Provider(name="environment", base_url=person.environment["OPENAI_BASE_URL"])
