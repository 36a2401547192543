"""Taking a file away and giving it another name: what goes, what stays, what is refused."""

import errno
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_protocol.errors import FileUnusable, PathRefused
from enginehouse_protocol.workspace import Root

pytestmark = pytest.mark.anyio

ESCAPES = [
    "../outside.txt",
    "/etc/hostname",
    "link-out/outside.txt",
    "link-file",
    "src/../../outside.txt",
    "~/x",
    "a\0b",
    "a\nb",
    "\ud800",
    "",
    "src",
    "hard.txt",
    "pipe",
    ".git/config",
    "sub/.git/config",
    ".enginehouse/settings.toml",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    for folder in ("src", ".git", "sub/.git", ".enginehouse"):
        (project / folder).mkdir(parents=True)
    (tmp_path / "outside.txt").write_text("theirs")
    for inner in (".git/config", "sub/.git/config", ".enginehouse/settings.toml"):
        (project / inner).write_text("theirs")
    (project / "link-out").symlink_to(tmp_path)
    (project / "link-file").symlink_to(tmp_path / "outside.txt")
    os.link(tmp_path / "outside.txt", project / "hard.txt")
    os.mkfifo(project / "pipe")
    (project / "a.txt").write_text("mine")
    return project


@pytest.fixture
async def files(root: Path, tmp_path: Path) -> AsyncIterator[WorkspaceFiles]:
    async with WorkspaceFiles((Root(path=str(root)),), scratch=str(tmp_path / "scratch")) as opened:
        with anyio.fail_after(30):
            yield opened


def whole(base: Path) -> dict[str, Any]:
    """Everything there is, by name, with its kind and content."""
    found: dict[str, Any] = {}
    for path in sorted(base.rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        else:
            found[str(path)] = path.read_bytes() if path.is_file() else path.stat().st_mode
    return found


async def test_a_file_is_deleted_and_nothing_else(files: WorkspaceFiles, root: Path) -> None:
    (root / "src" / "only.txt").write_text("x")
    await files.delete("src/only.txt")
    assert (root / "src").is_dir()
    assert list((root / "src").iterdir()) == []
    with pytest.raises(FileUnusable, match="does not exist"):
        await files.delete("src/only.txt")


@pytest.mark.parametrize("path", ESCAPES)
async def test_nothing_outside_the_fence_is_deleted(
    files: WorkspaceFiles, root: Path, tmp_path: Path, path: str
) -> None:
    before = whole(tmp_path)
    with pytest.raises((PathRefused, FileUnusable)):
        await files.delete(path)
    assert whole(tmp_path) == before


@pytest.mark.parametrize("path", ESCAPES)
async def test_nothing_is_moved_out_of_the_fence_or_into_it(
    files: WorkspaceFiles, root: Path, tmp_path: Path, path: str
) -> None:
    before = whole(tmp_path)
    with pytest.raises((PathRefused, FileUnusable)):
        await files.move(path, "stolen.txt")
    with pytest.raises((PathRefused, FileUnusable)):
        await files.move("a.txt", path)
    assert whole(tmp_path) == before


async def test_a_file_is_moved_with_its_bits_and_the_folders_it_needs(files: WorkspaceFiles, root: Path) -> None:
    (root / "a.txt").chmod(0o750)
    moved = await files.move("a.txt", "new/deep/b.txt")
    assert (moved.path, moved.size_bytes) == ("new/deep/b.txt", 4)
    assert (root / "new/deep/b.txt").read_text() == "mine"
    assert (root / "new/deep/b.txt").stat().st_mode & 0o777 == 0o750
    assert (root / "new/deep/b.txt").stat().st_nlink == 1
    assert not (root / "a.txt").exists()


async def test_a_file_moves_between_the_project_and_the_scratch_folder(files: WorkspaceFiles, root: Path) -> None:
    moved = await files.move("a.txt", f"{files.scratch}/a.txt")
    assert Path(moved.path).read_text() == "mine"
    await files.move(moved.path, "back.txt")
    assert (root / "back.txt").read_text() == "mine"


@pytest.mark.parametrize("taken", ["src", "other.txt", "a.txt"])
async def test_nothing_is_moved_over_something(files: WorkspaceFiles, root: Path, taken: str) -> None:
    (root / "other.txt").write_text("theirs")
    with pytest.raises(FileUnusable, match=f"{taken}.*(exists already|folder)"):
        await files.move("a.txt", taken)
    assert (root / "a.txt").read_text() == "mine"
    assert (root / "other.txt").read_text() == "theirs"


async def test_a_name_taken_at_the_last_moment_stays_theirs(
    files: WorkspaceFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.link

    def late(*given: Any, **more: Any) -> None:
        (root / "b.txt").write_text("theirs")
        really(*given, **more)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(FileUnusable, match="exists already"):
        await files.move("a.txt", "b.txt")
    assert ((root / "a.txt").read_text(), (root / "b.txt").read_text()) == ("mine", "theirs")


async def test_a_file_swapped_for_a_link_at_the_last_moment_is_not_moved(
    files: WorkspaceFiles, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.link

    def late(*given: Any, **more: Any) -> None:
        (root / "a.txt").unlink()
        (root / "a.txt").symlink_to(tmp_path / "outside.txt")
        really(*given, **more)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(PathRefused, match="changed while"):
        await files.move("a.txt", "b.txt")
    assert not (root / "b.txt").is_symlink()
    assert not (root / "b.txt").exists()
    assert (tmp_path / "outside.txt").read_text() == "theirs"


async def test_a_file_system_without_links_still_moves(
    files: WorkspaceFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    await files.move("a.txt", "b.txt")
    assert (root / "b.txt").read_text() == "mine"


async def test_a_failed_move_leaves_no_folders_behind(files: WorkspaceFiles, root: Path) -> None:
    for given in ({"path": "missing.txt", "to": "new/deep/b.txt"}, {"path": "src", "to": "new/deep/c"}):
        with pytest.raises((FileUnusable, PathRefused)):
            await files.move(**given)
    assert not (root / "new").exists()


async def test_a_file_somebody_changed_is_neither_deleted_nor_moved(files: WorkspaceFiles, root: Path) -> None:
    other = hashlib.sha256(b"what I saw").hexdigest()
    with pytest.raises(FileUnusable, match="changed it meanwhile"):
        await files.delete("a.txt", expected_sha256=other)
    with pytest.raises(FileUnusable, match="changed it meanwhile"):
        await files.move("a.txt", "b.txt", expected_sha256=other)
    same = hashlib.sha256(b"mine").hexdigest()
    await files.move("a.txt", "b.txt", expected_sha256=same)
    await files.delete("b.txt", expected_sha256=same)
    assert not (root / "b.txt").exists()


async def test_a_read_only_file_stays(files: WorkspaceFiles, root: Path) -> None:
    (root / "a.txt").chmod(0o444)
    with pytest.raises(FileUnusable, match="read-only"):
        await files.delete("a.txt")
    with pytest.raises(FileUnusable, match="read-only"):
        await files.move("a.txt", "b.txt")
    assert (root / "a.txt").read_text() == "mine"
