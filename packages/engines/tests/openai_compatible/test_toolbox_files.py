"""Files that change under the model, go, move, are found, or are no text."""

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from enginehouse_engines.openai_compatible.toolbox import TOOLS
from enginehouse_engines.openai_compatible.toolbox.binary_kinds import image_kind
from enginehouse_engines.openai_compatible.toolbox.tool import (
    MAX_OUTPUT_CHARS,
    BadInput,
    Outcome,
    ToolRefused,
    listed,
    shown_name,
    takes,
)
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.errors import FileUnusable
from enginehouse_protocol.testing import TempWorkspace

from .listening import SILENT, run

pytestmark = pytest.mark.anyio

STALE = r"'a.txt' changed since you last read or wrote it; read it again first"


@pytest.fixture
def workspace(tmp_path: Path) -> TempWorkspace:
    made = TempWorkspace(tmp_path / "project")
    (made.directory / "a.txt").write_text("one\ntwo\n")
    return made


# --- a file that is no longer what the model saw ----------------------------------------------------------------------

CHANGES: dict[str, dict[str, Any]] = {
    "edit_file": {"edits": [{"old": "two", "new": "2"}]},
    "write_file": {"content": "mine\n"},
    "delete_file": {},
}


@pytest.mark.parametrize("tool", CHANGES)
async def test_a_file_that_changed_since_it_was_read_has_to_be_read_again(workspace: TempWorkspace, tool: str) -> None:
    given = {"path": "a.txt", **CHANGES[tool]}
    file = workspace.directory / "a.txt"
    await run(workspace, "read_file", path="a.txt", limit=1)
    file.write_text("one\ntwo\nthree\n")
    with pytest.raises(ToolRefused, match=STALE):
        await TOOLS[tool].plan(given).preview(workspace)
    with pytest.raises(ToolRefused, match=STALE):
        await run(workspace, tool, **given)
    assert file.read_text() == "one\ntwo\nthree\n"
    await run(workspace, "read_file", path=str(file))
    await run(workspace, tool, **given)
    assert not file.exists() or file.read_text() in ("one\n2\nthree\n", "mine\n")


@pytest.mark.parametrize("tool", CHANGES)
async def test_a_file_nobody_read_may_be_changed(workspace: TempWorkspace, tool: str) -> None:
    assert (await run(workspace, tool, path="a.txt", **CHANGES[tool])).status == "ok"


async def test_what_the_model_wrote_itself_it_has_seen(workspace: TempWorkspace) -> None:
    await run(workspace, "read_file", path="a.txt")
    for old, new in (("one", "1"), ("1", "uno")):
        await run(workspace, "edit_file", path="./a.txt", edits=[{"old": old, "new": new}])
    await run(workspace, "write_file", path="a.txt", content="all new\n")
    await run(workspace, "edit_file", path="a.txt", edits=[{"old": "all", "new": "quite"}])
    assert (workspace.directory / "a.txt").read_text() == "quite new\n"


async def test_what_the_model_wrote_and_somebody_changed_may_be_edited_but_not_replaced(
    workspace: TempWorkspace,
) -> None:
    await run(workspace, "write_file", path="a.txt", content="one\ntwo\n")
    (workspace.directory / "a.txt").write_text("one\ntwo\nan hour of work\n")
    for tool in ("write_file", "delete_file"):
        with pytest.raises(ToolRefused, match=STALE):
            await run(workspace, tool, path="a.txt", **CHANGES[tool])
    await run(workspace, "edit_file", path="a.txt", **CHANGES["edit_file"])
    assert (workspace.directory / "a.txt").read_text() == "one\n2\nan hour of work\n"


async def test_what_was_seen_moves_with_its_file_and_goes_with_it(workspace: TempWorkspace) -> None:
    await run(workspace, "read_file", path="a.txt")
    await run(workspace, "move_file", path="a.txt", to="b.txt")
    (workspace.directory / "b.txt").write_text("theirs\n")
    with pytest.raises(ToolRefused, match=r"'b\.txt' changed since"):
        await run(workspace, "delete_file", path="b.txt")
    await run(workspace, "read_file", path="b.txt")
    await run(workspace, "delete_file", path="b.txt")
    (workspace.directory / "b.txt").write_text("another\n")
    await run(workspace, "write_file", path="b.txt", content="mine\n")


async def test_one_session_does_not_know_what_another_saw(workspace: TempWorkspace) -> None:
    await run(workspace, "read_file", path="a.txt")
    (workspace.directory / "a.txt").write_text("theirs\n")
    other = TempWorkspace(workspace.directory)
    assert (await run(other, "write_file", path="a.txt", content="x\n")).status == "ok"


async def test_a_preview_is_not_a_look_of_the_model(workspace: TempWorkspace) -> None:
    await run(workspace, "read_file", path="a.txt")
    (workspace.directory / "a.txt").write_text("one\ntwo\nthree\n")
    plan = TOOLS["edit_file"].plan({"path": "a.txt", **CHANGES["edit_file"]})
    for _ in range(2):
        with pytest.raises(ToolRefused, match=STALE):
            await plan.preview(workspace)


