"""Commands run, tell what they write, and leave nothing behind. Real shells, real processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import psutil
import pytest

from enginehouse_core.workspace import process_tree
from enginehouse_core.workspace.environment import command_environment
from enginehouse_core.workspace.runner import KEPT_HEAD_BYTES, KEPT_TAIL_BYTES, ProcessRunner
from enginehouse_protocol.errors import CommandRefused, FileUnusable
from enginehouse_protocol.ids import new_session_id
from enginehouse_protocol.workspace import CommandResult, OnOutput

pytestmark = pytest.mark.anyio

INTERRUPT_S = 2.0


class Room:
    """A runner with a folder to work in, and what the system says about the processes of its session."""

    def __init__(self, folder: Path) -> None:
        self.session_id = new_session_id()
        self.folder = folder / "project"
        self.folder.mkdir()
        self.records = folder / "run" / "processes"
        self.runner = ProcessRunner(self.session_id, command_environment(os.environ), self.records)

    async def run(self, command: str, *, limit_s: float = 20.0, on_output: OnOutput | None = None) -> CommandResult:
        return await self.runner.run(command, cwd=str(self.folder), time_limit_s=limit_s, on_output=on_output)

    def alive(self) -> list[int]:
        """By psutil, not by the code under test."""
        found: list[int] = []
        for one in psutil.process_iter():
            try:
                if one.environ().get("ENGINEHOUSE_SESSION") == self.session_id:
                    found.append(one.pid)
            except psutil.Error:
                continue
        return found

    async def until(self, name: str) -> str:
        """What a command wrote into a file of the folder, as soon as it is there."""
        with anyio.fail_after(10):
            while not (content := self._content(name)).endswith("\n"):  # noqa: ASYNC110 - a file has no event
                await anyio.sleep(0.005)
        return content.strip()

    def _content(self, name: str) -> str:
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return ""


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def parts(result: CommandResult) -> tuple[bytes, int | None, int | None, str]:
    return result.output, result.exit_code, result.signal, result.ended


@pytest.mark.parametrize(
    "command, expected",
    [
        ("echo hello", (b"hello\n", 0, None, "exited")),
        ("exit 3", (b"", 3, None, "exited")),
        ("no-such-command-at-all 2>/dev/null", (b"", 127, None, "exited")),
        ("exit 130", (b"", 130, None, "exited")),
        ("exit 143", (b"", 143, None, "exited")),
        ("kill -TERM $$", (b"", None, signal.SIGTERM, "exited")),
        ("kill -KILL $$", (b"", None, signal.SIGKILL, "exited")),
        ("{ (kill -TERM $BASHPID); } 2>/dev/null; exit $?", (b"", 143, None, "exited")),
        ("cat; echo end", (b"end\n", 0, None, "exited")),  # stdin is empty, not ours
        ("tty || true", (b"not a tty\n", 0, None, "exited")),
    ],
)
async def test_a_result_tells_an_exit_code_from_a_signal(
    room: Room, command: str, expected: tuple[bytes, int | None, int | None, str]
) -> None:
    assert parts(await room.run(command)) == expected


async def test_stdout_and_stderr_keep_their_order(room: Room) -> None:
    result = await room.run("for i in {1..200}; do echo o$i; echo e$i >&2; done")
    assert result.output == b"".join(b"o%d\ne%d\n" % (i, i) for i in range(1, 201))


async def test_a_command_gets_its_environment_and_the_markers_and_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    runner = ProcessRunner("s_1", {"PATH": "/usr/bin:/bin", "GREETING": "hello"}, tmp_path / "records")
    result = await runner.run("exec env", cwd=str(tmp_path), time_limit_s=10)
    names = {line.partition("=")[0] for line in result.output.decode().splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "GREETING", "ENGINEHOUSE_SESSION", "ENGINEHOUSE_COMMAND"}


async def test_it_runs_in_the_folder_it_is_given(room: Room) -> None:
    assert (await room.run("pwd -P")).output.decode() == f"{room.folder.resolve()}\n"


async def test_nothing_of_ours_is_open_in_a_command(room: Room) -> None:
    secret = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        assert (await room.run("for f in /proc/$$/fd/*; do readlink $f; done")).output.count(b"/dev/zero") == 0
    finally:
        os.close(secret)


# Output


async def test_chunks_never_cut_a_character_and_lose_nothing(room: Room) -> None:
    heard: list[bytes] = []

    async def on_output(data: bytes) -> None:
        heard.append(data)

    slow = r"for b in '\xe2' '\x80' '\x94' '\xf0' '\x9f' '\x92' '\xa9' 'a' '\xff' 'b'; do printf $b; sleep 0.02; done"
    result = await room.run(f"{slow}; {slow} >&2; printf '\\xe2\\x80'", on_output=on_output)
    assert result.output == ("—💩a".encode() + b"\xffb") * 2 + b"\xe2\x80"
    assert b"".join(heard) == result.output
    assert len(heard) > 4
    assert "".join(part.decode(errors="replace") for part in heard) == "—💩a\ufffdb" * 2 + "\ufffd"


async def test_what_was_there_at_once_arrives_in_few_chunks(room: Room) -> None:
    sizes: list[int] = []

    async def on_output(data: bytes) -> None:
        sizes.append(len(data))

    await room.run("head -c 1000000 /dev/zero", on_output=on_output)
    assert sum(sizes) == 1_000_000
    assert len(sizes) < 100
    assert max(sizes) <= 512 * 1024


async def test_of_much_output_head_and_tail_are_kept(room: Room) -> None:
    result = await room.run("printf BEGIN; head -c 20000000 /dev/zero | tr '\\0' x; printf END")
    assert len(result.output) == KEPT_HEAD_BYTES + KEPT_TAIL_BYTES
    assert result.dropped_bytes == 20_000_008 - KEPT_HEAD_BYTES - KEPT_TAIL_BYTES
    assert result.output.startswith(b"BEGINxxx")
    assert result.output.endswith(b"xxxEND")


async def test_output_without_end_costs_no_memory_and_ends_with_the_limit(room: Room) -> None:
    before = psutil.Process().memory_info().rss
    highest = 0

    async def on_output(data: bytes) -> None:
        nonlocal highest
        highest = max(highest, psutil.Process().memory_info().rss)
        await anyio.lowlevel.checkpoint()

    result = await room.run("yes", limit_s=1.0, on_output=on_output)
    assert result.ended == "timed_out"
    assert result.dropped_bytes > 0
    assert highest - before < 80 * 1024 * 1024
    assert room.alive() == []


async def test_a_slow_listener_slows_the_command_instead_of_filling_memory(room: Room) -> None:
    go_on = anyio.Event()
    heard = 0

    async def on_output(data: bytes) -> None:
        nonlocal heard
        heard += len(data)
        await go_on.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: room.run("head -c 3000000 /dev/zero; echo x > done", on_output=on_output))
        with anyio.move_on_after(0.5):
            await room.until("done")
        assert not (room.folder / "done").exists()
        assert heard <= 512 * 1024
        go_on.set()
        await room.until("done")
    assert heard == 3_000_000


async def test_a_listener_that_fails_ends_the_command_with_its_own_error(room: Room) -> None:
    async def on_output(data: bytes) -> None:
        raise FileUnusable("transcript", "full")

    with anyio.fail_after(INTERRUPT_S), pytest.raises(FileUnusable):
        await room.run("echo hello; sleep 300", on_output=on_output)
    assert room.alive() == []


# Nothing is left

HIDING_PLACES = {
    "in the background": "sleep 300 &",
    "with our pipe": "sleep 300 & sleep 300 & disown -a; true",
    "in a session of its own": "setsid nohup sleep 300 >/dev/null 2>&1 &",
    "an orphan in a session of its own": "(setsid nohup sleep 300 >/dev/null 2>&1 &)",
    "deaf to SIGTERM": "(setsid bash -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' &)",
    "stopped": "(setsid bash -c 'kill -STOP $$; sleep 300' &)",
    "forking": "(setsid bash -c 'for i in {1..100}; do (setsid sleep 300 &); done; sleep 300' &)",
    "running on from one to the next": "printf %s 'n=$1; [ $n -lt 2000 ] && { setsid bash chain $((n+1)) & }' > chain\n"
    "setsid bash chain 0 &",
}


@pytest.mark.parametrize("hiding", HIDING_PLACES)
async def test_what_a_finished_command_left_running_is_dead_when_it_returns(room: Room, hiding: str) -> None:
    with anyio.fail_after(5):
        result = await room.run(HIDING_PLACES[hiding] + "\necho $$")
    assert result.exit_code == 0
    assert room.alive() == []
    assert list(room.records.iterdir()) == []


@pytest.mark.parametrize("hiding", HIDING_PLACES)
async def test_a_cancelled_command_is_dead_within_two_seconds_with_all_it_started(room: Room, hiding: str) -> None:
    begin = 0.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(room.run, f"{HIDING_PLACES[hiding]}\necho up > up; sleep 300; touch never")
        await room.until("up")
        assert len(room.alive()) >= 2
        begin = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - begin < INTERRUPT_S
    assert room.alive() == []
    assert list(room.records.iterdir()) == []


async def test_a_command_that_sheds_its_marker_is_found_by_descent(room: Room) -> None:
    hidden = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(room.run, "env -i /bin/sh -c 'setsid sh -c \"echo \\$\\$ > up; exec sleep 300\"'")
        hidden = int(await room.until("up"))
        assert not gone(hidden)
        tasks.cancel_scope.cancel()
    assert gone(hidden)


async def test_an_orphan_without_marker_is_found_by_its_group(room: Room) -> None:
    result = await room.run("(env -i /bin/sh -c 'echo $$ > up; exec sleep 300' &); until [ -s up ]; do :; done; cat up")
    assert gone(int(result.output))


async def test_a_side_effect_after_the_interrupt_never_happens(room: Room) -> None:
    with anyio.move_on_after(0.3):
        await room.run("sleep 1; touch never")
    await anyio.sleep(1.0)
    assert not (room.folder / "never").exists()


async def test_a_command_past_its_time_limit_is_ended_and_says_what_it_wrote(room: Room) -> None:
    with anyio.fail_after(5):
        result = await room.run("echo before; (setsid sleep 300 &); sleep 300", limit_s=0.3)
    assert parts(result) == (b"before\n", None, signal.SIGTERM, "timed_out")
    assert room.alive() == []


async def test_a_command_may_clean_up_when_it_is_ended(room: Room) -> None:
    result = await room.run("trap 'echo cleaned; exit 9' TERM; echo up; sleep 300 & wait", limit_s=0.3)
    assert parts(result) == (b"up\ncleaned\n", 9, None, "timed_out")


async def test_the_end_of_one_command_does_not_touch_another_of_the_session(room: Room) -> None:
    results: dict[str, CommandResult] = {}
    hidden = 0

    async def run(name: str, command: str) -> None:
        results[name] = await room.run(command)

    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, "long", "(setsid sleep 300 & echo $! > hidden); echo up > up; read < gate; echo ok")
            os.mkfifo(room.folder / "gate")
            await room.until("up")
            hidden = int(await room.until("hidden"))
            await run("short", "sleep 300 & echo short")
            assert not gone(hidden)
            await anyio.to_thread.run_sync((room.folder / "gate").write_text, "go\n")
    assert gone(hidden)
    assert {name: parts(result) for name, result in results.items()} == {
        "short": (b"short\n", 0, None, "exited"),
        "long": (b"ok\n", 0, None, "exited"),
    }


async def test_many_commands_side_by_side_are_all_cancelled_in_time(room: Room) -> None:
    begin = 0.0
    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(room.run, f"(setsid sleep 300 &); echo up > up{number}; sleep 300")
        for number in range(12):
            await room.until(f"up{number}")
        begin = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - begin < INTERRUPT_S
    assert room.alive() == []


async def test_the_processes_of_a_session_are_found_by_its_marker(room: Room) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(room.run, "(setsid sleep 300 & echo $! > hidden); sleep 300")
        hidden = int(await room.until("hidden"))
        assert hidden in [one.pid for one in process_tree.of_session(room.session_id)]
        assert process_tree.of_session("s_another") == []
        tasks.cancel_scope.cancel()
    assert process_tree.of_session(room.session_id) == []


# What cannot be started


async def test_a_missing_folder_and_a_file_are_no_place_to_run(room: Room) -> None:
    (room.folder / "file").write_text("")
    for name, reason in (("gone", "no such folder"), ("file", "not a folder")):
        with pytest.raises(FileUnusable, match=reason):
            await room.runner.run("true", cwd=str(room.folder / name), time_limit_s=5)
    assert list(room.records.iterdir()) == []


@pytest.mark.parametrize(
    "command, message",
    [("echo a\0b", "cannot be passed"), ("echo \ud800", "cannot be passed"), ("x" * 200_000, "too long")],
)
async def test_what_the_system_cannot_start_is_refused_with_the_reason(room: Room, command: str, message: str) -> None:
    with pytest.raises(CommandRefused, match=message):
        await room.run(command)
    assert list(room.records.iterdir()) == []


async def test_a_records_folder_that_cannot_be_written_does_not_stop_commands(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    runner = ProcessRunner("s_1", {"PATH": "/usr/bin:/bin"}, tmp_path / "file" / "records")
    assert (await runner.run("echo ok", cwd=str(tmp_path), time_limit_s=10)).output == b"ok\n"


# With the keeper


KEPT = """
from enginehouse_core import keeper
keeper.keep()
import anyio, json, os, sys
from pathlib import Path
import psutil
from enginehouse_core.workspace.environment import command_environment
from enginehouse_core.workspace.runner import ProcessRunner

