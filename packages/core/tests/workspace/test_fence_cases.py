"""What the fence answers, path by path. The table was written before the fence.

Verdicts: `ok`; `refused` (PathRefused: the fence said no); `unusable` (FileUnusable: inside the fence, but missing or a
folder). A write that must not happen is `refused` or `unusable`, and then nothing on the disk has changed.
"""

import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_protocol.errors import FileUnusable, PathRefused
from enginehouse_protocol.workspace import Root

pytestmark = pytest.mark.anyio

Verdict = Literal["ok", "refused", "unusable"]


class Case(NamedTuple):
    path: str
    write: Verdict
    read: Verdict
    says: str = ""
    """A piece of the reason, where the words matter to whoever reads it."""


CASES = [
    # ordinary names, and names that only look dangerous
    Case("src/a.py", "ok", "ok"),
    Case("new/deep/f.txt", "ok", "unusable"),
    Case("src/./b.py", "ok", "unusable"),
    Case("src//a.py", "ok", "ok"),
    Case("./src/a.py", "ok", "ok"),
    Case("src//c.py", "ok", "unusable"),
    Case("ünï/é.txt", "ok", "unusable"),
    Case("família 👩‍💻.txt", "ok", "unusable"),
    Case(".github/workflows/ci.yml", "ok", "unusable"),
    Case(".gitignore", "ok", "ok"),
    Case(".gitattributes", "ok", "unusable"),
    Case("git/config", "ok", "unusable"),
    Case("a..b/c...d", "ok", "unusable"),
    Case("-rf", "ok", "unusable"),
    Case("console.log", "ok", "unusable"),
    Case("com10", "ok", "unusable"),
    Case("notes~1.txt", "ok", "unusable"),
    Case(".enginehouse-notes", "ok", "unusable"),
    Case("{root}/src/a.py", "ok", "ok"),
    Case("{root}/abs/new.txt", "ok", "unusable"),
    Case("{second}/b.txt", "ok", "ok"),
    Case("{scratch}/spill.txt", "ok", "unusable"),
    Case("x" * 255, "ok", "unusable"),
    # out of the fence by name
    Case("../out/victim", "refused", "refused", ".."),
    Case("src/../../out/victim", "refused", "refused", ".."),
    Case("src/../ok.py", "refused", "refused", ".."),
    Case("{root}/../out/victim", "refused", "refused", ".."),
    Case("{root}/src/..", "refused", "refused", ".."),
    Case("/etc/passwd", "refused", "refused", "outside"),
    Case("//etc/passwd", "refused", "refused", "outside"),
    Case("{root}-evil/x", "refused", "refused", "outside"),
    Case("../ws-evil/x", "refused", "refused", ".."),
    Case("~/x", "refused", "refused", "~"),
    Case("~root/x", "refused", "refused", "~"),
    Case("~", "refused", "refused", "~"),
    # out of the fence by link
    Case("filelink", "refused", "refused", "'filelink' is a symbolic link to '{out}/victim'"),
    Case("dirlink/victim", "refused", "refused", "'dirlink' is a symbolic link to '{out}'"),
    Case("dirlink/new", "refused", "refused", "'dirlink'"),
    Case("rellink/victim", "refused", "refused", "'rellink'"),
    Case("inlink/a.py", "refused", "refused", "'inlink' is a symbolic link to 'src'"),
    Case("src/deeplink/x", "refused", "refused", "'src/deeplink'"),
    Case("magic/tmp/x", "refused", "refused", "'magic'"),
    Case("loop", "refused", "refused", "'loop'"),
    Case("loop/x", "refused", "refused", "'loop'"),
    Case("dangling", "refused", "refused", "'dangling'"),
    Case("hard", "refused", "refused", "hard link"),
    # not a file
    Case("fifo", "refused", "refused", "named pipe"),
    Case("sock", "refused", "refused", "socket"),
    Case("src", "unusable", "unusable", "folder"),
    Case("src/", "refused", "refused", "folder"),
    Case("src/a.py/", "refused", "refused", "folder"),
    Case("src/a.py/.", "refused", "refused", "folder"),
    Case("src/a.py/x", "unusable", "unusable", "'src/a.py' is a file"),
    Case(".", "unusable", "unusable", "folder"),
    Case("{root}", "unusable", "unusable", "folder"),
    # not a path
    Case("", "refused", "refused", "empty"),
    Case("a\0b", "refused", "refused", "control character"),
    Case("a\nb", "refused", "refused", "control character"),
    Case("a\rb", "refused", "refused", "control character"),
    Case("a\x1b[31mb", "refused", "refused", "control character"),
    Case("a\ud800b", "refused", "refused", "Unicode"),
    Case("y" * 256, "refused", "refused", "longer than 255 bytes"),
    Case("é" * 128, "refused", "refused", "longer than 255 bytes"),
    Case("z" * 100 + "/" + "/".join(["d" * 99] * 41), "refused", "refused", "longer than 4096 bytes"),
    Case("/".join(["d"] * 300), "refused", "refused", "deep"),
    # a repository's own folder: read it, never write it
    Case(".git", "refused", "unusable", ""),
    Case(".git/HEAD", "refused", "ok"),
    Case(".git/hooks/x", "refused", "unusable"),
    Case("{root}/.git/HEAD", "refused", "ok"),
    Case("sub/.git/config", "refused", "unusable"),
    Case("worktree/.git", "refused", "ok"),
    Case(".GIT/config", "refused", "unusable"),
    Case(".Git", "refused", "unusable"),
    Case(".g\u200cit/config", "refused", "unusable"),
    Case(".gi\ufefft/config", "refused", "unusable"),
    Case(".git\u00ad/config", "refused", "unusable"),
    Case("．git/config", "refused", "unusable"),
    Case(".git /config", "refused", "unusable"),
    Case(".git./config", "refused", "unusable"),
    Case(".git. . /config", "refused", "unusable"),
    Case(".git::$INDEX_ALLOCATION/config", "refused", "unusable"),
    Case("GIT~1/config", "refused", "unusable"),
    Case("git~2", "refused", "unusable"),
    Case(".enginehouse/settings.toml", "refused", "ok"),
    Case("sub/.enginehouse/new.toml", "refused", "unusable"),
    Case(".EngineHouse/x", "refused", "unusable"),
    Case(".engine\u200bhouse/x", "refused", "unusable"),
    Case(".enginehouse./x", "refused", "unusable"),
    Case("ENGINE~1/x", "refused", "unusable"),
    # the person's profile, inside a root
    Case("home/profile/settings.toml", "refused", "refused", "profile"),
    Case("home/profile/new/file", "refused", "refused", "profile"),
    Case("home/profile", "refused", "refused", "profile"),
    Case("{root}/home/profile/settings.toml", "refused", "refused", "profile"),
    Case("home/profile-notes.txt", "ok", "unusable"),
    # names another operating system would understand differently
    Case("con", "refused", "unusable", "Windows"),
    Case("NUL.txt", "refused", "unusable", "Windows"),
    Case("src/com1", "refused", "unusable", "Windows"),
    Case("COM¹.log", "refused", "unusable", "Windows"),
    Case("aux.c/x", "refused", "unusable", "Windows"),
    Case("conin$", "refused", "unusable", "Windows"),
    Case("lpt9 .txt", "refused", "unusable", "Windows"),
    Case("a.txt::$DATA", "refused", "unusable", ":"),
    Case("f:stream", "refused", "refused", "drive"),
    Case("file:stream", "refused", "unusable", ":"),
    Case("C:\\x", "refused", "refused"),
    Case("C:x", "refused", "refused", "drive"),
    Case("C:/x", "refused", "refused", "drive"),
    Case("\\\\srv\\share\\x", "refused", "refused", "/"),
    Case("..\\out\\v", "refused", "refused", "/"),
    Case("src\\a.py", "refused", "refused", "/"),
    Case("name.", "refused", "unusable", "dot or space"),
    Case("name ", "refused", "unusable", "dot or space"),
    Case("dir./x", "refused", "unusable", "dot or space"),
    Case("...", "refused", "unusable", "dot or space"),
    Case("invoice\u202etxt.exe", "refused", "unusable", "invisible"),
    Case("a\u2028b", "refused", "unusable", "invisible"),
]


