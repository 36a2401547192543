"""The tools of our own loop on the hub's real workspace: fence, runner and search as they are, and inputs that mean
harm."""

import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from enginehouse_core.workspace.environment import command_environment
from enginehouse_core.workspace.local import LocalWorkspace
from enginehouse_core.workspace.runner import ProcessRunner
from enginehouse_engines.openai_compatible.toolbox import TOOLS
from enginehouse_engines.openai_compatible.toolbox.tool import Outcome, ToolRefused
from enginehouse_protocol.errors import FileUnusable, PathRefused, UsageError, WorkspaceError
from enginehouse_protocol.events import PlanEntry, QuestionOption
from enginehouse_protocol.ids import new_session_id
from enginehouse_protocol.workspace import Root

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


class Silence:
    """Hears what a tool says and answers nothing."""

    shows_images = False

    def __init__(self) -> None:
        self.printed_characters = 0

    async def print(self, text: str, /) -> None:
        self.printed_characters += len(text)

    async def show_plan(self, entries: tuple[PlanEntry, ...], /) -> None:
        pass

    async def ask(
        self, text: str, options: tuple[QuestionOption, ...], /, *, multiple: bool, free_text: bool
    ) -> tuple[str, ...] | None:
        return None


@dataclass
class Place:
    workspace: LocalWorkspace
    project: Path
    session_id: str

    async def use(self, tool: str, **given: Any) -> Outcome:
        """As a session does: preview, then run."""
        plan = TOOLS[tool].plan(given)
        await plan.preview(self.workspace)
        return await plan.run(self.workspace, Silence())

    def alive(self) -> list[int]:
        found: list[int] = []
        for one in psutil.process_iter():
            try:
                if one.environ().get("ENGINEHOUSE_SESSION") == self.session_id and one.status() != "zombie":
                    found.append(one.pid)
            except psutil.Error:
                continue
        return found


@asynccontextmanager
async def opened(project: Path, beside: Path) -> AsyncGenerator[Place]:
    project.mkdir(parents=True)
    (beside / "profile").mkdir()
    (beside / "profile" / "settings.toml").write_text("theirs = 1\n")
    session_id = new_session_id()
    runner = ProcessRunner(session_id, command_environment(os.environ), beside / "records")
    async with LocalWorkspace(
        (Root(path=str(project)),),
        runner,
        scratch=str(beside / "scratch"),
        protected=(str(beside / "profile"),),
        search_deadline_s=3.0,
    ) as workspace:
        made = Place(workspace, project, session_id)
        with anyio.fail_after(100):
            yield made
    assert made.alive() == []


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(tmp_path / "project", tmp_path) as made:
        yield made


@pytest.fixture
async def hidden(tmp_path: Path) -> AsyncIterator[Place]:
    """A project below folders whose names an ignore rule or a fence might stumble over."""
    async with opened(tmp_path / "node_modules" / ".hidden" / ".git" / "project", tmp_path) as made:
        (tmp_path / "node_modules" / ".gitignore").write_text("*\n")
        yield made


# --- paths ------------------------------------------------------------------------------------------------------------

ESCAPES = [
    "../outside.txt",
    "src/../../outside.txt",
    "/etc/passwd",
    "/proc/self/environ",
    "~/secret",
    "link-out/outside.txt",
    "link-file",
    "hard.txt",
    "pipe",
    "a\0b",
    "new\nline",
    "\ud800",
    "",
    "x" * 300,
    "C:\\windows",
    "{profile}/settings.toml",
    "{outside}",
]
TAKES_A_PATH: dict[str, dict[str, Any]] = {
    "read_file": {},
    "write_file": {"content": "taken"},
    "edit_file": {"edits": [{"old": "theirs", "new": "taken"}]},
    "delete_file": {},
    "list_dir": {},
    "glob": {"pattern": "*"},
    "grep": {"pattern": "theirs"},
    "move_file": {"to": "stolen.txt"},
}