async def main():
    folder = Path(sys.argv[1])
    runner = ProcessRunner("s_kept", command_environment(os.environ), folder / "records")
    for _ in range(5):
        command = "(sleep 0.01 &); (sleep 300 &); (setsid sleep 300 &); sleep 0.05"
        await runner.run(command, cwd=str(folder), time_limit_s=9)
    print(json.dumps([(one.pid, one.status()) for one in psutil.Process().children(recursive=True)]), flush=True)
    async with anyio.create_task_group() as tasks:
        for command in sys.argv[2:]:
            tasks.start_soon(lambda command=command: runner.run(command, cwd=str(folder), time_limit_s=300))
        print(await anyio.to_thread.run_sync(sys.stdin.readline))

anyio.run(main)
"""


def kept(folder: Path, *commands: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KEPT), str(folder), *commands],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


async def test_orphans_that_came_to_the_program_are_reaped(tmp_path: Path) -> None:
    with kept(tmp_path) as process:
        output, _ = await anyio.to_thread.run_sync(lambda: process.communicate(b"\n", timeout=20))
    assert json.loads(output.splitlines()[0]) == []


@pytest.mark.parametrize("victim", ["keeper", "program"])
async def test_commands_die_with_the_keeper_and_with_the_program(room: Room, victim: str) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux lets a process adopt orphans")
    commands = [f"{hiding}\necho up > up{n}; sleep 300" for n, hiding in enumerate(HIDING_PLACES.values())]
    with kept(room.folder, *commands) as process:
        for number in range(len(commands)):
            await room.until(f"up{number}")
        room.session_id = "s_kept"  # type: ignore[assignment]
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) > 2 * len(commands)
        (process if victim == "keeper" else family[0]).kill()
        with anyio.fail_after(INTERRUPT_S):
            while not all(gone(one.pid) for one in family):  # noqa: ASYNC110 - the end of a stranger has no event
                await anyio.sleep(0.01)
        assert room.alive() == []
        assert process.wait(5) == -signal.SIGKILL
