"""Keeps the values of secrets out of everything that is stored, shown or sent on.

Rule: a secret the hub holds becomes `«secret:name»` in each of its common spellings, also when it arrives in
pieces. Whatever touches a found spelling goes with it: matches that overlap become one mask, named after the
leftmost (and there the longest). That makes masking in pieces and masking the whole the same function.

Looking is a loop of `in`: per text a few microseconds, and the very same object comes back when nothing was
found. Over 256 KiB call it in a worker thread. Not recognised: spellings inside compressed or encrypted data,
and UTF-16.
"""

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import quote, quote_plus

MINIMUM_LENGTH = 8
"""Shorter values are left alone: masking "test" or "1234" would destroy ordinary text."""

_WRAP = re.compile(r"(?<=[A-Za-z0-9+/=_-])\r?\n(?=[A-Za-z0-9+/=_-])")
"""A line break inside encoded text: `base64` breaks after 76 characters, `openssl` after 64, `xxd -p` after
60."""
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9_.-]")


class Span(NamedTuple):
    start: int
    end: int
    mask: str


class Masker:
    """Knows secrets by name. Immutable: one that learned another secret is a new one (`with_secrets`)."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Values shorter than `MINIMUM_LENGTH` (without surrounding white space) are not masked."""
        self._secrets = dict(secrets)
        held = {name: value.strip() for name, value in secrets.items()}
        held = {name: value for name, value in held.items() if len(value) >= MINIMUM_LENGTH}
        self.masks: dict[str, str] = _masks(held)
        """Name as given → the text that stands for its value."""
        plain: dict[str, str] = {}
        wrapped: dict[str, str] = {}
        for name, value in sorted(held.items(), key=lambda item: (-len(item[1]), item[0])):
            for pattern in _spellings(value):
                plain.setdefault(pattern, self.masks[name])
            for pattern in _encodings(value):
                wrapped.setdefault(pattern, self.masks[name])
        self._text = _Finder(plain, wrapped)
        self._bytes = self._text
        if not all(map(str.isascii, plain)):
            self._bytes = _Finder({_latin(p): m for p, m in plain.items()}, wrapped)
        self._line_plain = _by_length(_latin(form) for p in plain for form in _json_forms(p))
        self._line_wrapped = _by_length(wrapped)

    def __bool__(self) -> bool:
        return bool(self.masks)

    @property
    def longest(self) -> int:
        """The length of the longest spelling; 0 without secrets."""
        return self._text.longest

    def with_secrets(self, more: Mapping[str, str]) -> "Masker":
        return Masker({**self._secrets, **more})

    def text(self, text: str) -> str:
        """`text` without secrets; the same object when it held none."""
        return self._text.masked(text)

    def bytes_(self, data: bytes) -> bytes:
        """The same for bytes in UTF-8 or any other superset of ASCII."""
        if not self.masks:
            return data
        text = data.decode("latin-1")
        masked = self._bytes.masked(text, _latin)
        return data if masked is text else masked.encode("latin-1")

    def value(self, value: Any) -> Any:
        """The same for JSON-like builtins, keys included; parts that held nothing are shared, not copied."""
        if not self.masks:
            return value
        match value:
            case str():
                return self._text.masked(value)
            case bytes():
                return self.bytes_(value)
            case dict():
                return self._mapping(cast(dict[Any, Any], value))
            case list() | tuple():
                items = cast(list[Any] | tuple[Any, ...], value)
                new = [self.value(item) for item in items]
                if all(a is b for a, b in zip(items, new, strict=True)):
                    return items
                return new if isinstance(items, list) else tuple(new)
            case _:
                return value

    def _mapping(self, mapping: dict[Any, Any]) -> dict[Any, Any]:
        new: dict[Any, Any] = {}
        changed = False
        for key, item in mapping.items():
            masked_key, masked_item = self.value(key), self.value(item)
            changed = changed or masked_key is not key or masked_item is not item
            while masked_key in new:  # two keys that differed only in their secrets
                masked_key = f"{masked_key}~"
            new[masked_key] = masked_item
        return new if changed else mapping

    def contains(self, encoded: bytes) -> bool:
        """Whether an encoded JSON text may hold a secret.

        False is certain: then no string in it would be changed by `text`. True may, rarely, be mistaken.
        """
        if not self.masks:
            return False
        line = encoded.decode("latin-1")  # `in` costs a fifth of what it costs on bytes
        size = len(line)
        for pattern in self._line_plain:
            if len(pattern) > size:
                break
            if pattern in line:
                return True
        if "\\n" in line:
            # `\\` first: in an escaped backslash before an "n" nothing is a line break.
            line = line.replace("\\\\", "\0").replace("\\n", "").replace("\\r", "")
        for pattern in self._line_wrapped:
            if len(pattern) > size:
                break
            if pattern in line:
                return True
        return False

    def has_mask(self, text: str) -> str | None:
        """The name of a secret of ours whose mask is in `text`: such a text must not reach a file or a
        process."""
        if "«secret:" not in text:
            return None
        return next((name for name, mask in self.masks.items() if mask in text), None)

    def stream(self) -> "StreamMasker":
        """For one text that arrives in pieces, such as the deltas of one message."""
        return StreamMasker(self._text)