def _plant(project: Path, outside: Path) -> None:
    outside.write_text("theirs")
    (project / "src").mkdir()
    (project / "mine.txt").write_text("mine")
    (project / "link-out").symlink_to(outside.parent)
    (project / "link-file").symlink_to(outside)
    os.link(outside, project / "hard.txt")
    os.mkfifo(project / "pipe")


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("tool", TAKES_A_PATH)
async def test_no_tool_leaves_the_fence(plain: Place, tmp_path: Path, tool: str, escape: str) -> None:
    outside = tmp_path / "outside.txt"
    _plant(plain.project, outside)
    path = escape.replace("{profile}", str(tmp_path / "profile")).replace("{outside}", str(outside))
    before = sorted(os.listdir(plain.project)), sorted(os.listdir(tmp_path))
    try:
        outcome = await plain.use(tool, path=path, **TAKES_A_PATH[tool])
    except (WorkspaceError, UsageError, ToolRefused):
        pass
    else:
        pytest.fail(f"{tool} did something with {path!r}: {outcome}")
    if tool == "move_file":
        with pytest.raises((WorkspaceError, UsageError, ToolRefused)):
            await plain.use(tool, path="mine.txt", to=path)
    assert (sorted(os.listdir(plain.project)), sorted(os.listdir(tmp_path))) == before
    assert outside.read_text() == "theirs"
    assert (tmp_path / "profile" / "settings.toml").read_text() == "theirs = 1\n"
    assert (plain.project / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("path", [".git/config", "sub/.git/hooks/pre-commit", ".GIT/config", ".enginehouse/x", "git~1"])
@pytest.mark.parametrize("tool", ["write_file", "delete_file", "move_file"])
async def test_no_tool_touches_what_is_never_written(plain: Place, tool: str, path: str) -> None:
    for folder in (".git", "sub/.git/hooks", ".enginehouse"):
        (plain.project / folder).mkdir(parents=True)
    for file in (".git/config", "sub/.git/hooks/pre-commit", ".enginehouse/x", "mine.txt"):
        (plain.project / file).write_text("theirs")
    with pytest.raises((PathRefused, ToolRefused)):
        await plain.use(tool, path=path, **TAKES_A_PATH[tool])
    with pytest.raises((PathRefused, ToolRefused)):
        await plain.use("move_file", path="mine.txt", to=path)
    for file in (".git/config", "sub/.git/hooks/pre-commit", ".enginehouse/x", "mine.txt"):
        assert (plain.project / file).read_text() == "theirs"


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "../../**/*", "link-out/*"])
async def test_a_pattern_does_not_leave_the_fence_either(plain: Place, tmp_path: Path, pattern: str) -> None:
    _plant(plain.project, tmp_path / "outside.txt")
    assert (await plain.use("glob", pattern=pattern)).text == "[no file matches]"
    assert (await plain.use("grep", pattern="theirs", glob=pattern)).text == "[no match]"
    assert (await plain.use("grep", pattern="theirs")).text == "[no match]"


async def test_a_project_below_hidden_and_ignored_folders_is_searched_like_any(hidden: Place) -> None:
    (hidden.project / ".gitignore").write_text("built/\n")
    for name in ("a.py", "src/b.py", "built/c.py"):
        (hidden.project / name).parent.mkdir(exist_ok=True)
        (hidden.project / name).write_text("needle\n")
    assert (await hidden.use("grep", pattern="needle")).text == "a.py:1: needle\nsrc/b.py:1: needle"
    assert (await hidden.use("glob", pattern="*.py")).text == "a.py\nsrc/b.py"
    assert (await hidden.use("grep", pattern="needle", path="built")).text == "built/c.py:1: needle"


