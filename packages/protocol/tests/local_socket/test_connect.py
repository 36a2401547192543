"""The client's side, against real processes: start, restart, replace, and give up with a message that helps."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from enginehouse_protocol.errors import AccessRefused, ServiceUnavailable, VersionMismatch
from enginehouse_protocol.local_socket import (
    ALREADY_RUNNING_EXIT,
    Edition,
    Launch,
    Place,
    Span,
    ask_to_stop,
    connect,
    holder_of,
    status,
)

from .conftest import HERE, OURS, Ask, Launches, Reach, Serving, gone

pytestmark = pytest.mark.anyio

RACES = 50
RACES_MAX_S = 40.0


def test_twelve_client_processes_that_start_at_once_share_one_service(place: Place, launch: Launches) -> None:
    made = launch(place)()
    options = {
        "folder": str(place.folder),
        "name": "echo",
        "argv": list(made.argv),
        "environment": dict(made.environment),
    }
    clients = [
        subprocess.Popen(
            [sys.executable, str(HERE / "echo_client.py"), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(12)
    ]
    try:
        pids = [client.stdout.readline().strip() for client in clients if client.stdout]
        holder = holder_of(place)
        assert holder is not None
        assert pids == [str(holder.pid)] * 12
    finally:
        for client in clients:
            client.communicate(timeout=20)
    assert [client.returncode for client in clients] == [0] * 12
    assert place.log.read_text().count("hello from the service") == 1  # the others waited, they did not start one each


async def test_a_started_service_gets_what_it_was_given_and_nothing_else(
    place: Place, launch: Launches, reach: Reach, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    monkeypatch.setenv("SOME_API_KEY", "secret-of-this-shell")
    with anyio.fail_after(30):
        async with reach(place, start=launch(place)) as connection:
            told = await ask(connection, "self")
            token = place.token.read_text().strip()
            process = Path(f"/proc/{connection.pid}")
            assert token.encode() not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            assert token not in place.log.read_text()
            assert set(told.pop("environment")) <= {"PATH", "LANG", "LC_CTYPE"}
            log = str(place.log)
            assert told == {"stdin": "/dev/null", "stdout": log, "stderr": log, "leads_session": True, "cwd": "/"}
            assert place.log.stat().st_mode & 0o777 == 0o600
            assert await ask(connection, "guest") == {"pid": os.getpid(), "protocol": 3, "version": "1.2.0"}


async def test_a_killed_service_is_noticed_at_once_and_started_again(
    place: Place, launch: Launches, reach: Reach, ask: Ask
) -> None:
    with anyio.fail_after(30):
        async with reach(place, start=launch(place)) as first:
            os.kill(first.pid, signal.SIGKILL)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await first.stream.receive()
        assert place.socket.exists()  # stale, and harmless
        async with reach(place, start=launch(place)) as second:
            assert second.pid != first.pid
            assert await ask(second, "still there?") == "still there?"


async def test_what_a_killed_service_had_started_does_not_keep_the_next_one_out(
    place: Place, launch: Launches, reach: Reach, ask: Ask
) -> None:
    with anyio.fail_after(30):
        async with reach(place, start=launch(place)) as first:
            child = await ask(first, "child")
        try:
            os.kill(first.pid, signal.SIGKILL)
            async with reach(place, start=launch(place)) as second:
                assert second.pid != first.pid
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


async def test_fifty_races_of_start_stop_and_kill_never_make_two_services(
    place: Place, launch: Launches, reach: Reach, tmp_path: Path
) -> None:
    dice = random.Random(20)  # the choices repeat, their timing does not
    start = launch(place)
    pids: set[int] = set()

    async def come_and_go(delay_s: float) -> None:
        await anyio.sleep(delay_s)
        async with reach(place, start=start, deadline_s=60) as connection:
            pids.add(connection.pid)

    async def end_it(delay_s: float, how: str) -> None:
        await anyio.sleep(delay_s)
        holder = holder_of(place)
        if holder is None or holder.pid is None:
            return
        if how == "ask":
            with anyio.move_on_after(20):
                await ask_to_stop(place)
            return
        try:
            os.kill(holder.pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)
        except ProcessLookupError:
            pass  # it was faster

    made = start()
    rude: list[int | None] = []

    async def start_rudely() -> None:
        """As no client would: without asking whether there is one, or one on its way."""
        rude.append(None)
        ended = await anyio.run_process(made.argv, env=dict(made.environment), check=False, stderr=None)
        rude.remove(None)
        rude.append(ended.returncode)

    async def one_round(whole: TaskGroup) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(come_and_go, dice.random() * 0.05)
            whole.start_soon(start_rudely)
            tasks.start_soon(end_it, dice.random() * 0.3, dice.choice(["ask", "kill", "terminate"]))

    began, rounds = time.monotonic(), 0
    async with anyio.create_task_group() as whole:
        while rounds < RACES and time.monotonic() - began < RACES_MAX_S:
            with anyio.fail_after(70):
                await one_round(whole)
            rounds += 1
        with anyio.fail_after(30):
            while None in rude or holder_of(place):
                await end_it(0.05, "terminate")
    assert not (tmp_path / "violations").exists()
    assert (rounds >= 10, len(pids) >= 5) == (True, True)
    assert ALREADY_RUNNING_EXIT in rude  # some did run into the lock
    for pid in pids:
        await gone(pid)


async def test_a_client_that_comes_while_an_idle_service_leaves_is_served(
    place: Place, launch: Launches, reach: Reach, ask: Ask
) -> None:
    idle_after_s = 0.1
    pids: set[int] = set()
    for attempt in range(12):
        with anyio.fail_after(30):
            async with reach(place, start=launch(place, idle_after_s=idle_after_s)) as connection:
                assert await ask(connection, "race") == "race"
                pids.add(connection.pid)
        await anyio.sleep(idle_after_s + (attempt - 6) * 0.004)  # the moment under test
    assert len(pids) > 1


async def test_a_terminated_service_cleans_up(place: Place, launch: Launches, reach: Reach) -> None:
    with anyio.fail_after(30):
        async with reach(place, start=launch(place)) as connection:
            os.kill(connection.pid, signal.SIGTERM)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await connection.stream.receive()
        await gone(connection.pid)  # also: it is reaped, though this client goes on
    assert sorted(file.name for file in place.folder.iterdir()) == ["echo.lock", "echo.log", "echo.starting"]
    assert "ended: signal" in place.log.read_text()


async def test_a_service_that_fails_at_its_start_is_reported_at_once_with_its_last_words(
    place: Place, launch: Launches
) -> None:
    place.check()
    place.log.write_text("words of last week\n")
    began = time.monotonic()
    with anyio.fail_after(30), pytest.raises(ServiceUnavailable) as failed:
        await connect(place, OURS, start=launch(place, exits=3, says="the disk is made of cheese"), deadline_s=25)
    assert time.monotonic() - began < 15
    assert failed.value.log_tail == "the disk is made of cheese"
    assert "ended with status 3" in str(failed.value)
    assert str(place.log) in str(failed.value)


async def test_a_service_that_does_not_come_up_in_time_is_reported_with_its_last_words(
    place: Place, launch: Launches
) -> None:
    with anyio.fail_after(30), pytest.raises(ServiceUnavailable) as failed:
        await connect(place, OURS, start=launch(place, hangs=True, says="thinking"), deadline_s=2)
    assert "did not come up within 2 s" in str(failed.value)
    assert failed.value.log_tail == "thinking"
    started = int(str(failed.value).partition("as process ")[2].split()[0])
    os.kill(started, signal.SIGKILL)
    await gone(started)


async def test_a_program_that_is_not_there_is_reported(place: Place) -> None:
    with anyio.fail_after(10), pytest.raises(ServiceUnavailable, match=r"cannot start echo \(`/no/such/program`\)"):
        await connect(place, OURS, start=lambda: Launch(["/no/such/program"], {}))


async def test_one_that_found_another_running_is_no_failure(place: Place, serving: Serving) -> None:
    place.check()
    late = [sys.executable, "-c", f"raise SystemExit({ALREADY_RUNNING_EXIT})"]
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:

            async def be_reached() -> None:
                connection = await connect(place, OURS, start=lambda: Launch(late, {}))
                await connection.stream.aclose()

            tasks.start_soon(be_reached)
            await anyio.sleep(0.5)  # long enough for the late one to have ended and to have been looked at
            assert place.log.exists()
            async with serving(place, idle_after_s=0.5) as served:
                await served.ended.wait()


async def test_without_a_way_to_start_it_a_missing_service_is_reported_at_once(place: Place) -> None:
    with anyio.fail_after(5), pytest.raises(ServiceUnavailable, match=f"echo is not running in {place.folder}"):
        await connect(place, OURS, start=None)
    assert not place.folder.exists()


async def test_a_stopped_service_is_reported_with_its_pid_and_not_replaced(
    place: Place, launch: Launches, reach: Reach
) -> None:
    with anyio.fail_after(30):
        async with reach(place, start=launch(place)) as connection:
            os.kill(connection.pid, signal.SIGSTOP)
            try:
                with pytest.raises(ServiceUnavailable, match=f"runs as process {connection.pid} but did not answer"):
                    await connect(place, OURS, start=launch(place), deadline_s=1)
            finally:
                os.kill(connection.pid, signal.SIGCONT)
        async with reach(place, start=None) as again:
            assert again.pid == connection.pid


async def test_cancelling_leaves_nothing_open(place: Place) -> None:
    place.check()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(place.socket))
        deaf.listen()
        place.token.touch(mode=0o600)
        place.token.write_text("0" * 64)
        with anyio.move_on_after(0.2) as given_up:
            await connect(place, OURS, start=None)
    assert given_up.cancelled_caught  # an unclosed socket would be a warning, and so an error


@pytest.mark.parametrize("damage", ["link", "mode", "text"])
async def test_a_token_that_is_not_a_private_file_of_ours_is_refused(
    place: Place, serving: Serving, tmp_path: Path, damage: str
) -> None:
    async with serving(place):
        if damage == "link":
            shutil.copy(place.token, tmp_path / "copy")
            place.token.unlink()
            place.token.symlink_to(tmp_path / "copy")
        elif damage == "mode":
            place.token.chmod(0o644)
        else:
            place.token.write_text("short")
        with anyio.fail_after(5), pytest.raises(AccessRefused, match=r"echo\.token: .*; stop the service"):
            await connect(place, OURS, start=None)


async def test_a_wrong_token_is_an_error_at_once(place: Place, serving: Serving) -> None:
    async with serving(place):
        place.token.write_text("0" * 64)
        with anyio.fail_after(5), pytest.raises(AccessRefused, match="the token is not the one"):
            await connect(place, OURS, start=None)


@pytest.mark.parametrize("damage", ["link", "mode"])
async def test_a_folder_that_is_not_private_is_refused_before_anything_is_started(
    place: Place, launch: Launches, tmp_path: Path, damage: str
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if damage == "link":
        place.folder.symlink_to(tmp_path / "elsewhere")
    else:
        place.folder.mkdir()
        place.folder.chmod(0o777)
    with anyio.fail_after(5), pytest.raises(AccessRefused, match=r"symbolic link|other users may write"):
        await connect(place, OURS, start=launch(place))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    if damage == "link":
        place.folder.unlink()


async def test_what_answers_in_another_language_is_reported(place: Place) -> None:
    place.check()
    place.token.touch(mode=0o600)
    place.token.write_text("0" * 64)
    listener = await anyio.create_unix_listener(place.socket)

    async def answer(stream: Any) -> None:
        async with stream:
            await stream.send(b"220 mail.example ready\n")

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        with anyio.fail_after(5), pytest.raises(ServiceUnavailable, match="is not echo"):
            await connect(place, OURS, start=None)
        tasks.cancel_scope.cancel()


OLDER = {"version": "1.1.9"}


@pytest.mark.parametrize(
    "older", [OLDER, {"protocol": [0, 0]}, {"version": "1.2.0+other"}], ids=["version", "protocol", "build"]
)
async def test_an_older_idle_service_is_replaced(
    place: Place, launch: Launches, reach: Reach, older: dict[str, Any]
) -> None:
    old = Edition(
        version=older.get("version", "1.2.0"), protocol=Span(min=0, max=0) if "protocol" in older else OURS.protocol
    )
    with anyio.fail_after(30):
        async with reach(place, old, start=launch(place, **older)) as first:
            pass
        async with reach(place, start=launch(place)) as second:
            assert (second.version, second.pid != first.pid) == ("1.2.0", True)
        await gone(first.pid)


@pytest.mark.parametrize("use", ["a client", "work"])
async def test_an_older_service_in_use_is_left_alone_and_that_is_said(
    place: Place, launch: Launches, reach: Reach, ask: Ask, use: str
) -> None:
    old = Edition(version="1.1.9", protocol=OURS.protocol)
    named = Place(place.folder, "echo", stop_hint="echo stop")
    with anyio.fail_after(30):
        async with reach(place, old, start=launch(place, **OLDER)) as first:
            if use == "work":
                await ask(first, "busy")
                await first.stream.aclose()
            with pytest.raises(VersionMismatch) as refused:
                await connect(named, OURS, start=launch(place))
        assert str(refused.value) == (
            f"echo runs as version 1.1.9 (protocol 1 to 3, process {first.pid}), "
            "this is version 1.2.0 (protocol 1 to 3); "
            "it is in use: let it finish, or stop it with `echo stop` and try again"
        )
        found = await status(place)
        assert found is not None
        assert found.pid == first.pid


async def test_a_newer_service_is_never_replaced(place: Place, launch: Launches, serving: Serving) -> None:
    newer = Edition(version="1.3.0", protocol=Span(min=1, max=4))
    async with serving(place, edition=newer) as served:
        with anyio.fail_after(5), pytest.raises(VersionMismatch, match="it is newer: update this program") as refused:
            await connect(place, OURS, start=launch(place))
        assert (refused.value.running, refused.value.ours, refused.value.pid) == ("1.3.0", "1.2.0", os.getpid())
        assert served.ending is None


async def test_a_client_that_takes_any_version_only_needs_a_common_protocol(
    place: Place, serving: Serving, reach: Reach
) -> None:
    async with serving(place, edition=Edition(version="1.3.0", protocol=Span(min=2, max=4))):
        with anyio.fail_after(5):
            async with reach(place, exact_version=False) as connection:
                assert (connection.version, connection.protocol) == ("1.3.0", 3)


async def test_a_program_that_starts_the_wrong_version_does_not_replace_for_ever(
    place: Place, launch: Launches
) -> None:
    old = launch(place, **OLDER)
    with anyio.fail_after(30), pytest.raises(VersionMismatch, match=r"runs as version 1\.1\.9"):
        await connect(place, OURS, start=old)
    assert place.log.read_text().count("hello from the service") == 2
