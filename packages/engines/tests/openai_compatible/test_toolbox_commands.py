"""What a model reads of a command's output, and commands in the background."""

import re
from pathlib import Path

import anyio
import pytest

from enginehouse_engines.openai_compatible.toolbox.bash import Bash
from enginehouse_engines.openai_compatible.toolbox.printed import legible
from enginehouse_engines.openai_compatible.toolbox.tool import MAX_OUTPUT_CHARS, Outcome, ToolRefused
from enginehouse_protocol.errors import CommandRefused, FileUnusable
from enginehouse_protocol.testing import TempWorkspace
from enginehouse_protocol.workspace import FileStat

from .listening import run

pytestmark = pytest.mark.anyio


@pytest.fixture
def workspace(tmp_path: Path) -> TempWorkspace:
    return TempWorkspace(tmp_path / "project")


def id_in(outcome: Outcome) -> str:
    found = re.match(r"Started in the background as (bg_\w+)\.\n", outcome.text)
    assert found is not None, outcome.text
    return found[1]


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "output, text",
    [
        (b"\x1b[1;31mred\x1b[0m and \x1b[38;5;208morange\x1b[m\n", "red and orange\n"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "alink\n"),
        (b"\x1bP1$r0m\x1b\\a\x1b(Bb\x1b=c\x1b7d", "abcd"),
        (b"\x1b[2K\x1b[1Gdone\x1b[?25h", "done"),
        (b"10%\r20%\r100%\ndone\r\n", "100%\ndone\n"),
        (b"working\r", "working"),
        (b"N\x08NA\x08AM\x08ME\x08E", "NAME"),
        (b"a\0b\xffc\x07d", "a\ufffdb\ufffdc\ufffdd"),
        ("a\u2028b\tc — é".encode(), "a\u2028b\tc — é"),
        (b"\x1b", "\ufffd"),
        (b"\x1b]never ended", "never ended"),
    ],
)
def test_a_model_reads_what_a_person_would_have_seen(output: bytes, text: str) -> None:
    assert legible(output) == text


@pytest.mark.timeout(30)
@pytest.mark.parametrize("piece", [b"\x1b]", b"\x1b[", b"\x1bP", b"\x1b]x\x1b", b"x\r", b"x\x08", b"\x1b[0;"])
def test_a_storm_of_escapes_ends(piece: bytes) -> None:
    text = b"some words to begin with, which is what a sample is taken of\n" * 2_000
    assert legible(text + piece * 1_000_000) is not None


async def test_views_get_the_colours_the_model_does_not(workspace: TempWorkspace) -> None:
    heard: list[str] = []
    outcome = await run(workspace, "bash", heard, command=r"printf '\033[31mred\033[0m\n'")
    assert outcome.text == "red"
    assert "".join(heard) == "\x1b[31mred\x1b[0m\n"


async def test_binary_output_is_said_and_not_shown(workspace: TempWorkspace) -> None:
    outcome = await run(workspace, "bash", command="head -c 200000 /dev/urandom")
    assert outcome == Outcome(
        text="[200000 bytes of binary output, not shown; redirect it to a file to keep it]", status="ok"
    )
    failed = await run(workspace, "bash", command="head -c 2000 /dev/zero; exit 2")
    assert failed.text.endswith("keep it]\n[exit code 2]")


async def test_text_in_any_language_is_no_binary(workspace: TempWorkspace) -> None:
    (workspace.directory / "a").write_text("你好，世界 — Привет\n" * 100)
    assert (await run(workspace, "bash", command="cat a")).text.startswith("你好，世界 — Привет\n")


async def test_of_long_output_head_and_tail_are_read_and_the_whole_can_be(workspace: TempWorkspace) -> None:
    whole = "".join(f"{n} — é\n" for n in range(20_000))
    (workspace.directory / "a").write_text(whole)
    outcome = await run(workspace, "bash", command="cat a; exit 1")
    found = re.search(r"\n\[… (\d+) characters not shown; the whole is in (\S+) …\]\n", outcome.text)
    assert found is not None
    head, tail = outcome.text[: found.start()], outcome.text[found.end() :].removesuffix("\n[exit code 1]")
    assert (whole.startswith(head), whole.endswith(f"{tail}\n")) == (True, True)
    assert len(head) + len(tail) + 1 == MAX_OUTPUT_CHARS
    assert int(found[1]) == len(whole) - MAX_OUTPUT_CHARS
    assert Path(found[2]).read_text() == whole
    part = await run(workspace, "read_file", path=found[2], offset=12_000, limit=1)
    assert part.text == "11999 — é\n[lines 12000–12000 of 20000; go on with offset=12001]"
    hit = await run(workspace, "grep", pattern="^12345 ", path=found[2])
    assert hit.text == f"{found[2]}:12346: 12345 — é"