# --- edits ------------------------------------------------------------------------------------------------------------


async def test_every_one_of_a_text_can_be_replaced(workspace: TempWorkspace) -> None:
    file = workspace.directory / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfx = aaaa\r\nx\ny = x\r\n")
    edits = [{"old": "x", "new": "count", "replace_all": True}, {"old": "aa", "new": "b", "replace_all": True}]
    await run(workspace, "edit_file", path="a.txt", edits=edits)
    assert file.read_bytes() == b"\xef\xbb\xbfcount = bb\r\ncount\ny = count\r\n"


@pytest.mark.parametrize(
    "edits, why",
    [
        ([{"old": "o", "new": "0"}], "was found 2 times.*replace_all"),
        ([{"old": "x", "new": "y", "replace_all": True}], "was not found"),
        ([{"old": "o", "new": "o", "replace_all": True}], "change nothing"),
        ([{"old": "o", "new": "0", "replace_all": True}, {"old": "one", "new": "1"}], "overlap"),
    ],
)
async def test_an_edit_of_several_places_is_as_strict_as_any(
    workspace: TempWorkspace, edits: list[dict[str, Any]], why: str
) -> None:
    with pytest.raises(ToolRefused, match=why):
        await run(workspace, "edit_file", path="a.txt", edits=edits)
    assert (workspace.directory / "a.txt").read_text() == "one\ntwo\n"


# --- delete and move --------------------------------------------------------------------------------------------------


async def test_a_deletion_shows_what_goes(workspace: TempWorkspace) -> None:
    plan = TOOLS["delete_file"].plan({"path": str(workspace.directory / "a.txt")})
    gone = FileChange(path="a.txt", change="deleted", diff="@@ -1,2 +0,0 @@\n-one\n-two\n")
    assert await plan.preview(workspace) == (gone,)
    assert (workspace.directory / "a.txt").exists()
    assert await plan.run(workspace, SILENT) == Outcome(text="Deleted a.txt.", changes=(gone,))
    assert not (workspace.directory / "a.txt").exists()
    assert plan.title == f"delete {workspace.directory}/a.txt"


async def test_a_file_that_changed_after_its_deletion_was_shown_stays(workspace: TempWorkspace) -> None:
    plan = TOOLS["delete_file"].plan({"path": "a.txt"})
    await plan.preview(workspace)
    (workspace.directory / "a.txt").write_text("an hour of work\n")
    with pytest.raises(FileUnusable, match="changed"):
        await plan.run(workspace, SILENT)
    assert (workspace.directory / "a.txt").read_text() == "an hour of work\n"


async def test_a_binary_or_enormous_file_is_deleted_without_a_diff(workspace: TempWorkspace) -> None:
    (workspace.directory / "b").write_bytes(b"\0\1\2")
    with (workspace.directory / "c").open("wb") as sparse:
        sparse.truncate(100 * 1024 * 1024)
    for name in "bc":
        outcome = await run(workspace, "delete_file", path=name)
        assert outcome.changes == (FileChange(path=name, change="deleted"),)
    assert os.listdir(workspace.directory) == ["a.txt"]


async def test_a_move_names_both_files_and_shows_both(workspace: TempWorkspace) -> None:
    plan = TOOLS["move_file"].plan({"path": "a.txt", "to": "new/b.txt"})
    assert (plan.title, plan.paths) == ("move a.txt → new/b.txt", ("a.txt", "new/b.txt"))
    shown = (
        FileChange(path="a.txt", change="deleted", diff="renamed to new/b.txt\n"),
        FileChange(path="new/b.txt", change="created", diff="renamed from a.txt\n"),
    )
    assert await plan.preview(workspace) == shown
    assert await plan.run(workspace, SILENT) == Outcome(text="Moved a.txt to new/b.txt.", changes=shown)
    assert (workspace.directory / "new/b.txt").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    "tool, given, why",
    [
        ("delete_file", {"path": "missing"}, "does not exist"),
        ("delete_file", {"path": "folder"}, "is a folder; use a command"),
        ("move_file", {"path": "missing", "to": "b"}, "does not exist"),
        ("move_file", {"path": "folder", "to": "b"}, "is a folder; use a command"),
        ("move_file", {"path": "a.txt", "to": "b.txt"}, "exists already"),
        ("move_file", {"path": "a.txt", "to": "folder"}, "exists already"),
        ("move_file", {"path": "a.txt", "to": "a.txt"}, "exists already"),
    ],
)
async def test_what_cannot_be_done_is_said_before_anybody_is_asked(
    workspace: TempWorkspace, tool: str, given: dict[str, str], why: str
) -> None:
    (workspace.directory / "folder").mkdir()
    (workspace.directory / "b.txt").write_text("theirs\n")
    with pytest.raises(ToolRefused, match=why):
        await TOOLS[tool].plan(given).preview(workspace)
    assert sorted(os.listdir(workspace.directory)) == ["a.txt", "b.txt", "folder"]


