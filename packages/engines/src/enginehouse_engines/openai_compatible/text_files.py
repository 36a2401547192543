"""Files as text and back without touching a byte that nobody meant to change.

Rule: what `decode` accepts, `encode` gives back byte for byte. Encoding, byte order mark and every single line ending
belong to the file, not to the model: it reads and writes LF.
"""

import codecs
import difflib
import itertools
import re
from dataclasses import dataclass

from enginehouse_protocol.content import FileChange

MAX_DIFF_CHARS = 64 * 1024
_MAX_DIFF_LINES = 20_000
"""Old and new lines up to which it is found out which of them stay."""
_MAX_REMOVED_LINES = 40
_MAX_LINE_CHARS = 1_000
"""Of one run of removed lines and of one line, in a diff that is too long. Together less than a diff may have."""
_BINARY_CONTROL = re.compile(rb"[\x00-\x06\x0e-\x19\x1c-\x1f]")
"""No text in an old encoding holds these; backspace, form feed, end of file (0x1A) and escape it may."""
_CONTEXT = 3
_MAX_PLACES = 20_000
_MAX_COMPARED_LINES = 4_000_000
"""Old lines × new lines of one edit up to which it is found out line by line which ones stay."""
_MARKS = (  # UTF-32 first: its little-endian mark begins with the one of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class NotText(Exception):
    """The bytes are no text in any encoding we would dare to write back."""


class EditRefused(Exception):
    """An edit that cannot be done as asked. The message is for the model."""


@dataclass(frozen=True, kw_only=True)
class TextFile:
    text: str
    """Without byte order mark, line endings as in the file."""
    encoding: str = "utf-8"
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """`text` the way this file is written.

        Raises:
            UnicodeEncodeError: a character the file's encoding does not have.
        """
        return self.mark + text.encode(self.encoding)

    @property
    def newline(self) -> str:
        """The line ending most lines have; LF when there is none."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf > self.text.count("\n") - crlf else "\n"


@dataclass(frozen=True, kw_only=True)
class Replacement:
    old: str
    new: str
    every: bool = False
    """Replace it wherever it stands, not only where it is the only one."""


def decode(data: bytes) -> TextFile:
    """Find out how a file is written: mark, UTF-8, the Chinese national encoding, else a Western single-byte one.

    A guess among single-byte encodings may show wrong letters; it never changes bytes.

    Raises:
        NotText: binary.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            if (text := _round_trip(data.removeprefix(mark), encoding)) is not None:
                return TextFile(text=text, encoding=encoding, mark=mark)
            if encoding != "utf-8":
                raise NotText(f"it begins like {encoding} and is not")
    if b"\0" in data:
        raise NotText("it contains NUL bytes")
    if (text := _round_trip(data, "utf-8")) is not None:
        return TextFile(text=text)
    if _looks_chinese(data) and (text := _round_trip(data, "gb18030")) is not None:
        return TextFile(text=text, encoding="gb18030")
    if _BINARY_CONTROL.search(data):
        raise NotText("it contains control characters and is no UTF-8")
    if (text := _round_trip(data, "cp1252")) is not None:
        return TextFile(text=text, encoding="cp1252")
    return TextFile(text=data.decode("latin-1"), encoding="latin-1")


def _round_trip(data: bytes, encoding: str) -> str | None:
    try:
        text = data.decode(encoding)
        return text if text.encode(encoding) == data else None
    except UnicodeError:
        return None


def _looks_chinese(data: bytes) -> bool:
    """Whether the bytes above ASCII are pairs, and most of them everyday characters of GB 2312.

    Accented Western letters seldom come in pairs, and where they do (`öß`) the pair is a rare character.
    """
    try:
        characters = [c for c in data.decode("gb18030") if ord(c) > 0x7F]
    except UnicodeDecodeError:
        return False
    everyday = 0
    for character in characters:
        pair = character.encode("gb18030")
        everyday += len(pair) == 2 and (0xB0 <= pair[0] <= 0xD7 or 0xA1 <= pair[0] <= 0xA3) and pair[1] >= 0xA1
    return everyday >= 0.7 * len(characters)


def edited(text: str, edits: tuple[Replacement, ...]) -> str:
    """`text` with every edit done, or none.

    Each `old` is looked up in the text as it was before any edit, must be there exactly once unless every one of it is
    meant, and must not share a character with another edit's. Line endings do not count when comparing; unchanged
    lines keep theirs, changed and new ones take that of the line they replace, else that of the lines around them.

    Raises:
        EditRefused: nothing was changed; says which edit and why.
    """
    if not edits:
        raise EditRefused("there are no edits")
    plain, offsets = _without_carriage_returns(text)
    places: list[tuple[int, int, int]] = []
    for number, edit in enumerate(edits, start=1):
        old = edit.old.replace("\r\n", "\n")
        starts = _places(plain, old, f"edit {number}" if len(edits) > 1 else "the edit", every=edit.every)
        places += [(start, start + len(old), number) for start in starts]
    places.sort()
    for (_, end, first), (start, _, second) in itertools.pairwise(places):
        if start < end:
            raise EditRefused(f"edits {first} and {second} overlap; make one of them")
    if len(places) > _MAX_PLACES:
        raise EditRefused(f"it is there {len(places)} times, more than {_MAX_PLACES}; use a command for that")
    pieces: list[str] = []
    done = 0
    for start, end, number in places:
        first, last = offsets(start), offsets(end)
        pieces += text[done:first], _replaced(text, first, last, edits[number - 1].new.replace("\r\n", "\n"))
        done = last
    result = "".join([*pieces, text[done:]])
    if result == text:
        raise EditRefused("the edits change nothing: old and new are the same")
    return result


def _places(plain: str, old: str, name: str, *, every: bool) -> list[int]:
    """Where `old` is. With `every`, one behind the other; else the only place."""
    if not old:
        raise EditRefused(f"{name}: old is empty; give the text to replace, or use write_file for a new file")
    first = plain.find(old)
    if first < 0:
        wanted = " ".join(old.split())
        hint = " (it is there with other white space)" if wanted and wanted in " ".join(plain.split()) else ""
        raise EditRefused(f"{name}: old was not found{hint}; read the file again and copy the text exactly")
    starts, step = [first], len(old) if every else 1
    while (at := plain.find(old, starts[-1] + step)) >= 0:
        starts.append(at)
    if len(starts) > 1 and not every:
        raise EditRefused(
            f"{name}: old was found {len(starts)} times; add lines around it until it is the only one, or set "
            "replace_all when all of them are meant"
        )
    return starts


class _Offsets:
    """Positions in the text without carriage returns → positions in the text. Queried in rising order or not."""

    def __init__(self, text: str) -> None:
        self._crlf: list[int] = []  # position, in the plain text, of the LF of each CRLF
        at = text.find("\r\n")
        while at >= 0:
            self._crlf.append(at - len(self._crlf))
            at = text.find("\r\n", at + 2)

    def __call__(self, plain: int) -> int:
        """The position before the CR when `plain` is before a CRLF."""
        low, high = 0, len(self._crlf)
        while low < high:
            middle = (low + high) // 2
            if self._crlf[middle] < plain:
                low = middle + 1
            else:
                high = middle
        return plain + low


def _without_carriage_returns(text: str) -> tuple[str, _Offsets]:
    return text.replace("\r\n", "\n"), _Offsets(text)


def _replaced(text: str, first: int, last: int, new: str) -> str:
    """`new`, its lines ended as the lines it replaces were."""
    if "\n" not in new:
        return new
    usual = _newline_near(text, first, last)
    if "\n" not in text[first:last]:
        return new.replace("\n", usual)
    old_lines = _lines(text[first:last])
    new_lines = _lines(new)
    if len(old_lines) * len(new_lines) > _MAX_COMPARED_LINES:
        return new.replace("\n", usual)
    endings: list[str] = []
    matcher = difflib.SequenceMatcher(
        None, [line for line, _ in old_lines], [line for line, _ in new_lines], autojunk=False
    )
    for _, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        known = [ending for _, ending in old_lines[old_from:old_to]]
        endings += [(known[place] if place < len(known) else "") or usual for place in range(new_to - new_from)]
    return "".join(line + (ending if had else "") for (line, had), ending in zip(new_lines, endings, strict=True))


def _lines(text: str) -> list[tuple[str, str]]:
    """Each line with its ending; the last one may have none."""
    *ended, last = text.split("\n")
    lines = [(line.removesuffix("\r"), "\r\n" if line.endswith("\r") else "\n") for line in ended]
    return [*lines, (last, "")] if last else lines


def _newline_near(text: str, first: int, last: int) -> str:
    """The ending of the line the change ends in, else of the one before it, else the usual one."""
    after = text.find("\n", max(first, last - 1))
    before = text.rfind("\n", 0, first)
    at = after if after >= 0 else before
    if at < 0:
        return TextFile(text=text).newline
    return "\r\n" if text[at - 1 : at] == "\r" else "\n"


def change_of(path: str, before: str | None, after: str | None, *, over_binary: bool = False) -> FileChange:
    """What happens to one file, as a unified diff without headers. `before` None: nothing that is text is there;
    `after` None: nothing will be.

    Whoever reads it decides by it, so it is never empty when something changes, and what comes in is in sight however
    much goes out: a diff that is too long is the beginning of one, with long lines and long removals shortened.
    """
    kind = "deleted" if after is None else "created" if before is None and not over_binary else "modified"
    old, new = _shown(before or ""), _shown(after or "")
    lines = _line_endings(before or "", after) if after is not None else []
    if len(old) + len(new) <= _MAX_DIFF_LINES:
        lines += list(difflib.unified_diff(old, new, n=_CONTEXT))[2:]
    else:
        lines += _one_hunk(old, new)
    whole = "".join(lines)
    if len(whole) <= MAX_DIFF_CHARS:
        return FileChange(path=path, change=kind, diff=whole)
    return FileChange(path=path, change=kind, diff=_beginning(lines), cut=True)


def _line_endings(before: str, after: str) -> list[str]:
    """What the lines of a diff cannot show, because they show the text as the model reads it."""
    old, new = _kind_of_endings(before), _kind_of_endings(after)
    if old and new and old != new:
        return [f"line endings: {old} → {new}\n"]
    return ["line endings: some lines change theirs\n"] if before != after and _plain(before) == _plain(after) else []


def _kind_of_endings(text: str) -> str:
    crlf = text.count("\r\n")
    lf = text.count("\n") - crlf
    if crlf and lf:
        return "mixed"
    if crlf:
        return "CRLF"
    return "LF" if lf else ""


def _one_hunk(old: list[str], new: list[str]) -> list[str]:
    """Everything between the first and the last line that differ, as one replacement: comparing so many lines takes
    too long."""
    short = min(len(old), len(new))
    first = next((at for at in range(short) if old[at] != new[at]), short)
    last = next((at for at in range(short - first) if old[-1 - at] != new[-1 - at]), short - first)
    if first == len(old) == len(new):
        return []
    start, behind = max(0, first - _CONTEXT), max(0, last - _CONTEXT)
    old_end, new_end = len(old) - last, len(new) - last
    places = f"-{_range(start, len(old) - behind)} +{_range(start, len(new) - behind)}"
    return [
        f"@@ {places} @@\n",
        *(f" {line}" for line in old[start:first]),
        *(f"-{line}" for line in old[first:old_end]),
        *(f"+{line}" for line in new[first:new_end]),
        *(f" {line}" for line in old[old_end : len(old) - behind]),
    ]


def _range(start: int, end: int) -> str:
    """As a unified diff counts: from 1, and an empty range names the line before it."""
    return f"{start + 1 if end > start else start},{end - start}"


def _beginning(lines: list[str]) -> str:
    kept: list[str] = []
    size = removed = 0
    for line in lines:
        removed = removed + 1 if line.startswith("-") else 0
        if removed > _MAX_REMOVED_LINES:
            if removed > _MAX_REMOVED_LINES + 1:
                continue
            line = "… and more lines that are removed here\n"
        elif len(line) > _MAX_LINE_CHARS:
            line = f"{line[:_MAX_LINE_CHARS]}… ({len(line) - _MAX_LINE_CHARS} characters more)\n"
        size += len(line)
        if size > MAX_DIFF_CHARS:
            break
        kept.append(line)
    return "".join(kept)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def _shown(text: str) -> list[str]:
    lines = _plain(text).split("\n")
    shown = [f"{line}\n" for line in lines[:-1]]
    if lines[-1]:
        shown.append(f"{lines[-1]}\n\\ No newline at end of file\n")
    return shown
