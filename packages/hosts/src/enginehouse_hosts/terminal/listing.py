"""Listings: a table on a terminal, aligned text in a pipe, one JSON object a line for programs.

Rule: the same rows in all three; what a pipe gets is never cut to a width.
"""

from collections.abc import Sequence

import msgspec

from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_protocol.permissions import JsonObject

_WIDEST = 4_000


def listing(titles: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None) -> str:
    """The rows with a line of titles above, ending in a newline; nothing without rows. `width`: of the terminal, where
    there is one that wants a table."""
    if not rows:
        return ""
    clean = [[one_line(cell, _WIDEST) for cell in row] for row in rows]
    if width is not None:
        return _table(titles, clean, width)
    lines = [[title.upper() for title in titles], *clean]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def json_listing(rows: Sequence[JsonObject]) -> str:
    encoder = msgspec.json.Encoder()
    return "".join(f"{encoder.encode(row).decode()}\n" for row in rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    from io import StringIO

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(title, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=StringIO(), force_terminal=True, width=max(width, 60), color_system="standard")
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()