async def test_names_with_line_breaks_are_shown_on_one_line_and_cannot_be_asked_for(plain: Place) -> None:
    (plain.project / "a\nb.py").write_text("needle\n")
    (plain.project / os.fsdecode(b"bad-\xff.py")).write_text("needle\n")
    assert (await plain.use("list_dir")).text == '"a\\nb.py"\nbad-\ufffd.py'
    assert (await plain.use("glob", pattern="*.py")).text == '"a\\nb.py"\nbad-\ufffd.py'
    assert (await plain.use("grep", pattern="needle")).text == '"a\\nb.py":1: needle\nbad-\ufffd.py:1: needle'
    with pytest.raises(PathRefused):
        await plain.use("read_file", path="a\nb.py")


# --- size and time ----------------------------------------------------------------------------------------------------


async def test_two_hundred_megabytes_of_output_are_bounded_and_said(plain: Place) -> None:
    voice = Silence()
    plan = TOOLS["bash"].plan({"command": "yes 0123456789abcdef | head -c 200000000; echo; echo end", "timeout_s": 90})
    outcome = await plan.run(plain.workspace, voice)
    found = re.search(
        r"\[… (\d+) characters not shown; the whole is in (\S+); (\d+) bytes were not kept …\]", outcome.text
    )
    assert found is not None, outcome.text[20_000:40_000]
    assert outcome.status == "ok"
    assert len(outcome.text) < 41_000
    assert outcome.text.startswith("0123456789abcdef\n0123")
    assert outcome.text.endswith("\nend")
    assert voice.printed_characters == 200_000_005
    kept = Path(found[2])
    assert kept.stat().st_size + int(found[3]) == 200_000_005
    tail = await plain.use("grep", pattern="^end$", path=str(kept))
    assert tail.text.endswith(": end")
    assert (await plain.use("read_file", path=str(kept), limit=1)).text.startswith("0123456789abcdef\n[lines 1–1 of ")


async def test_a_command_that_ignores_its_end_is_ended_all_the_same(plain: Place) -> None:
    outcome = await plain.use(
        "bash",
        command="trap '' TERM INT HUP; (trap '' TERM; setsid sleep 60) & echo begun; while :; do sleep 1; done",
        timeout_s=0.5,
    )
    assert outcome == Outcome(text="begun\n[stopped after 0.5 s: the time limit]", status="error")
    assert plain.alive() == []


async def test_a_background_command_is_asked_for_through_its_name_and_leaves_nothing(plain: Place) -> None:
    started = await plain.use("bash", command="trap '' TERM; echo up; sleep 60 & wait", background=True)
    name = started.text.split()[5].rstrip(".")
    assert started.text == f"Started in the background as {name}.\nup\n[still running]"
    assert plain.alive() != []
    # A foreground command ends what it started, not what is in the background.
    assert (await plain.use("bash", command="sleep 60 & echo done")).text == "done"
    assert (await plain.use("bash_output", id=name)).text == "[no new output]\n[still running]"
    assert (await plain.use("bash_stop", id=name)).text.endswith("[stopped]")
    assert plain.alive() == []


async def test_a_background_command_killed_from_outside_says_so(plain: Place) -> None:
    started = await plain.use("bash", command="echo $$; exec sleep 60", background=True)
    _, pid, _ = started.text.splitlines()
    os.kill(int(pid), signal.SIGKILL)
    name = started.text.split()[5].rstrip(".")
    assert (await plain.use("bash_output", id=name, wait_s=10)).text == "[no new output]\n[ended by signal 9]"


async def test_a_flood_in_the_background_is_bounded(plain: Place) -> None:
    started = await plain.use(
        "bash", command="yes 0123456789abcdef | head -c 50000000; echo; echo end", background=True
    )
    name = started.text.split()[5].rstrip(".")
    text = started.text
    while "exit code" not in text:
        text = (await plain.use("bash_output", id=name, wait_s=10)).text
        assert len(text) < 41_000
    assert "\nend\n[exit code 0]" in text


