"""Text from models and tools, made safe and short enough to show on a terminal.

Rule: no byte that a terminal would obey comes through, and no character that nobody would see. What a person decides
about is `exact`: nothing of it is left out. Only the output of tools, which is read and not decided about, loses its
colours and cursor movements. What is left out for length is said.
"""

import re
import unicodedata
from functools import cache

import msgspec

from enginehouse_protocol.permissions import JsonObject

_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"  # titles, links, device strings
    "|\x1b[ -/]*[0-~]"
)
_UNSEEN = frozenset(
    {
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180E, 0x180F, 0x2065, 0x3164, 0xFFA0),
        *range(0xFE00, 0xFE10),  # variation selectors
        *range(0xFFF0, 0xFFF9),
        *range(0xE0000, 0xE1000),
        *range(0x1D173, 0x1D17B),
        0x2800,  # a Braille pattern without dots
    }
)
"""Default_Ignorable_Code_Point of Unicode, where its category does not tell, and what looks the same."""
_JOINING = frozenset({0x200C, 0x200D, *range(0xFE00, 0xFE10)})
"""What emoji and several scripts are written with. In speech they are no harm; in a command they would be."""
_LONGEST = 64 * 1024
_LONGEST_LINE = 400


class _Seen(dict[int, int | str]):
    """A table for `str.translate` that is made as it is used."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self._whole = whole

    def __missing__(self, code: int) -> int | str:
        seen = self[code] = _seen(code, whole=self._whole)
        return seen


def _seen(code: int, *, whole: bool) -> int | str:
    if code in (0x09, 0x0A):
        return code
    if code < 0x20:
        return 0x2400 + code
    if code == 0x7F:
        return 0x2421
    if code < 0x7F:
        return code
    if not whole and code in (0x2028, 0x2029):
        return "\n"
    if not whole and code in _JOINING:
        return code
    category = unicodedata.category(chr(code))
    unseen = category in ("Cc", "Cf", "Cs", "Zl", "Zp") or code in _UNSEEN
    if unseen or (whole and not chr(code).isprintable()):  # blanks that are no space, too
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return code


@cache
def _table(*, whole: bool) -> _Seen:
    return _Seen(whole=whole)


def exact(text: str) -> str:
    """`text` with nothing lost: whatever is not seen, or would be obeyed, is written out. New lines and tabs stay."""
    return text.translate(_table(whole=True))


def neutral(text: str) -> str:
    """The same for what is said, not decided about: a new line is one however it is written, and emoji stay whole.
    Safe on any piece of a stream."""
    return text.replace("\r\n", "\n").translate(_table(whole=False))


def one_line(text: str, width: int = _LONGEST_LINE) -> str:
    """The first line of `text`, exact, at most `width` characters."""
    text = text[: 4 * width].strip()
    head, _, rest = text.partition("\n")
    head = exact(head)
    return f"{head[: width - 1]}…" if len(head) > width or rest else head


def without_sequences(text: str) -> str:
    """A tool's output as it reads: colours and cursor movements gone, a carriage return as a new line."""
    return neutral(_SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def folded(text: str, *, head: int = 6, tail: int = 10) -> list[str]:
    """The lines of a tool's output worth showing: its beginning, how much is left out, its end. Its cost is bounded."""
    dropped = max(0, len(text) - 2 * _LONGEST)
    if dropped:
        text = f"{text[:_LONGEST]}\n{text[-_LONGEST:]}"
    return _ends(without_sequences(text).strip("\n"), head, tail, cut=bool(dropped))


def folded_exact(text: str, *, head: int, tail: int) -> list[str]:
    """The same for what a person decides about: the lines that are shown are shown as they are."""
    dropped = max(0, len(text) - 2 * _LONGEST)
    if dropped:
        text = f"{text[:_LONGEST]}\n{text[-_LONGEST:]}"
    return _ends(exact(text.removesuffix("\n")), head, tail, cut=bool(dropped))


def is_long(text: str, *, lines: int, characters: int) -> bool:
    """Whether a person would have to scroll for it."""
    return len(text) > characters or text.count("\n") >= lines


def json_exact(value: JsonObject, *, indent: int = 0) -> str:
    """A JSON object in which nothing is unseen: what `exact` would write out is escaped the way JSON does it, so that
    it can be edited and read back."""
    encoded = msgspec.json.encode(value)
    text = (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    table = _table(whole=True)
    return "".join(letter if table[ord(letter)] == ord(letter) else _json_escape(letter) for letter in text)


def _json_escape(letter: str) -> str:
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _ends(text: str, head: int, tail: int, *, cut: bool) -> list[str]:
    lines = text.split("\n")
    if lines == [""]:
        return []
    if len(lines) > head + tail + 1 or cut:
        left_out = "many" if cut else str(len(lines) - head - tail)
        lines = [*lines[:head], f"… {left_out} lines not shown …", *lines[-tail:]]
    return [_shortened(line) for line in lines]


def _shortened(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[:_LONGEST_LINE]}… ({len(line) - _LONGEST_LINE} characters more)"