class StreamMasker:
    """Masks a text that arrives in pieces: what is returned, joined, is what `Masker.text` makes of the whole.

    Holds back only what may be the beginning of a secret, so never more than the longest spelling of one.
    """

    def __init__(self, finder: "_Finder") -> None:
        self._finder = finder
        self._held = ""
        self._covered = 0
        """How much of the beginning of `_held` belongs to a mask that was already returned."""

    def feed(self, text: str) -> str:
        finder = self._finder
        if not finder.longest:
            return text
        if self._held:
            text = self._held + text
        spans = self._spans(text)
        cut = len(text) - finder.beginning(text)
        covered = 0
        if spans:
            spans = [span for span in spans if span.start < cut or not span.mask]
            if spans and spans[-1].end > cut:
                covered = spans[-1].end - cut  # its mask goes out now; what follows may still belong to it
        self._held = text[cut:]
        self._covered = covered
        return _replaced(text, spans, cut) if spans else text[:cut]

    @property
    def held_back(self) -> int:
        """How many characters wait for what follows."""
        return len(self._held)

    def flush(self) -> str:
        """What was held back, now that nothing follows. The stream may then be used for another text."""
        text, spans = self._held, self._spans(self._held)
        self._held = ""
        self._covered = 0
        return _replaced(text, spans, len(text)) if spans else text

    def _spans(self, text: str) -> list[Span]:
        found = self._finder.spans(text) if self._finder.found_in(text) else []
        return _merged([Span(0, self._covered, ""), *found]) if self._covered else found


class _Finder:
    """The spellings of all secrets. `plain` must occur as they are, `wrapped` may be broken into lines."""

    def __init__(self, plain: dict[str, str], wrapped: dict[str, str]) -> None:
        self._plain = plain
        self._wrapped = wrapped
        self._plain_by_length = _by_length(plain)
        self._wrapped_by_length = _by_length(wrapped)
        everything = {*plain, *wrapped}
        self.longest = max(map(len, everything), default=0)
        self._by_start: dict[str, list[str]] = {}
        for pattern in everything:
            self._by_start.setdefault(pattern[:4], []).append(pattern)
        self._starts = re.compile("|".join(map(re.escape, sorted(self._by_start))))
        self._short_starts = frozenset(p[:size] for p in everything for size in (1, 2, 3))

    def found_in(self, text: str) -> bool:
        """Fast, and may be mistaken only in saying yes."""
        size = len(text)
        for pattern in self._plain_by_length:
            if len(pattern) > size:
                break
            if pattern in text:
                return True
        if "\n" in text:
            text = text.replace("\n", "").replace("\r", "")
        for pattern in self._wrapped_by_length:
            if len(pattern) > size:
                break
            if pattern in text:
                return True
        return False

    def masked(self, text: str, spell: Callable[[str], str] = str) -> str:
        if not self.longest or not self.found_in(text):
            return text
        spans = self.spans(text)
        if not spans:
            return text
        return _replaced(text, [span._replace(mask=spell(span.mask)) for span in spans], len(text))

    def spans(self, text: str) -> list[Span]:
        """What is to be replaced, in order; overlapping finds are merged."""
        found = [Span(at, at + len(p), mask) for p, mask in self._plain.items() for at in _places(p, text)]
        squeezed, original = _squeezed(text)
        for pattern, mask in self._wrapped.items():
            for at in _places(pattern, squeezed):
                last = original(at + len(pattern) - 1)
                found.append(Span(original(at), last + 1, mask))
        return _merged(found)

    def beginning(self, text: str) -> int:
        """How many characters at the end of `text` may begin a spelling that is not complete yet."""
        held = self._suffix(text[-self.longest + 1 :])
        tail = text[-3 * self.longest :]  # at worst every character stands on a line of its own
        if "\n" not in tail and not tail.endswith("\r"):
            return held
        bare = tail.removesuffix("\n").removesuffix("\r")  # what comes next decides whether this break counts
        squeezed, original = _squeezed(bare)
        count = self._suffix(squeezed[-self.longest + 1 :])
        return max(held, len(tail) - original(len(squeezed) - count)) if count else held

    def _suffix(self, tail: str) -> int:
        size = len(tail)
        at = 0
        while (match := self._starts.search(tail, at)) is not None:
            at = match.start()
            rest = tail[at:]
            if any(len(p) > size - at and p.startswith(rest) for p in self._by_start[match[0]]):
                return size - at
            at += 1
        for count in (3, 2, 1):
            if size >= count and tail[-count:] in self._short_starts:
                return count
        return 0


