"""Printing of the commands that only answer: listings, findings, one word.

Rule: stdout is UTF-8 whatever the locale says, coloured only on a terminal that wants it.
"""

import os
import sys
import time
from collections.abc import Sequence

from enginehouse_hosts.terminal.listing import json_lines, listing
from enginehouse_protocol.permissions import JsonObject


def put(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def put_lines(data: bytes) -> None:
    sys.stdout.buffer.write(data)


def remark(text: str) -> None:
    """For a person, beside the answer."""
    sys.stdout.flush()
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
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 100
    except OSError:
        return 100


def clock(at_ms: int) -> str:
    """A moment as a person reads it, in local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_ms / 1000)) if at_ms else ""