async def test_output_that_cannot_be_kept_is_still_read(tmp_path: Path) -> None:
    class Full(TempWorkspace):
        async def write(self, path: str, data: bytes, *, expected_sha256: str | None = None) -> FileStat:
            raise FileUnusable(path, "no space is left on its disk")

    outcome = await run(Full(tmp_path / "project"), "bash", command="head -c 50000 /dev/zero | tr '\\0' x")
    assert outcome.status == "ok"
    assert "10000 characters not shown; the whole could not be kept: " in outcome.text
    assert outcome.text.endswith("xxx")


async def test_exactly_as_much_as_may_be_is_shown_whole(workspace: TempWorkspace) -> None:
    outcome = await run(workspace, "bash", command=f"head -c {MAX_OUTPUT_CHARS} /dev/zero | tr '\\0' x")
    assert outcome.text == "x" * MAX_OUTPUT_CHARS
    assert list(Path(workspace.scratch).iterdir()) == []


# --- in the background ------------------------------------------------------------------------------------------------


async def test_a_background_command_is_started_read_and_stopped(workspace: TempWorkspace) -> None:
    with anyio.fail_after(20):
        started = await run(workspace, "bash", command="echo up; sleep 60", background=True)
        name = id_in(started)
        assert started == Outcome(text=f"Started in the background as {name}.\nup\n[still running]")
        quiet = await run(workspace, "bash_output", id=name)
        assert quiet == Outcome(text="[no new output]\n[still running]")
        stopped = await run(workspace, "bash_stop", id=name)
        assert stopped == Outcome(text="[no new output]\n[stopped]")


async def test_a_background_command_that_fails_at_once_says_so(workspace: TempWorkspace) -> None:
    with anyio.fail_after(20):
        outcome = await run(workspace, "bash", command="echo no such server >&2; exit 7", background=True)
        end = await run(workspace, "bash_output", id=id_in(outcome), wait_s=5)
    assert "no such server" in outcome.text
    assert end.text.endswith("[exit code 7]")


async def test_waiting_for_news_ends_with_the_news(workspace: TempWorkspace) -> None:
    with anyio.fail_after(20):
        command = "mkfifo fifo; read go < fifo; echo ready; sleep 60"
        name = id_in(await run(workspace, "bash", command=command, background=True))
        read: list[Outcome] = []
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                read.append(await run(workspace, "bash_output", id=name, wait_s=15))

            tasks.start_soon(wait)
            await workspace.run("echo go > fifo", time_limit_s=5)
    assert read == [Outcome(text="ready\n[still running]")]


async def test_an_unknown_name_lists_those_there_are(workspace: TempWorkspace) -> None:
    with pytest.raises(ToolRefused, match="there are none"):
        await run(workspace, "bash_output", id="bg_1")
    with anyio.fail_after(20):
        name = id_in(await run(workspace, "bash", command="echo x; sleep 60", background=True))
    with pytest.raises(ToolRefused, match=rf"there are: {name} \(\$ echo x; sleep 60\)"):
        await run(workspace, "bash_stop", id="bg_1")


async def test_a_start_that_is_interrupted_leaves_nothing_running(workspace: TempWorkspace) -> None:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:

            async def start() -> None:
                await run(workspace, "bash", command="sleep 60", background=True)

            tasks.start_soon(start)
            while not workspace.background:  # noqa: ASYNC110 - a workspace does not say that it grew
                await anyio.sleep(0.005)
            tasks.cancel_scope.cancel()
        assert (await workspace.background[0].read()).ended == "stopped"


async def test_a_command_no_shell_takes_is_refused_in_the_background_too(workspace: TempWorkspace) -> None:
    with pytest.raises(CommandRefused):
        await run(workspace, "bash", command="echo \0", background=True)


def test_a_title_says_what_goes_on_in_the_background() -> None:
    assert Bash().plan({"command": "npm run dev\n", "background": True}).title == "$ npm run dev (in the background)"
    long = Bash().plan({"command": "x" * 500, "background": True}).title
    assert (len(long) <= 160, long.endswith("… (in the background)")) == (True, True)