def _by_length(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(patterns), key=lambda pattern: (len(pattern), pattern)))


def _places(pattern: str, text: str) -> Iterator[int]:
    at = text.find(pattern)
    while at >= 0:
        yield at
        at = text.find(pattern, at + 1)


def _merged(found: list[Span]) -> list[Span]:
    merged: list[Span] = []
    # Leftmost first, and there what is already masked (its mask is empty), then the longest.
    for span in sorted(found, key=lambda span: (span.start, span.mask != "", -span.end, span.mask)):
        if merged and span.start < merged[-1].end:
            if span.end > merged[-1].end:
                merged[-1] = merged[-1]._replace(end=span.end)
        else:
            merged.append(span)
    return merged


def _replaced(text: str, spans: Iterable[Span], end: int) -> str:
    parts: list[str] = []
    at = 0
    for span in spans:
        parts += (text[at : span.start], span.mask)
        at = span.end
    parts.append(text[at:end])
    return "".join(parts)


def _squeezed(text: str) -> tuple[str, Callable[[int], int]]:
    """`text` without the line breaks that wrap encoded text, and where each of its characters stands in
    `text`."""
    if "\n" not in text:
        return text, int
    starts, shifts, parts = [0], [0], list[str]()
    at = kept = 0
    for match in _WRAP.finditer(text):
        parts.append(text[at : match.start()])
        kept += match.start() - at
        at = match.end()
        starts.append(kept)
        shifts.append(at - kept)
    parts.append(text[at:])
    return "".join(parts), lambda index: index + shifts[bisect_right(starts, index) - 1]


def _masks(held: Mapping[str, str]) -> dict[str, str]:
    masks: dict[str, str] = {}
    for number, name in enumerate(sorted(held), 1):
        shown = _UNSAFE_NAME.sub("_", name)[:64]
        if any(value in shown for value in held.values()):
            shown = str(number)  # a name that gives a secret away is not shown
        while f"«secret:{shown}»" in masks.values():
            shown += f"-{number}"
        masks[name] = f"«secret:{shown}»"
    return masks


def _spellings(value: str) -> Iterator[str]:
    """As it is, inside a JSON string (also one inside another), and in a URL."""
    yield value
    for once in _json_forms(value):
        yield once
        yield from _json_forms(once)
    data = value.encode(errors="surrogatepass")
    for form in (quote(data, safe=""), quote(data, safe="/"), quote(data, safe="!'()*"), quote_plus(data)):
        yield form
        yield re.sub("%..", lambda escape: escape[0].lower(), form)


def _json_forms(text: str) -> Iterator[str]:
    """The ways to write `text` inside a JSON string; escaping goes character by character, so parts match
    parts."""
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield json.dumps(text)[1:-1]


def _encodings(value: str) -> Iterator[str]:
    """Base64 in both alphabets and hexadecimal.

    Base64 packs three bytes in four characters, so a value inside a longer text appears in one of three ways;
    the characters it shares with its neighbours are left out (at most two at the beginning and one at the
    end).
    """
    data = value.encode(errors="surrogatepass")
    yield data.hex()
    yield data.hex().upper()
    for before in (0, 1, 2):
        first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        coded = base64.b64encode(bytes(before) + data).decode()[first:last]
        yield coded
        yield coded.replace("+", "-").replace("/", "_")


def _latin(text: str) -> str:
    return text.encode(errors="surrogatepass").decode("latin-1")
