"""The temporary workspace touches real files and ends real commands."""

import gc
import hashlib
import os
from pathlib import Path

import anyio
import pytest

from enginehouse_protocol.errors import CommandRefused, FileUnusable, PathRefused, UsageError
from enginehouse_protocol.testing import TempWorkspace

pytestmark = pytest.mark.anyio


@pytest.fixture
def workspace(tmp_path: Path) -> TempWorkspace:
    return TempWorkspace(tmp_path / "project")


async def test_files_are_written_read_listed_and_searched(workspace: TempWorkspace) -> None:
    written = await workspace.write("src/a.py", b"one\ntwo plums\n")
    content = await workspace.read("src/a.py", max_bytes=100)
    assert (written.size_bytes, content.data) == (14, b"one\ntwo plums\n")
    assert content.sha256 == hashlib.sha256(content.data).hexdigest()
    assert [(entry.name, entry.kind) for entry in await workspace.list(".", limit=9)] == [("src", "directory")]
    found = await workspace.search("pl.m", glob="*.py", limit=5)
    assert [(hit.path, hit.line_number, hit.line) for hit in found.hits] == [("src/a.py", 2, "two plums")]
    assert await workspace.stat("nothing") is None
    with pytest.raises(UsageError):
        await workspace.search("(", limit=1)


async def test_a_file_somebody_else_changed_is_not_overwritten(workspace: TempWorkspace) -> None:
    await workspace.write("a", b"mine")
    with pytest.raises(FileUnusable):
        await workspace.write("a", b"new", expected_sha256=hashlib.sha256(b"other").hexdigest())
    with pytest.raises(FileUnusable):
        await workspace.write("a", b"new", expected_sha256="")
    assert (await workspace.read("a", max_bytes=10)).data == b"mine"
    with pytest.raises(FileUnusable):
        await workspace.read("a", max_bytes=3)


async def test_what_is_outside_is_refused_and_the_scratch_folder_is_inside(workspace: TempWorkspace) -> None:
    (workspace.directory / "out").symlink_to("/etc")
    for path in ("../x", "/etc/hostname", "out/hostname"):
        with pytest.raises(PathRefused):
            await workspace.read(path, max_bytes=10)
    await workspace.write(f"{workspace.scratch}/note", b"x")
    absolute = str(workspace.directory / "src/a")
    assert workspace.display(absolute) == (await workspace.write(absolute, b"x")).path == "src/a"
    assert (await workspace.read(absolute, max_bytes=1)).path == "src/a"
    in_scratch = f"{workspace.scratch}/note"
    assert [hit.path for hit in (await workspace.search("x", path=in_scratch, limit=5)).hits] == [in_scratch]


async def test_what_no_system_call_takes_is_refused(workspace: TempWorkspace) -> None:
    with pytest.raises(CommandRefused):
        await workspace.run("echo \0", time_limit_s=5)
    with pytest.raises(PathRefused):
        await workspace.read("a\0b", max_bytes=10)


async def test_a_command_tells_how_it_ended(workspace: TempWorkspace) -> None:
    heard: list[bytes] = []

    async def hear(data: bytes) -> None:
        heard.append(data)

    with anyio.fail_after(10):
        done = await workspace.run("echo out; echo err >&2; exit 3", time_limit_s=5, on_output=hear)
        killed = await workspace.run("kill -9 $$", time_limit_s=5)
        late = await workspace.run("sleep 60", time_limit_s=0.1)
    assert (done.output, done.exit_code, done.ended) == (b"out\nerr\n", 3, "exited")
    assert b"".join(heard) == done.output
    assert (killed.exit_code, killed.signal) == (None, 9)
    assert late.ended == "timed_out"


async def test_a_file_is_moved_never_over_another_and_deleted(workspace: TempWorkspace) -> None:
    await workspace.write("a", b"mine")
    await workspace.write("b", b"theirs")
    with pytest.raises(FileUnusable):
        await workspace.move("a", "b")
    assert (await workspace.move("a", "new/c")).size_bytes == 4
    other = hashlib.sha256(b"other").hexdigest()
    for attempt in (workspace.delete("a"), workspace.delete("new"), workspace.delete("b", expected_sha256=other)):
        with pytest.raises(FileUnusable):
            await attempt
    for escape in (workspace.delete("../x"), workspace.move("b", "../x"), workspace.move("/etc/hostname", "x")):
        with pytest.raises(PathRefused):
            await escape
    await workspace.delete("b")
    assert (await workspace.find("*", limit=5)).paths == ("new/c",)


async def test_files_are_found_by_name(workspace: TempWorkspace) -> None:
    for name in ("a.py", "src/b.py", "src/c.txt"):
        await workspace.write(name, b"")
    found = await workspace.find("*.py", limit=5)
    assert (found.paths, found.truncated) == (("a.py", "src/b.py"), False)
    assert (await workspace.find("*.py", path="src", limit=5)).paths == ("src/b.py",)
    assert (await workspace.find("*", limit=1)).truncated


async def test_a_background_command_is_read_and_stopped(workspace: TempWorkspace) -> None:
    with anyio.fail_after(10):
        stopped = await workspace.start("echo begun; sleep 60 & sleep 60")
        begun = await stopped.read(wait_s=5)
        assert (begun.output, begun.ended) == (b"begun\n", None)
        assert (await stopped.read()).output == b""
        await stopped.stop()
        assert (await stopped.read()).ended == "stopped"
        failed = await workspace.start("exit 3")
        while (end := await failed.read(wait_s=5)).ended is None:
            pass
    assert (end.ended, end.exit_code) == ("exited", 3)
    assert workspace.background == (stopped, failed)
    with pytest.raises(CommandRefused):
        await workspace.start("echo \0")


async def test_what_runs_in_the_background_ends_with_the_workspace(tmp_path: Path) -> None:
    workspace = TempWorkspace(tmp_path / "project")
    with anyio.fail_after(10):
        command = await workspace.start("echo $$; sleep 60")
        pid = int((await command.read(wait_s=5)).output)
    del workspace
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