class Ground(NamedTuple):
    files: WorkspaceFiles
    base: Path

    def expand(self, text: str) -> str:
        for name, folder in (("root", "ws"), ("second", "second"), ("scratch", "scratch"), ("out", "out")):
            text = text.replace("{" + name + "}", str(self.base / folder))
        return text


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    ws, second, out = tmp_path / "ws", tmp_path / "second", tmp_path / "out"
    for folder in (
        ws / "src",
        ws / ".git" / "hooks",
        ws / "sub",
        ws / "worktree",
        ws / ".enginehouse",
        ws / "home" / "profile",
        second,
        out,
        tmp_path / "ws-evil",
    ):
        folder.mkdir(parents=True)
    for file in (
        ws / "src" / "a.py",
        ws / "ok.py",
        ws / ".gitignore",
        ws / ".git" / "HEAD",
        ws / "worktree" / ".git",
        ws / ".enginehouse" / "settings.toml",
        ws / "home" / "profile" / "settings.toml",
        second / "b.txt",
        out / "victim",
    ):
        file.write_bytes(b"before\n")
    (ws / "filelink").symlink_to(out / "victim")
    (ws / "dirlink").symlink_to(out)
    (ws / "rellink").symlink_to("../out")
    (ws / "inlink").symlink_to("src")
    (ws / "src" / "deeplink").symlink_to(out)
    (ws / "magic").symlink_to("/proc/self/root")
    (ws / "loop").symlink_to("loop")
    (ws / "dangling").symlink_to(out / "absent")
    os.link(out / "victim", ws / "hard")
    os.mkfifo(ws / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(ws)  # sun_path holds 107 bytes; a long tmp_path does not fit
        try:
            server.bind("sock")
        finally:
            os.chdir(here)
    async with WorkspaceFiles(
        (Root(path=str(ws)), Root(path=str(second))),
        scratch=str(tmp_path / "scratch"),
        protected=(str(ws / "home" / "profile"),),
    ) as files:
        yield Ground(files, tmp_path)


def picture(base: Path) -> dict[str, bytes | str]:
    """Everything below `base`: kind and content, without following links."""
    seen: dict[str, bytes | str] = {}
    for folder, names, files in os.walk(base):
        for name in names + files:
            path = Path(folder) / name
            mode = path.lstat().st_mode
            seen[str(path)] = path.read_bytes() if stat.S_ISREG(mode) else f"{stat.S_IFMT(mode):o}"
    return seen


def verdict_of(error: PathRefused | FileUnusable | None) -> Verdict:
    match error:
        case None:
            return "ok"
        case PathRefused():
            return "refused"
        case FileUnusable():
            return "unusable"


def label(case: Case) -> str:
    text = case.path.encode("unicode_escape").decode()
    return text if len(text) < 60 else f"{text[:20]}…{len(case.path)}"


@pytest.mark.parametrize("case", CASES, ids=label)
async def test_a_write_is_answered_as_the_table_says(ground: Ground, case: Case) -> None:
    path = ground.expand(case.path)
    before = picture(ground.base)
    error = None
    try:
        await ground.files.write(path, b"after\n")
    except (PathRefused, FileUnusable) as raised:
        error = raised
    assert verdict_of(error) == case.write, error
    if error is None:
        assert (ground.base / "ws" / path).read_bytes() == b"after\n"
        changed = {name for name, what in picture(ground.base).items() if before.get(name) != what}
        target = str(ground.base / "ws" / path).replace("//", "/").replace("/./", "/")
        assert {name for name in changed if not target.startswith(name + "/")} == {target}
    else:
        assert picture(ground.base) == before
        assert error.path == path
        assert ground.expand(case.says) in error.reason


@pytest.mark.parametrize("case", CASES, ids=label)
async def test_a_read_is_answered_as_the_table_says(ground: Ground, case: Case) -> None:
    path = ground.expand(case.path)
    error = None
    try:
        content = await ground.files.read(path, max_bytes=100)
    except (PathRefused, FileUnusable) as raised:
        error = raised
    else:
        assert content.data == b"before\n"
    assert verdict_of(error) == case.read, error


async def test_the_table_is_as_large_as_promised() -> None:
    assert len(CASES) >= 60
    assert len({case.path for case in CASES}) == len(CASES)
    assert sum(case.write == "ok" for case in CASES) >= 12
    assert sum(case.read == "ok" for case in CASES) >= 8
