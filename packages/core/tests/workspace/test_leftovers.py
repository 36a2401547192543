"""What a hub left behind that was killed together with its keeper is ended at the next start, and nothing else."""

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from enginehouse_core.workspace.leftovers import end_leftovers, new_record, remove_record, write_record

HUB = """
import anyio, sys
from pathlib import Path
from enginehouse_core.workspace.runner import ProcessRunner

async def main():
    folder = Path(sys.argv[1])
    runner = ProcessRunner("s_left", {"PATH": "/usr/bin:/bin"}, folder / "records")
    await runner.run(sys.argv[2], cwd=str(folder), time_limit_s=300, on_output=tell)

async def tell(data):
    print(data.decode(), end="", flush=True)

anyio.run(main)
"""


class Hub:
    """Runs one command without any keeper; killed, it leaves everything behind."""

    def __init__(self, folder: Path, command: str) -> None:
        self.records = folder / "records"
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HUB), str(folder), command], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.pids = [int(pid) for pid in self.process.stdout.readline().split()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def alive(self) -> list[int]:
        return [pid for pid in self.pids if alive(pid)]

    def end(self) -> None:
        self.kill()
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    command = 'sleep 300 & a=$!; (setsid sleep 300 & echo $! > "$PWD/b"); echo $$ $a $(cat b); sleep 300'
    running = Hub(tmp_path, command)
    yield running
    running.end()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as process:
        yield process
        process.kill()


def test_the_commands_of_a_dead_hub_are_ended_by_group_and_by_marker(hub: Hub) -> None:
    hub.kill()
    assert len(hub.alive()) == 3
    assert [record.session_id for record in end_leftovers(hub.records)] == ["s_left"]
    assert hub.alive() == []
    assert list(hub.records.iterdir()) == []
    assert end_leftovers(hub.records) == []


def test_the_commands_of_a_living_hub_are_its_own_business(hub: Hub) -> None:
    assert end_leftovers(hub.records) == []
    assert len(hub.alive()) == 3
    assert len(list(hub.records.iterdir())) == 1


def test_a_record_cut_off_while_it_was_written_still_finds_its_command(hub: Hub) -> None:
    hub.kill()
    (record,) = hub.records.iterdir()
    record.write_bytes(record.read_bytes()[:20])
    assert len(end_leftovers(hub.records)) == 1
    assert hub.alive() == []
    assert list(hub.records.iterdir()) == []


def record_about(folder: Path, pid: int, started: int, boot: str | None = None) -> None:
    """A record of a dead owner about a process that carries no marker."""
    record = new_record("s_1", uuid.uuid4().hex)
    record = msgspec.structs.replace(record, owner_pid=2**22 + 1, pid=pid, started=started, boot=boot or record.boot)
    write_record(folder, record)


def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    record_about(tmp_path, stranger.pid, 1)
    assert end_leftovers(tmp_path) == []
    assert stranger.poll() is None
    assert list(tmp_path.iterdir()) == []


def test_a_record_from_before_a_reboot_is_only_removed(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    started = int(Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19])
    record_about(tmp_path, stranger.pid, started, boot="another")
    assert end_leftovers(tmp_path) == []
    assert stranger.poll() is None
    record_about(tmp_path, stranger.pid, started)  # the same without the reboot
    assert len(end_leftovers(tmp_path)) == 1
    assert not alive(stranger.pid)


def test_a_file_that_is_no_record_is_left_alone_and_no_folder_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    assert end_leftovers(tmp_path) == []
    assert (tmp_path / "notes.json").exists()
    assert end_leftovers(tmp_path / "nothing here") == []
    remove_record(tmp_path / "nothing here", uuid.uuid4().hex)
