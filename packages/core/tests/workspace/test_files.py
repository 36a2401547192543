"""Reading, writing and listing inside the fence, on a real disk."""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from enginehouse_core.workspace.descriptors import FOLDER_FLAGS, is_stored
from enginehouse_core.workspace.fence import Anchor
from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_protocol.errors import FileUnusable, PathRefused, UsageError
from enginehouse_protocol.workspace import DirectoryEntry, FileContent, FileStat, Root

pytestmark = pytest.mark.anyio


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
async def files(root: Path, tmp_path: Path) -> AsyncIterator[WorkspaceFiles]:
    async with WorkspaceFiles((Root(path=str(root)),), scratch=str(tmp_path / "scratch")) as opened:
        yield opened


async def test_a_file_is_read_whole_with_its_digest_and_mode(files: WorkspaceFiles, root: Path) -> None:
    data = b"\xef\xbb\xbfone\r\ntwo\n\0\xff"
    (root / "a").write_bytes(data)
    (root / "a").chmod(0o750)
    assert await files.read("./a", max_bytes=len(data)) == FileContent(
        path="a", data=data, sha256=sha256(data), mode=0o750
    )
    with pytest.raises(FileUnusable, match=f"{len(data)} bytes, more than the {len(data) - 1}"):
        await files.read("a", max_bytes=len(data) - 1)


async def test_a_written_file_is_the_bytes_given_and_nothing_else(files: WorkspaceFiles, root: Path) -> None:
    """M01: endings, byte order mark and a missing last newline are the caller's."""
    data = b"\xef\xbb\xbfa\r\nb\nc\r\n\xb9\xfe no newline"
    written = await files.write("deep/er/f", data)
    assert (root / "deep" / "er" / "f").read_bytes() == data
    found = (root / "deep" / "er" / "f").stat()
    assert written == FileStat(
        path="deep/er/f", kind="file", size_bytes=len(data), modified_at_ms=found.st_mtime_ns // 1_000_000
    )
    assert await files.stat("deep/er/f") == written
    assert os.listdir(root / "deep" / "er") == ["f"]


@pytest.mark.parametrize("mode", [0o755, 0o640, 0o600, 0o666])
async def test_a_replaced_file_keeps_its_permission_bits(files: WorkspaceFiles, root: Path, mode: int) -> None:
    (root / "run.sh").write_bytes(b"old")
    (root / "run.sh").chmod(mode)
    await files.write("run.sh", b"new")
    assert (root / "run.sh").stat().st_mode & 0o7777 == mode


async def test_setuid_does_not_survive_a_write(files: WorkspaceFiles, root: Path) -> None:
    (root / "tool").write_bytes(b"old")
    (root / "tool").chmod(0o4755)
    await files.write("tool", b"new")
    assert (root / "tool").stat().st_mode & 0o7777 == 0o755


async def test_a_new_file_and_its_folders_follow_the_umask(files: WorkspaceFiles, root: Path) -> None:
    before = os.umask(0o027)
    try:
        await files.write("new/f", b"")
    finally:
        os.umask(before)
    assert (root / "new" / "f").stat().st_mode & 0o777 == 0o640
    assert (root / "new").stat().st_mode & 0o777 == 0o750


