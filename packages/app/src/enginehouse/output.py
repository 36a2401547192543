"""Printing of the commands that only answer: listings, findings, one word.

Rule: stdout is UTF-8 whatever the locale says, coloured only on a terminal that wants it.
"""

import os
import sys
import time
from collections.abc import Sequence

from enginehouse_hosts.terminal.listing import json_listing, listing
from enginehouse_hosts.terminal.plain_text import exact
from enginehouse_hosts.terminal.streams import OutputUnwritable
from enginehouse_protocol.permissions import JsonObject


def put(text: str) -> None:
    put_lines(text.encode("utf-8", "replace"))


def put_lines(data: bytes) -> None:
    """Raises: BrokenPipeError; OutputUnwritable: the disk that stdout goes to is full."""
    if sys.stdout is None:  # closed by whoever started us: nobody wants to know
        return
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputUnwritable(error.strerror or str(error)) from error


def put_path(path: str) -> None:
    """A path, as it is for programs: their command lines are made of it. A person's terminal obeys nothing in it."""
    shown = exact(path) if sys.stdout is not None and sys.stdout.isatty() else path
    put_lines(os.fsencode(f"{shown}\n"))


def flush() -> None:
    """Show what was put so far."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputUnwritable(error.strerror or str(error)) from error


def remark(text: str) -> None:
    """For a person, beside the answer: on stderr, and of no consequence where nobody can read it. Names in it may hold
    whatever a file system allows."""
    flush()
    _to_stderr(f"{exact(text)}\n")


def complain(text: str) -> None:
    """One line about what went wrong."""
    _to_stderr(f"enginehouse: {exact(' '.join(text.splitlines()))}\n")


def at_a_terminal() -> bool:
    """Whether a person sits here who reads stderr and types into stdin."""
    return bool(sys.stdin and sys.stderr and sys.stdin.isatty() and sys.stderr.isatty())


def agreed(question: str) -> bool:
    """Ask the person at this terminal; everything but a yes is a no."""
    if not at_a_terminal():
        return False
    _to_stderr(f"{exact(question)} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _to_stderr(text: str) -> None:
    if sys.stderr is None:  # closed by whoever started us
        return
    try:
        sys.stderr.write(text.encode("utf-8", "replace").decode("utf-8"))
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def put_listing(
    titles: Sequence[str], rows: Sequence[Sequence[str]], objects: Sequence[JsonObject], *, as_json: bool, none: str
) -> None:
    """`none` is said on stderr when there is nothing to list."""
    if as_json:
        put(json_listing(objects))
    elif rows:
        put(listing(titles, rows, width=table_width()))
    else:
        remark(none)


def table_width() -> int | None:
    """None: no table is wanted."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 100
    except OSError:
        return 100


def clock(at_ms: int) -> str:
    """A moment as a person reads it, in local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_ms / 1000)) if at_ms else ""
