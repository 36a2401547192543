"""What one side speaks, what two have in common, and which of two is newer.

Rule: protocols are agreed on by number. The version is for people and for replacing an older service.
"""

import re

import msgspec

_RELEASE = re.compile(r"\d+(?:\.\d+)*")
_BEFORE_RELEASE = re.compile(r"[-_.]?(a|b|c|rc|alpha|beta|pre|preview|dev)[-_.]?\d*", re.IGNORECASE)


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Protocol numbers one side can speak, both ends included."""

    min: int
    max: int

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min} to {self.max}"


class Edition(msgspec.Struct, frozen=True, kw_only=True):
    """The program's version, and the protocols it speaks."""

    version: str
    protocol: Span


def newest_common(one: Span, other: Span) -> int | None:
    """The protocol to speak. None: there is none."""
    newest = min(one.max, other.max)
    return newest if newest >= max(one.min, other.min) else None


def is_newer(one: Edition, other: Edition) -> bool:
    """Whether `one` is newer. Two builds of one release are not: either may replace the other when it is idle."""
    return _rank(one) > _rank(other)


def _rank(edition: Edition) -> tuple[int, tuple[int, ...], bool, tuple[int, ...]]:
    version = edition.version.partition("+")[0].removeprefix("v")
    release = _RELEASE.match(version)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    rest = version[release.end() :] if release else ""
    final = not _BEFORE_RELEASE.match(rest)
    return edition.protocol.max, tuple(numbers), final, tuple(int(part) for part in re.findall(r"\d+", rest))
