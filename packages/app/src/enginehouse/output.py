"""Printing of the commands that only answer: listings, findings, one word.

Rule: stdout is UTF-8 whatever the locale says, coloured only on a terminal that wants it.
"""

import os
import sys
import time
from collections.abc import Sequence

from enginehouse_hosts.terminal.listing import json_lines, listing
from enginehouse_protocol.errors import FileUnusable
from enginehouse_protocol.permissions import JsonObject


def put(text: str) -> None:
    put_lines(text.encode("utf-8", "replace"))


def put_lines(data: bytes) -> None:
    """Raises: BrokenPipeError; FileUnusable: the disk that stdout goes to is full."""
    if sys.stdout is None:  # closed by whoever started us: nobody wants to know
        return
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FileUnusable("stdout", error.strerror or str(error)) from error


def flush() -> None:
    """Show what was put so far."""
    if sys.stdout is not None:
        sys.stdout.flush()


def remark(text: str) -> None:
    """For a person, beside the answer."""
    flush()
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")


def put_listing(
    titles: Sequence[str], rows: Sequence[Sequence[str]], objects: Sequence[JsonObject], *, as_json: bool, none: str
) -> None:
    """`none` is said on stderr when there is nothing to list."""
    if as_json:
        put(json_lines(objects))
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