async def test_a_replaced_file_keeps_its_owner(files: WorkspaceFiles, root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    (root / "theirs").write_bytes(b"old")
    os.chown(root / "theirs", 1234, 4321)
    await files.write("theirs", b"new")
    found = (root / "theirs").stat()
    assert (found.st_uid, found.st_gid) == (1234, 4321)


async def test_a_read_only_file_is_not_replaced(files: WorkspaceFiles, root: Path) -> None:
    (root / "generated").write_bytes(b"old")
    (root / "generated").chmod(0o444)
    with pytest.raises(FileUnusable, match="read-only"):
        await files.write("generated", b"new")
    assert (root / "generated").read_bytes() == b"old"


async def test_a_file_somebody_changed_is_not_overwritten(files: WorkspaceFiles, root: Path) -> None:
    (root / "f").write_bytes(b"one")
    seen = await files.read("f", max_bytes=10)
    (root / "f").write_bytes(b"two")
    with pytest.raises(FileUnusable, match="changed it meanwhile"):
        await files.write("f", b"mine", expected_sha256=seen.sha256)
    assert (root / "f").read_bytes() == b"two"
    await files.write("f", b"mine", expected_sha256=sha256(b"two"))
    assert (root / "f").read_bytes() == b"mine"
    assert os.listdir(root) == ["f"]


async def test_a_file_expected_to_be_new_or_still_there_must_be(files: WorkspaceFiles, root: Path) -> None:
    await files.write("d/f", b"one", expected_sha256="")
    with pytest.raises(FileUnusable, match="exists already"):
        await files.write("d/f", b"two", expected_sha256="")
    with pytest.raises(FileUnusable, match="does not exist any more"):
        await files.write("d/gone", b"x", expected_sha256=sha256(b"x"))
    with pytest.raises(FileUnusable, match="there is no 'nowhere'"):
        await files.write("nowhere/gone", b"x", expected_sha256=sha256(b"x"))
    assert sorted(os.listdir(root)) == ["d"]
    assert (root / "d" / "f").read_bytes() == b"one"


async def test_of_many_writers_who_expect_the_same_content_one_wins(files: WorkspaceFiles, root: Path) -> None:
    (root / "f").write_bytes(b"base")
    lost: list[str] = []

    async def write(text: str) -> None:
        try:
            await files.write("f", text.encode(), expected_sha256=sha256(b"base"))
        except FileUnusable:
            lost.append(text)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(write, f"writer {number}")
    assert len(lost) == 19
    assert (root / "f").read_text() not in lost
    assert os.listdir(root) == ["f"]


async def test_hard_links_are_refused_and_their_other_name_stays(
    files: WorkspaceFiles, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    os.link(tmp_path / "outside", root / "hard")
    for attempt in (
        files.read("hard", max_bytes=100),
        files.write("hard", b"x"),
        files.search("s", path="hard", limit=1),
    ):
        with pytest.raises(PathRefused, match=r"hard link \(2 names\)"):
            await attempt
    assert (await files.search("secret", limit=5)).hits == ()
    assert (tmp_path / "outside").read_bytes() == b"secret"
    (tmp_path / "outside").unlink()
    assert (await files.read("hard", max_bytes=100)).data == b"secret"


async def test_links_are_refused_naming_the_link_and_where_it_leads(
    files: WorkspaceFiles, root: Path, tmp_path: Path
) -> None:
    """E01: folders that are links, `..` after them, dangling ones. Nothing appears outside."""
    out = tmp_path / "etc"
    out.mkdir()
    (root / "x").symlink_to(out)
    (root / "dangling").symlink_to(out / "absent")
    for path in ("x/y", "dangling"):
        with pytest.raises(PathRefused) as refusal:
            await files.write(path, b"!")
        assert str(out) in refusal.value.reason
    with pytest.raises(PathRefused, match=r"'\.\.'"):
        await files.write("x/../y", b"!")
    for attempt in (files.list("x", limit=5), files.stat("x"), files.stat("x/y"), files.search("a", path="x", limit=1)):
        with pytest.raises(PathRefused, match="'x' is a symbolic link"):
            await attempt
    assert os.listdir(out) == []


async def test_a_project_file_that_is_a_link_to_a_key_gives_nothing_away(
    files: WorkspaceFiles, root: Path, tmp_path: Path
) -> None:
    """E04."""
    (tmp_path / "id_rsa").write_bytes(b"PRIVATE KEY")
    (root / "AGENTS.md").symlink_to(tmp_path / "id_rsa")
    with pytest.raises(PathRefused, match=r"'AGENTS\.md' is a symbolic link"):
        await files.read("AGENTS.md", max_bytes=1000)
    assert (await files.search("PRIVATE", limit=5)).hits == ()


async def test_a_pipe_nobody_writes_to_does_not_hold_a_reader(files: WorkspaceFiles, root: Path) -> None:
    os.mkfifo(root / "pipe")
    with anyio.fail_after(5):
        with pytest.raises(PathRefused, match="named pipe"):
            await files.read("pipe", max_bytes=10)
        with pytest.raises(PathRefused, match="named pipe"):
            await files.write("pipe", b"x")
        stat = await files.stat("pipe")
        await files.search("x", limit=1)
    assert stat is not None
    assert stat.kind == "other"


async def test_stat_says_nothing_there_instead_of_failing(files: WorkspaceFiles, root: Path) -> None:
    (root / "f").write_bytes(b"12345")
    assert await files.stat("absent") is None
    assert await files.stat("absent/deeper") is None
    assert await files.stat("f/below-a-file") is None
    folder = await files.stat(".")
    assert folder is not None
    assert (folder.path, folder.kind) == (".", "directory")


async def test_a_folder_is_listed_by_name_with_kinds_and_a_limit(files: WorkspaceFiles, root: Path) -> None:
    (root / "b").write_bytes(b"123")
    (root / "a").mkdir()
    (root / ".git").mkdir()
    (root / "c").symlink_to("/etc")
    os.mkfifo(root / "d")
    os.mkdir(os.fsencode(root) + b"/e\xff")
    listed = await files.list(".", limit=10)
    assert listed == (
        DirectoryEntry(name=".git", kind="directory", size_bytes=0),
        DirectoryEntry(name="a", kind="directory", size_bytes=0),
        DirectoryEntry(name="b", kind="file", size_bytes=3),
        DirectoryEntry(name="c", kind="link", size_bytes=0),
        DirectoryEntry(name="d", kind="other", size_bytes=0),
        DirectoryEntry(name="e\ufffd", kind="directory", size_bytes=0),
    )
    assert await files.list("./", limit=2) == listed[:2]
    assert await files.list("a/", limit=2) == ()
    with pytest.raises(FileUnusable, match="'b' is a file, not a folder"):
        await files.list("b", limit=1)
    with pytest.raises(FileUnusable, match="there is no 'z'"):
        await files.list("z/y", limit=1)


async def test_many_listings_of_one_folder_at_once_are_each_complete(files: WorkspaceFiles, root: Path) -> None:
    """Descriptors that share a read position would each see a part."""
    for number in range(300):
        (root / f"{number:03}").touch()
    seen: list[int] = []

    async def one() -> None:
        seen.append(len(await files.list(".", limit=1000)))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for _ in range(16):
                group.start_soon(one)
    assert seen == [300] * 16


async def test_several_roots_and_the_scratch_folder_are_named_so_that_the_name_works_again(tmp_path: Path) -> None:
    for name in ("one", "two", "one/nested"):
        (tmp_path / name).mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "one")
    roots = tuple(Root(path=str(tmp_path / name)) for name in ("alias", "two"))
    async with WorkspaceFiles(roots, scratch=str(tmp_path / "scratch")) as files:
        assert files.roots == roots
        assert files.scratch == str(tmp_path / "scratch")
        assert (tmp_path / "scratch").stat().st_mode & 0o777 == 0o700
        for asked, shown in (
            ("a", "a"),
            (f"{tmp_path}/alias/a", "a"),
            (f"{tmp_path}/one/a", "a"),
            (f"{tmp_path}/two/a", f"{tmp_path}/two/a"),
            (f"{tmp_path}/scratch/a", f"{tmp_path}/scratch/a"),
        ):
            assert (await files.write(asked, asked.encode())).path == shown
            assert files.display(asked) == shown
            assert (await files.read(shown, max_bytes=1000)).data == asked.encode()
        (hit,) = (await files.search("two", path=f"{tmp_path}/two", limit=5)).hits
        assert (await files.read(hit.path, max_bytes=1000)).data == hit.line.encode()
        assert files.display(".") == files.display(f"{tmp_path}/one/") == "."
        assert files.display("src/../../etc") == f"{tmp_path}/etc"
        assert files.display("/etc//./passwd") == "/etc/passwd"
        assert files.display("a\ud800") == "a?"


async def test_display_needs_no_disk(tmp_path: Path) -> None:
    files = WorkspaceFiles((Root(path="/nowhere/project"),), scratch="/nowhere/scratch")
    assert files.display("/nowhere/project/src/a.py") == "src/a.py"
    with pytest.raises(FileUnusable, match="'/nowhere/project': it does not exist"):
        async with files:
            pass


async def test_the_profile_is_closed_also_through_a_root_that_contains_it(tmp_path: Path) -> None:
    profile = tmp_path / "home" / "hub" / "profile"
    profile.mkdir(parents=True)
    (profile / "key").write_bytes(b"SECRET")
    (tmp_path / "door").symlink_to(tmp_path / "home" / "hub")
    async with WorkspaceFiles(
        (Root(path=str(tmp_path / "home")), Root(path=str(profile))),
        scratch=str(tmp_path / "scratch"),
        protected=(str(tmp_path / "door" / "profile"),),
    ) as files:
        for attempt in (
            files.read("hub/profile/key", max_bytes=10),
            files.write("hub/profile/new", b""),
            files.write(f"{profile}/new", b""),
            files.list("hub/profile", limit=5),
            files.search("S", path="hub/profile", limit=5),
            files.folder("hub/profile"),
        ):
            with pytest.raises(PathRefused, match="profile"):
                await attempt
        assert (await files.search("SECRET", limit=5)).hits == ()
        await files.write("hub/beside", b"fine")
    with pytest.raises(UsageError, match="scratch"):
        async with WorkspaceFiles(
            (Root(path=str(tmp_path / "home")),), scratch=str(profile / "scratch"), protected=(str(profile),)
        ):
            pass


async def test_a_profile_is_found_by_its_name_before_it_exists_and_by_its_identity_after_a_move(tmp_path: Path) -> None:
    (tmp_path / "home" / "hub").mkdir(parents=True)
    (tmp_path / "door").symlink_to(tmp_path / "home" / "hub")
    async with WorkspaceFiles(
        (Root(path=str(tmp_path / "home")),),
        scratch=str(tmp_path / "scratch"),
        protected=(str(tmp_path / "door" / "profile"),),
    ) as files:
        with pytest.raises(PathRefused, match="profile"):
            await files.write("hub/profile/settings.toml", b"")
        (tmp_path / "home" / "hub" / "profile").mkdir()
        (tmp_path / "home" / "hub").rename(tmp_path / "home" / "moved")
        (tmp_path / "door").unlink()
        (tmp_path / "door").symlink_to(tmp_path / "home" / "moved")
        for attempt in (
            files.write("moved/profile/settings.toml", b""),
            files.stat("moved/profile"),
            files.list("moved/profile", limit=1),
        ):
            with pytest.raises(PathRefused, match="profile"):
                await attempt


async def test_a_root_inside_a_repository_folder_can_be_read_but_not_written(tmp_path: Path) -> None:
    hooks = tmp_path / "repo" / ".git" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "sample").write_bytes(b"x")
    async with WorkspaceFiles((Root(path=str(hooks)),), scratch=str(tmp_path / "scratch")) as files:
        assert (await files.read("sample", max_bytes=10)).data == b"x"
        with pytest.raises(PathRefused, match="never written"):
            await files.write("pre-commit", b"#!/bin/sh")


