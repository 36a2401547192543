"""Changing a text, or a tool's input before it runs: in the person's editor, or as JSON typed into one line.

Rule: what comes back of an input is a JSON object, or nothing was edited. The file is private and gone afterwards, and
an editor that is ended in the middle leaves a usable terminal.
"""

import os
import shlex
import tempfile
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from enginehouse_hosts.terminal.plain_text import json_exact
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_protocol.permissions import JsonObject

_EDITOR_ENDS_S = 1.0


class NotEdited(Exception):
    """The person gave up, or what they wrote is no input. The text says which."""


def editor_of(environment: Mapping[str, str]) -> list[str]:
    """The command of the person's editor; empty when none is set."""
    try:
        return shlex.split(environment.get("VISUAL") or environment.get("EDITOR") or "")
    except ValueError:
        return []


async def edited_in_editor(tool_input: JsonObject, editor: list[str], streams: Streams) -> JsonObject:
    """Raises: NotEdited."""
    return parsed(await edited_bytes(json_exact(tool_input, indent=2).encode() + b"\n", ".json", editor, streams))


async def edited_bytes(text: bytes, suffix: str, editor: list[str], streams: Streams) -> bytes:
    """What the person's editor made of it. Raises: NotEdited."""
    path = await anyio.to_thread.run_sync(_written, text, suffix)
    try:
        with _terminal_as_it_is(streams.stdin):
            code = await _ended([*editor, str(path)], streams)
        if code != 0:
            raise NotEdited(f"{editor[0]} ended with {code}; nothing is changed")
        return await anyio.to_thread.run_sync(path.read_bytes)
    except OSError as error:
        raise NotEdited(f"cannot edit with {editor[0]}: {error.strerror}") from error
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await anyio.to_thread.run_sync(path.unlink, True)


async def _ended(command: list[str], streams: Streams) -> int:
    """Run an editor to its end. One that is not waited for any more may put its things in order, but not for long."""
    # stdin and stderr are the terminal when somebody is asked; stdout may be a pipe that waits for the answer.
    async with await anyio.open_process(
        command, stdin=streams.stdin, stdout=streams.stderr, stderr=streams.stderr
    ) as editor:
        try:
            code = await editor.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(_EDITOR_ENDS_S), suppress(ProcessLookupError):
                    editor.terminate()
                    await editor.wait()
                if editor.returncode is None:
                    with suppress(ProcessLookupError):
                        editor.kill()
                with anyio.move_on_after(_EDITOR_ENDS_S):
                    await streams.leave_screen()
            raise
        if code < 0:
            await streams.leave_screen()
        return code


async def edited_inline(tool_input: JsonObject, streams: Streams) -> JsonObject:
    """Raises: NotEdited."""
    await streams.say(f"  now: {json_exact(tool_input)}")
    line = await streams.ask("  the input as JSON on one line (empty: go back; $EDITOR opens an editor) > ")
    if not (line or "").strip():
        raise NotEdited("nothing is changed")
    return parsed((line or "").encode())


def parsed(data: bytes) -> JsonObject:
    """Raises: NotEdited."""
    try:
        return msgspec.json.decode(data, type=JsonObject)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotEdited(f"that is no JSON object: {error}") from error


def _written(text: bytes, suffix: str) -> Path:
    descriptor, name = tempfile.mkstemp(prefix="enginehouse-", suffix=suffix)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
    return Path(name)


@contextmanager
def _terminal_as_it_is(terminal: int) -> Iterator[None]:
    """An editor that is ended in the middle leaves the terminal raw."""
    try:
        before = termios.tcgetattr(terminal)
    except termios.error:
        before = None
    try:
        yield
    finally:
        if before is not None:
            with suppress(termios.error):  # it may be gone
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)
