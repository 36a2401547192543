"""Changing a tool's input before it runs: in the person's editor, or as JSON typed into one line.

Rule: what comes back is a JSON object, or nothing was edited. The file is private and gone afterwards.
"""

import os
import shlex
import tempfile
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from enginehouse_hosts.terminal.streams import Streams
from enginehouse_protocol.permissions import JsonObject


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
    path = await anyio.to_thread.run_sync(_written, msgspec.json.format(msgspec.json.encode(tool_input), indent=2))
    try:
        with _terminal_as_it_is(streams.stdin):
            # stdin and stderr are the terminal when somebody is asked; stdout may be a pipe that waits for the answer.
            result = await anyio.run_process(
                [*editor, str(path)], stdin=streams.stdin, stdout=streams.stderr, stderr=streams.stderr, check=False
            )
        if result.returncode != 0:
            raise NotEdited(f"{editor[0]} ended with {result.returncode}; nothing is changed")
        return parsed(await anyio.to_thread.run_sync(path.read_bytes))
    except OSError as error:
        raise NotEdited(f"cannot edit with {editor[0]}: {error.strerror}") from error
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await anyio.to_thread.run_sync(path.unlink, True)


async def edited_inline(tool_input: JsonObject, streams: Streams) -> JsonObject:
    """Raises: NotEdited."""
    await streams.say(f"  now: {msgspec.json.encode(tool_input).decode()}")
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


def _written(text: bytes) -> Path:
    descriptor, name = tempfile.mkstemp(prefix="enginehouse-", suffix=".json")
    with os.fdopen(descriptor, "wb") as file:
        file.write(text + b"\n")
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
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