def test_an_alias_is_not_the_stored_name(tmp_path: Path) -> None:
    (tmp_path / "Foo").touch()
    folder = os.open(tmp_path, FOLDER_FLAGS)
    try:
        assert is_stored(folder, "Foo")
        assert not is_stored(folder, "foo")
    finally:
        os.close(folder)


async def test_a_file_system_that_ignores_case_does_not_answer_to_aliases(files: WorkspaceFiles, root: Path) -> None:
    (root / "Dir").mkdir()
    (root / "Dir" / "File").write_bytes(b"x")
    if not (root / "dir").exists():
        pytest.skip("this file system tells upper case from lower case; aliases cannot be made here")
    for path in ("dir/File", "Dir/file"):
        with pytest.raises(PathRefused, match="another spelling"):
            await files.read(path, max_bytes=10)
        with pytest.raises(PathRefused, match="another spelling"):
            await files.write(path, b"y")


async def test_a_closed_workspace_says_so(root: Path, tmp_path: Path) -> None:
    async with WorkspaceFiles((Root(path=str(root)),), scratch=str(tmp_path / "scratch")) as files:
        pass
    with pytest.raises(FileUnusable, match="closed"):
        await files.read("a", max_bytes=1)


def test_a_borrowed_folder_stays_open_until_it_is_given_back(root: Path) -> None:
    """A reader abandoned on a slow disk must not find its descriptor closed, or worse, reused."""
    anchor = Anchor(str(root))
    anchor.open()
    with anchor.borrow() as descriptor:
        anchor.close()
        assert os.path.samestat(os.fstat(descriptor), root.stat())
        with pytest.raises(FileUnusable, match="closed"), anchor.borrow():
            pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


