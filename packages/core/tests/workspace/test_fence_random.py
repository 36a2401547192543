"""Whatever text a model calls a path: a write lands inside or nowhere, and never in what is never written."""

import os
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginehouse_core.workspace.fence import Fence
from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_core.workspace.path_lint import parts_of
from enginehouse_protocol.errors import FileUnusable, PathRefused
from enginehouse_protocol.workspace import Root

PLAIN = ("sub", "a.txt", "new", "n\u0301", "a..b", "-rf", " x")
NASTY = (
    "..", ".", "", "~", ".git", ".GIT", ".g\u200cit", ".git.", "GIT~1", ".enginehouse", ".Enginehouse", "link",
    "filelink", "inlink", "hard", "fifo", "con", "C:", "name ", "\\", "{root}", "{out}",
    "{root}-evil", "proc", "self", "*",
)  # fmt: skip
# Mostly plain: one nasty name among plain ones reaches further than six nasty ones.
NAMES = st.sampled_from(PLAIN) | st.sampled_from(PLAIN) | st.sampled_from(NASTY) | st.text(max_size=8)


def put_together(lead: str, names: list[str], tail: str) -> str:
    return lead + "/".join(names) + tail


PATHS = st.one_of(
    st.text(max_size=40),
    st.builds(
        put_together,
        st.sampled_from(["", "/", "//", "./", "{root}/", "{out}/", "{scratch}/"]),
        st.lists(NAMES, max_size=5),
        st.sampled_from(["", "", "", "/", "/."]),
    ),
)


class Ground(NamedTuple):
    base: Path
    files: WorkspaceFiles
    fence: Fence

    def reset(self) -> None:
        """Give every example the same ground, so that a failure can be repeated."""
        root = self.base / "root"
        for path in (*root.iterdir(), *(self.base / "scratch").iterdir()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for folder in ("sub/.git", ".git/hooks", ".enginehouse"):
            (root / folder).mkdir(parents=True)
        (root / "a.txt").write_bytes(b"a")
        (root / "link").symlink_to(self.base / "out")
        (root / "filelink").symlink_to(self.base / "out" / "victim")
        (root / "inlink").symlink_to("sub")
        os.link(self.base / "out" / "victim", root / "hard")
        os.mkfifo(root / "fifo")


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with tempfile.TemporaryDirectory() as name:
        base = Path(os.path.realpath(name))
        for folder in ("root", "out", "root-evil"):
            (base / folder).mkdir()
        (base / "out" / "victim").write_bytes(b"victim")
        files = WorkspaceFiles((Root(path=str(base / "root")),), scratch=str(base / "scratch"))
        fence = files._fence  # pyright: ignore[reportPrivateUsage]
        fence.open()
        yield Ground(base, files, fence)
        fence.close()


def everything(base: Path) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for folder, names, files in os.walk(base):
        for name in names + files:
            path = Path(folder) / name
            found[str(path)] = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    return found


def plain(name: str) -> str:
    """What Windows or macOS may make of a name; deliberately not the fence's own way to find out."""
    visible = "".join(character for character in name if unicodedata.category(character) != "Cf")
    return visible.lower().split(":")[0].rstrip(". ")


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PATHS)
def test_a_write_lands_inside_or_nowhere(ground: Ground, text: str) -> None:
    ground.reset()
    for name in ("root", "out", "scratch"):
        text = text.replace("{" + name + "}", str(ground.base / name))
    before = everything(ground.base)
    refused = True
    with suppress(PathRefused, FileUnusable):
        ground.files._write(ground.fence.locate(text, writing=True), b"new", None)  # pyright: ignore[reportPrivateUsage]
        refused = False
    after = everything(ground.base)
    changed = {path for path in before.keys() | after.keys() if before.get(path, 0) != after.get(path, 0)}
    if refused:
        assert changed == set()
        return
    for path in changed:
        assert path.startswith((str(ground.base / "root") + "/", str(ground.base / "scratch") + "/")), path
        assert not {".git", ".enginehouse"} & {plain(name) for name in parts_of(path)}, path
    written = {path for path in changed if after.get(path) == b"new"}
    assert len(written) == 1
    assert os.path.samefile(written.pop(), os.path.join(ground.base / "root", text))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PATHS)
def test_any_text_can_be_displayed_and_is_never_shown_as_inside_when_it_is_not(ground: Ground, text: str) -> None:
    for name in ("root", "out", "scratch"):
        text = text.replace("{" + name + "}", str(ground.base / name))
    shown = ground.fence.display(text)
    shown.encode()
    assert ".." not in parts_of(shown)
    lexical = os.path.normpath(os.path.join("/", *parts_of(str(ground.base / "root")), text))
    inside = (lexical.lstrip("/") + "/").startswith(str(ground.base / "root").lstrip("/") + "/")
    if shown.startswith("/"):
        assert not inside
    else:
        assert inside
