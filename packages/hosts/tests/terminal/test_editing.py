"""The person's editor, and a terminal that is usable after it."""

import os
import sys
import termios
from pathlib import Path

import anyio
import pytest
from terminal.desk import Desk

from enginehouse_hosts.terminal.editing import NotEdited, edited_in_editor
from enginehouse_protocol.permissions import JsonObject

pytestmark = pytest.mark.anyio
RESTORED = "\x1b[?1049l\x1b[?25h\x1b[0m"
FULL_SCREEN = """\
import os, signal, sys, time, tty
tty.setraw(0)
sys.stdout.write("\\x1b[?1049h\\x1b[?25l" + "open"); sys.stdout.flush()
"""


@pytest.fixture
def editor(tmp_path: Path) -> list[str]:
    return [sys.executable, str(tmp_path / "editor.py")]


def does(editor: list[str], script: str) -> None:
    Path(editor[1]).write_text(FULL_SCREEN + script)


async def test_an_editor_that_is_killed_leaves_a_usable_screen(terminal: Desk, editor: list[str]) -> None:
    does(editor, "os.kill(os.getpid(), signal.SIGKILL)")
    before = termios.tcgetattr(terminal.streams.stdin)
    with anyio.fail_after(10), pytest.raises(NotEdited, match="-9"):
        await edited_in_editor({"command": "ls"}, editor, terminal.streams)
    await terminal.until(RESTORED)
    assert termios.tcgetattr(terminal.streams.stdin) == before


async def test_an_editor_nobody_waits_for_is_asked_to_end_before_it_is_made_to(
    terminal: Desk, editor: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "told"
    does(  # a handler of Python's would not run when the signal comes just before a sleep begins
        editor,
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\nprint('ready', flush=True)\n"
        f"signal.sigwait({{signal.SIGTERM}})\nopen({str(file)!r}, 'w').write('bye')\nos._exit(0)",
    )
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(edited_in_editor, {"command": "ls"}, editor, terminal.streams)
            await terminal.until("ready")
            tasks.cancel_scope.cancel()
    assert file.read_text() == "bye"
    await terminal.until(RESTORED)


async def test_one_that_is_deaf_is_killed(terminal: Desk, editor: list[str]) -> None:
    does(
        editor,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(f'pid {os.getpid()}.', flush=True)\ntime.sleep(60)",
    )
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(edited_in_editor, {"command": "ls"}, editor, terminal.streams)
            await terminal.until(".")
            tasks.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(terminal.shown.partition("pid ")[2].partition(".")[0]), 0)


async def test_the_file_hides_nothing_and_reads_back_as_it_was(terminal: Desk, editor: list[str]) -> None:
    given: JsonObject = {"command": "ls \u202e\U000e0041"}
    Path(editor[1]).write_text("import sys; text = open(sys.argv[1]).read(); assert text.isascii(), text")
    with anyio.fail_after(10):
        assert await edited_in_editor(given, editor, terminal.streams) == given