async def test_a_moved_root_is_followed_and_what_takes_its_place_is_not_touched(
    files: WorkspaceFiles, root: Path, tmp_path: Path
) -> None:
    root.rename(tmp_path / "moved")
    root.mkdir()
    await files.write("f", b"x")
    assert os.listdir(root) == []
    assert (tmp_path / "moved" / "f").read_bytes() == b"x"


async def test_no_descriptor_is_left_open(root: Path, tmp_path: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to count descriptors")
    before = len(os.listdir("/proc/self/fd"))
    (root / "link").symlink_to("/etc")
    async with WorkspaceFiles((Root(path=str(root)),), scratch=str(tmp_path / "scratch")) as files:
        for _ in range(5):
            await files.write("a/b/c", b"x")
            await files.read("a/b/c", max_bytes=5)
            await files.list("a/b", limit=5)
            for path in ("a/b", "link/x", "a/b/c/d", "a/none/x"):
                with pytest.raises((PathRefused, FileUnusable)):
                    await files.read(path, max_bytes=5)
            await files.search("x", limit=5)
    assert len(os.listdir("/proc/self/fd")) == before


FULL_DISK = """
import os, sys, anyio
from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_protocol.errors import FileUnusable
from enginehouse_protocol.workspace import Root

async def main(root, scratch):
    async with WorkspaceFiles((Root(path=root),), scratch=scratch) as files:
        await files.write("kept", b"old")
        for path in ("kept", "made/for/this"):
            try:
                await files.write(path, b"x" * 4_000_000)
            except FileUnusable as error:
                print(error.reason)
        os.system(f"mount -o remount,bind,ro {root}")
        try:
            await files.write("kept", b"new")
        except FileUnusable as error:
            print(error.reason)
        print(sorted(os.listdir(root)), open(root + "/kept").read())

anyio.run(main, *sys.argv[1:])
"""


def test_a_full_and_a_read_only_disk_are_reported_and_leave_no_trace(root: Path, tmp_path: Path) -> None:
    mounting = 'mount -t tmpfs -o size=1m none "$1" && exec "$3" -c "$4" "$1" "$2"'
    arguments = [str(root), str(tmp_path / "scratch"), sys.executable, FULL_DISK]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounting, "sh", *arguments],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if not done.stdout and ("unshare:" in done.stderr or "mount:" in done.stderr):
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    assert done.stdout.splitlines() == [
        "no space is left on its disk; nothing was changed",
        "no space is left on its disk; nothing was changed",
        "its file system is read-only",
        "['kept'] old",
    ], done.stderr


FORBIDDEN = """
import os, sys, anyio
from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_protocol.errors import FileUnusable
from enginehouse_protocol.workspace import Root

async def main(root, scratch):
    async with WorkspaceFiles((Root(path=root),), scratch=scratch) as files:
        os.makedirs(root + "/locked")
        open(root + "/closed", "w").close()
        os.chmod(root + "/closed", 0)
        os.chmod(root + "/locked", 0o555)
        if os.geteuid() == 0:
            os.setuid(65534)
        for attempt in (files.write("locked/f", b"x"), files.read("closed", max_bytes=5)):
            try:
                await attempt
            except FileUnusable as error:
                print(error.reason)

anyio.run(main, *sys.argv[1:])
"""


def test_what_the_operating_system_forbids_is_said() -> None:
    """In a process of its own, which gives root's powers up: root is forbidden nothing."""
    with tempfile.TemporaryDirectory() as base:  # tmp_path lies below folders only root may enter
        os.chmod(base, 0o755)
        os.mkdir(f"{base}/root")
        done = subprocess.run(
            [sys.executable, "-c", FORBIDDEN, f"{base}/root", f"{base}/scratch"],
            check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.stdout.splitlines() == ["permission denied by the operating system"] * 2, done.stderr