# --- reading and finding ----------------------------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(10) + b"\xff\xc0\x00\x11\x08\x00\x20\x01\x40" + bytes(20)


@pytest.mark.parametrize(
    "data, kind",
    [
        (png(640, 480), "PNG image, 640×480"),
        (JPEG, "JPEG image, 320×32"),
        (b"GIF89a\x10\x00\x20\x00", "GIF image, 16×32"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "WebP image"),
        (b"\x89PNG\r\n\x1a\n", "PNG image"),
        (b"\xff\xd8\xff\xe0\x00\x00" + bytes(20), "JPEG image"),
        (b"RIFF\x10\0\0\0WAVEfmt ", None),
        (b"", None),
    ],
)
def test_a_picture_is_told_by_its_bytes(data: bytes, kind: str | None) -> None:
    assert image_kind(data) == kind


@pytest.mark.parametrize(
    "data, why",
    [
        (png(640, 480), r"is a picture \(PNG image, 640×480, 33 bytes\)"),
        (b"%PDF-1.7\nplain so far\n", "it is a PDF document"),
        (b"\x7fELF\x02\x01", r"it is a program \(ELF\)"),
        (b"\0\1\2", "contains NUL bytes"),
        (b"text \x81\x02\x9d and noise", "control characters"),
    ],
)
async def test_what_is_no_text_is_refused_by_name(workspace: TempWorkspace, data: bytes, why: str) -> None:
    (workspace.directory / "b").write_bytes(data)
    with pytest.raises(ToolRefused, match=why):
        await run(workspace, "read_file", path="b")


async def test_a_read_never_gives_more_than_a_model_should_get(workspace: TempWorkspace) -> None:
    (workspace.directory / "b").write_text("".join(f"{n:>9}\n" for n in range(50_000)))
    text = (await run(workspace, "read_file", path="b", limit=10_000_000)).text
    assert text.endswith("[lines 1–2000 of 50000; go on with offset=2001]")
    (workspace.directory / "b").write_text("".join(f"{n:>99}\n" for n in range(50_000)))
    text = (await run(workspace, "read_file", path="b", offset=-5)).text
    assert text.endswith("[lines 1–400 of 50000; go on with offset=401]")
    assert len(text) < MAX_OUTPUT_CHARS + 100


async def test_files_are_found_and_what_is_left_out_is_said(workspace: TempWorkspace) -> None:
    for n in range(1_005):
        (workspace.directory / f"{n:04}.py").touch()
    assert (await run(workspace, "glob", pattern="a.*")).text == "a.txt"
    assert (await run(workspace, "glob", pattern=f"{workspace.directory}/a.*")).text == "a.txt"
    assert (await run(workspace, "glob", pattern="*.rs")).text == "[no file matches]"
    text = (await run(workspace, "glob", pattern="*.py")).text
    assert text.endswith("0999.py\n[only the first 1000 are shown; narrow the pattern or the path]")
    listing = (await run(workspace, "list_dir")).text
    assert listing.endswith("0999.py\n[only the first 1000 are shown; use glob for certain names]")


async def test_a_name_with_a_line_break_does_not_pass_for_two(workspace: TempWorkspace) -> None:
    (workspace.directory / "x\nb.py").write_text("needle\n")
    assert (await run(workspace, "list_dir")).text == 'a.txt\n"x\\nb.py"'
    assert (await run(workspace, "glob", pattern="*.py")).text == '"x\\nb.py"'
    assert (await run(workspace, "grep", pattern="needle")).text == '"x\\nb.py":1: needle'
    assert shown_name("é — 你.txt") == "é — 你.txt"


def test_a_list_is_cut_between_its_lines() -> None:
    lines = ["x" * 999] * 50
    assert listed(lines, more=False, advice="go").endswith("x\n[only the first 40 are shown; go]")
    assert listed(lines[:40], more=False, advice="go") == "\n".join(lines[:40])
    assert listed(lines[:2], more=True, advice="go").endswith("x\n[only the first 2 are shown; go]")


# --- what a tool takes ------------------------------------------------------------------------------------------------


def test_a_null_is_a_field_left_out_where_it_may_be() -> None:
    assert TOOLS["read_file"].plan({"path": "a", "offset": None}) == TOOLS["read_file"].plan({"path": "a"})
    with pytest.raises(BadInput, match="missing required field `path`"):
        TOOLS["read_file"].plan({"path": None})


def test_the_input_is_said_in_words() -> None:
    assert takes(TOOLS["edit_file"]) == (
        "edit_file takes {path: string, edits: [{old: string, new: string, replace_all?: boolean}, …]}"
    )
    assert takes(TOOLS["todo"]) == (
        'todo takes {entries: [{text: string, status: "pending" | "in_progress" | "completed"}, …]}'
    )
