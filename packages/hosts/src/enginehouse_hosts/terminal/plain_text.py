"""Text from models and tools, made safe and short enough to show on a terminal.

Rule: no byte that a terminal would obey comes through. What is left out is said.
"""

import re

_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"  # titles, links, device strings
    "|\x1b[ -/]*[0-~]"
)
_HIDDEN = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C))
"""Characters that reorder what is shown: a command must read as it runs."""
_SHOWN = {
    **{code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: 0x2421,
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:04x}" for code in _HIDDEN},
    0x2028: "\n",
    0x2029: "\n",
}
_LONGEST = 64 * 1024
_LONGEST_LINE = 400


def neutral(text: str) -> str:
    """`text` with every control character shown instead of obeyed. Safe on any piece of a stream."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


def one_line(text: str, width: int = _LONGEST_LINE) -> str:
    """The first line of `text`, at most `width` characters."""
    text = text[: 4 * width].strip()
    head, _, rest = text.partition("\n")
    head = neutral(head.replace("\r", " "))
    return f"{head[: width - 1]}…" if len(head) > width or rest else head


def without_sequences(text: str) -> str:
    """A tool's output as it reads: colours and cursor movements gone, a carriage return as a new line."""
    return neutral(_SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def folded(text: str, *, head: int = 6, tail: int = 10) -> list[str]:
    """The lines of a text worth showing: its beginning, how much is left out, its end. Its cost is bounded."""
    dropped = max(0, len(text) - 2 * _LONGEST)
    if dropped:
        text = f"{text[:_LONGEST]}\n{text[-_LONGEST:]}"
    lines = without_sequences(text).strip("\n").split("\n")
    if lines == [""]:
        return []
    if len(lines) > head + tail + 1 or dropped:
        left_out = "many" if dropped else str(len(lines) - head - tail)
        lines = [*lines[:head], f"… {left_out} lines not shown …", *lines[-tail:]]
    return [_shortened(line) for line in lines]


def _shortened(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[:_LONGEST_LINE]}… ({len(line) - _LONGEST_LINE} characters more)"