async def test_a_file_that_is_written_while_it_is_read_is_read_whole_at_some_moment(plain: Place) -> None:
    started = await plain.use(
        "bash",
        command="i=0; while :; do i=$((i+1)); yes $i | head -n 2000 > t; mv t log; done",
        background=True,
    )
    name = started.text.split()[5].rstrip(".")
    with anyio.fail_after(20):
        while not (plain.project / "log").exists():  # noqa: ASYNC110 - a file has no event
            await anyio.sleep(0.01)
    whole = 0
    while whole < 20:
        try:
            lines = (await plain.use("read_file", path="log")).text.splitlines()
        except (FileUnusable, PathRefused):  # replaced between two looks; the next attempt finds the next one
            continue
        assert len(lines) == 2_000
        assert len(set(lines)) == 1
        whole += 1
    await plain.use("bash_stop", id=name)


async def test_a_file_that_grows_while_it_is_read_gives_what_was_there(plain: Place) -> None:
    started = await plain.use(
        "bash", command="for i in {1..200000}; do echo line; done > log; sleep 60", background=True
    )
    name = started.text.split()[5].rstrip(".")
    with anyio.fail_after(20):
        while not (plain.project / "log").exists() or (plain.project / "log").stat().st_size < 100:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    for _ in range(20):
        text = (await plain.use("read_file", path="log", limit=5)).text
        assert text.startswith("line\nline\nline\nline\nline\n[lines 1–5 of ")
    await plain.use("bash_stop", id=name)


async def test_a_pattern_that_never_ends_is_ended(plain: Place) -> None:
    (plain.project / "a.txt").write_text("needle\n")
    (plain.project / "b.txt").write_text("a" * 5_000 + "!\n")
    with anyio.fail_after(15):
        outcome = await plain.use("grep", pattern=r"needle|^(a+)+$")
        assert outcome.text == (
            "a.txt:1: needle\n[only the first 1 are shown; narrow the pattern, the path or the glob]"
        )
        with pytest.raises(FileUnusable, match=r"found nothing in 3 s, then in 'b\.txt'"):
            await plain.use("grep", pattern=r"^(a+)+$", path="b.txt")


@pytest.mark.timeout(300)  # making them is the disk's work, and is not judged
async def test_a_tree_of_many_thousand_files_is_answered_in_bounds(plain: Place) -> None:
    def grow() -> None:
        for folder in range(20):
            home = plain.project / f"{folder:03}"
            home.mkdir()
            for file in range(1_000):
                os.close(os.open(home / f"{file:04}.txt", os.O_CREAT | os.O_WRONLY))
        (plain.project / "019" / "only.py").write_text("needle\n")

    await anyio.to_thread.run_sync(grow)
    with anyio.fail_after(30):
        some = (await plain.use("glob", pattern="*.txt")).text
        assert some.startswith("000/0000.txt\n")
        assert some.endswith("000/0999.txt\n[only the first 1000 are shown; narrow the pattern or the path]")
        listing = (await plain.use("list_dir", path="000")).text
        assert listing.endswith("0999.txt")
        assert (await plain.use("glob", pattern="*.py", path="019")).text == "019/only.py"
        assert (await plain.use("grep", pattern="needle", path="019")).text == "019/only.py:1: needle"


async def test_a_stale_edit_is_refused_after_a_command_changed_the_file(plain: Place) -> None:
    (plain.project / "a.py").write_text("x=1\n")
    await plain.use("read_file", path="a.py")
    await plain.use("bash", command="echo 'x = 1' > a.py")
    with pytest.raises(ToolRefused, match="changed since you last read"):
        await plain.use("edit_file", path="a.py", edits=[{"old": "x", "new": "y"}])
    await plain.use("read_file", path="a.py")
    await plain.use("edit_file", path="a.py", edits=[{"old": "x", "new": "y"}])
    await plain.use("move_file", path="a.py", to="lib/b.py")
    await plain.use("delete_file", path="lib/b.py")
    assert os.listdir(plain.project / "lib") == []
