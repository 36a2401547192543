"""One line of the result table."""

from typing import NamedTuple


class Row(NamedTuple):
    what: str
    ours: str
    beside: str
    ratio: float
    """Ours to what stands beside it, in the direction the target is written in."""
    target: str


def show(rows: list[Row]) -> None:
    heads = ("what", "ours", "beside", "ratio", "target")
    table = [heads, *((row.what, row.ours, row.beside, f"{row.ratio:.2f}", row.target) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(heads))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
