"""Commands nobody waits for: read, stopped, and dead with their workspace."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import psutil
import pytest

from enginehouse_core.workspace import background, process_tree
from enginehouse_core.workspace.environment import command_environment
from enginehouse_core.workspace.local import LocalWorkspace
from enginehouse_core.workspace.runner import ProcessRunner
from enginehouse_protocol.errors import CommandRefused, EngineError, FileUnusable, PathRefused
from enginehouse_protocol.ids import new_session_id
from enginehouse_protocol.workspace import BackgroundCommand, CommandProgress, Root

pytestmark = pytest.mark.anyio


class Room:
    def __init__(self, folder: Path) -> None:
        self.session_id = new_session_id()
        self.folder = folder / "project"
        self.folder.mkdir()
        runner = ProcessRunner(self.session_id, command_environment(os.environ), folder / "records")
        self.workspace = LocalWorkspace(
            (Root(path=str(self.folder)),), runner, scratch=str(folder / "scratch"), search_deadline_s=5
        )

    def alive(self) -> list[int]:
        """By psutil, not by the code under test."""
        found: list[int] = []
        for one in psutil.process_iter():
            try:
                if one.environ().get("ENGINEHOUSE_SESSION") == self.session_id and one.status() != "zombie":
                    found.append(one.pid)
            except psutil.Error:
                continue
        return found


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(tmp_path)
    with anyio.fail_after(30):
        async with made.workspace:
            yield made
    assert made.alive() == []


async def until_ended(command: BackgroundCommand) -> CommandProgress:
    """Everything from now to the end, as one."""
    output = b""
    while True:
        progress = await command.read(wait_s=10)
        output += progress.output
        if progress.ended is not None:
            return CommandProgress(
                output=output,
                dropped_bytes=progress.dropped_bytes,
                ended=progress.ended,
                exit_code=progress.exit_code,
                signal=progress.signal,
            )


async def test_it_is_read_piece_by_piece_and_says_how_it_ended(room: Room) -> None:
    os.mkfifo(room.folder / "go")
    command = await room.workspace.start("echo one; cat go >/dev/null; echo two; exit 3")
    first = await command.read(wait_s=10)
    assert first == CommandProgress(output=b"one\n", dropped_bytes=0, ended=None)
    assert await command.read() == CommandProgress(output=b"", dropped_bytes=0, ended=None)
    await anyio.to_thread.run_sync((room.folder / "go").write_bytes, b"x")
    rest = await until_ended(command)
    assert (rest.output, rest.ended, rest.exit_code) == (b"two\n", "exited", 3)
    assert room.workspace.background == (command,)


async def test_a_wait_ends_without_news(room: Room) -> None:
    command = await room.workspace.start("sleep 60")
    assert (await command.read(wait_s=0.05)).ended is None


async def test_a_signal_from_outside_is_told_from_a_stop(room: Room) -> None:
    killed = await room.workspace.start("kill -KILL $$")
    stopped = await room.workspace.start("echo begun; sleep 60 & sleep 60")
    assert (await stopped.read(wait_s=10)).output == b"begun\n"
    await stopped.stop()
    await stopped.stop()
    done = await until_ended(killed)
    assert (done.ended, done.exit_code, done.signal) == ("exited", None, 9)
    assert (await stopped.read()).ended == "stopped"
    assert room.alive() == []


async def test_one_that_ignores_every_polite_signal_is_stopped_too(room: Room) -> None:
    command = await room.workspace.start(
        "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; sleep 60' & echo begun; while :; do sleep 1; done"
    )
    assert (await command.read(wait_s=10)).output == b"begun\n"
    with anyio.fail_after(2):
        await command.stop()
    assert room.alive() == []


async def test_leaving_the_workspace_ends_all_of_them(tmp_path: Path) -> None:
    room = Room(tmp_path)
    with anyio.fail_after(20):
        async with room.workspace as workspace:
            commands = [await workspace.start(f"echo {n}; sleep 60 & sleep 60") for n in range(3)]
            for command in commands:
                await command.read(wait_s=10)
            assert len(room.alive()) >= 6
    assert room.alive() == []
    assert [(await command.read()).ended for command in commands] == ["stopped"] * 3
    with pytest.raises((CommandRefused, FileUnusable)):
        await workspace.start("true")


async def test_an_error_on_its_way_out_stays_what_it_is(tmp_path: Path) -> None:
    room = Room(tmp_path)
    with anyio.fail_after(20), pytest.raises(EngineError, match="as raised"):
        async with room.workspace as workspace:
            await (await workspace.start("echo x; sleep 60")).read(wait_s=10)
            raise EngineError("as raised")
    assert room.alive() == []


async def test_cancelling_whoever_holds_the_workspace_ends_all_of_them(tmp_path: Path) -> None:
    room = Room(tmp_path)
    with anyio.fail_after(20):
        with anyio.CancelScope() as scope:
            async with room.workspace as workspace:
                await (await workspace.start("echo x; sleep 60")).read(wait_s=10)
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
    assert room.alive() == []


async def test_ending_a_sessions_commands_by_their_marker_ends_these(room: Room) -> None:
    """What an interrupt does from outside."""
    command = await room.workspace.start("echo begun; sleep 60")
    await command.read(wait_s=10)

    def end() -> None:
        process_tree.end(lambda: process_tree.of_session(room.session_id), grace_s=0.3, limit_s=1.3)

    await anyio.to_thread.run_sync(end)
    done = await until_ended(command)
    assert (done.ended, done.signal) == ("exited", 15)


async def test_of_a_flood_nobody_reads_the_end_is_kept(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "UNREAD_BYTES", 100_000)
    command = await room.workspace.start("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo end")
    assert isinstance(command, background.StartedCommand)
    await command.gone.wait()
    done = await command.read()
    assert len(done.output) == 100_000
    assert done.output.endswith(b"x\nend\n")
    assert done.dropped_bytes == 5_000_005 - 100_000


async def test_a_command_starts_where_the_fence_says(room: Room) -> None:
    (room.folder / "sub").mkdir()
    done = await until_ended(await room.workspace.start("pwd", cwd="sub"))
    assert done.output.decode().strip() == os.path.realpath(room.folder / "sub")
    for cwd in ("..", "/etc"):
        with pytest.raises(PathRefused):
            await room.workspace.start("true", cwd=cwd)


async def test_what_cannot_be_started_is_refused_and_not_listed(room: Room) -> None:
    for command in ("echo \0", "x" * 5_000_000):
        with pytest.raises(CommandRefused):
            await room.workspace.start(command)
    assert room.workspace.background == ()


async def test_so_many_run_at_once_and_no_more(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "AT_ONCE", 2)
    first = await room.workspace.start("sleep 60")
    await room.workspace.start("sleep 60")
    with pytest.raises(CommandRefused, match="2 commands run in the background"):
        await room.workspace.start("true")
    await first.stop()
    await until_ended(await room.workspace.start("true"))


async def test_the_last_of_what_has_ended_can_still_be_read(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "ENDED_KEPT", 2)
    commands = [await room.workspace.start(f"echo {n}") for n in range(3)]
    for command in commands:
        assert isinstance(command, background.StartedCommand)
        await command.gone.wait()
    last = await room.workspace.start("sleep 60")
    assert room.workspace.background == (*commands[1:], last)
    assert (await commands[1].read()).output == b"1\n"
    assert len({command.id for command in (*commands, last)}) == 4


async def test_one_whose_starter_is_cancelled_does_not_live_on(room: Room) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await room.workspace.start("sleep 60")
    assert scope.cancelled_caught
    await anyio.wait_all_tasks_blocked()
    for command in room.workspace.background:
        assert isinstance(command, background.StartedCommand)
        await command.gone.wait()
    assert room.alive() == []
