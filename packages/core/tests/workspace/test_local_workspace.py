"""The whole workspace: it satisfies the contract, and commands start only where the fence allows."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from enginehouse_core.masking import Masker
from enginehouse_core.workspace.local import LocalWorkspace
from enginehouse_protocol.errors import FileUnusable, PathRefused
from enginehouse_protocol.workspace import CommandResult, OnOutput, Root, Workspace

pytestmark = pytest.mark.anyio

DONE = CommandResult(output=b"", dropped_bytes=0, exit_code=0, signal=None, ended="exited", duration_ms=1)


class NotingRunner:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str, float]] = []

    async def run(
        self,
        command: str,
        *,
        cwd: str,
        time_limit_s: float,
        on_output: OnOutput | None = None,
        on_start: Callable[[], None] | None = None,
        keep: bool = True,
    ) -> CommandResult:
        self.calls.append((command, cwd, time_limit_s))
        if on_output is not None:
            await on_output(b"output")
        return DONE


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[tuple[LocalWorkspace, NotingRunner, Path]]:
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "project" / "out").symlink_to(tmp_path)
    (tmp_path / "project" / "file").touch()
    (tmp_path / "alias").symlink_to("project")
    runner = NotingRunner()
    async with LocalWorkspace(
        (Root(path=str(tmp_path / "alias")),), runner, scratch=str(tmp_path / "scratch")
    ) as workspace:
        yield workspace, runner, tmp_path


async def test_it_is_a_workspace(made: tuple[LocalWorkspace, NotingRunner, Path]) -> None:
    workspace: Workspace = made[0]
    await workspace.write("a", b"needle")
    (hit,) = (await workspace.search("needle", limit=1)).hits
    assert (await workspace.read(hit.path, max_bytes=10)).data == b"needle"


async def test_a_command_starts_in_the_real_folder_the_fence_found(
    made: tuple[LocalWorkspace, NotingRunner, Path],
) -> None:
    workspace, runner, base = made
    seen: list[bytes] = []

    async def listen(data: bytes) -> None:
        seen.append(data)

    assert await workspace.run("true", time_limit_s=1, on_output=listen) == DONE
    await workspace.run("true", cwd="sub/", time_limit_s=2)
    await workspace.run("true", cwd=f"{base}/scratch", time_limit_s=3)
    assert runner.calls == [
        ("true", f"{base}/project", 1),
        ("true", f"{base}/project/sub", 2),
        ("true", f"{base}/scratch", 3),
    ]
    assert seen == [b"output"]


async def test_a_command_does_not_start_outside_or_nowhere(made: tuple[LocalWorkspace, NotingRunner, Path]) -> None:
    workspace, runner, base = made
    for cwd, error in (
        ("..", PathRefused),
        ("out", PathRefused),
        (str(base), PathRefused),
        ("file", FileUnusable),
        ("absent", FileUnusable),
    ):
        with pytest.raises(error):
            await workspace.run("true", cwd=cwd, time_limit_s=1)
    assert runner.calls == []


async def test_nothing_secret_is_kept_in_the_scratch_folder_and_the_project_s_files_are_as_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "project").mkdir()
    masker = Masker({"KEY": "sk-0123456789abcdef"})
    said = b"the key is sk-0123456789abcdef\n"
    root = Root(path=str(tmp_path / "project"))
    scratch = str(tmp_path / "scratch")
    async with LocalWorkspace((root,), NotingRunner(), scratch=scratch, masked=masker.bytes_) as workspace:
        await workspace.write(f"{scratch}/output.txt", said)
        await workspace.write("own.txt", said)
    kept = (tmp_path / "scratch" / "output.txt").read_bytes()
    assert kept == f"the key is {masker.masks['KEY']}\n".encode()
    assert (tmp_path / "project" / "own.txt").read_bytes() == said
