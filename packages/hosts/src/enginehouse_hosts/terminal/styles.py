"""How things look: a handful of styles, rendered by rich on a terminal and by nothing elsewhere.

Rule: rich is loaded only where something is coloured; text that goes into a pipe or under `NO_COLOR` has no escape
sequence in it.
"""

from typing import Literal

from enginehouse_hosts.terminal.plain_text import exact, folded_exact, one_line
from enginehouse_protocol.content import FileChange

StyleName = Literal["title", "faint", "good", "bad", "doubtful", "added", "removed", "place", "ask"]

_STYLES: dict[StyleName, str] = {
    "title": "bold",
    "faint": "dim",
    "good": "green",
    "bad": "bold red",
    "doubtful": "yellow",
    "added": "green",
    "removed": "red",
    "place": "cyan",
    "ask": "bold magenta",
}
_DIFF_HEAD, _DIFF_TAIL = 60, 20
_LONGEST_PATH = 4_096


class Styles:
    def __init__(self, *, coloured: bool) -> None:
        self.coloured = coloured

    def __call__(self, name: StyleName, text: str) -> str:
        """`text`, which is one line or less, in a style."""
        if not self.coloured or not text:
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        return Style.parse(_STYLES[name]).render(text, color_system=ColorSystem.STANDARD)

    def diff(self, change: FileChange, *, whole: bool = False) -> list[str]:
        """A file's change as unified diff lines, a headline first; `whole`: however long it is."""
        path = one_line(change.path, _LONGEST_PATH)
        lines = [self("title", f"{path} ({change.change})")]
        if whole:
            shown = exact(change.diff.removesuffix("\n")).split("\n") if change.diff else []
        else:
            shown = folded_exact(change.diff, head=_DIFF_HEAD, tail=_DIFF_TAIL)
        lines += [self._diff_line(line) for line in shown]
        if not shown and change.change == "modified":
            lines.append(self("faint", "no text to show"))
        if change.cut:
            lines.append(self("faint", "… the diff goes on"))
        return lines

    def _diff_line(self, line: str) -> str:
        match line[:1]:
            case "+":
                return self("added", line)
            case "-":
                return self("removed", line)
            case "@":
                return self("place", line)
            case "…":
                return self("faint", line)
            case _:
                return line
