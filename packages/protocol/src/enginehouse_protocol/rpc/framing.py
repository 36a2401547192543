"""Bytes as lines. One message is one line, so a chunk may end anywhere, also inside a character.

Rule: of a line that is too long only its two edges are kept: enough to find out who wants to know.
"""

from typing import NamedTuple

LINE_LIMIT_BYTES = 64 * 1024 * 1024
EDGE_BYTES = 4 * 1024


class Oversized(NamedTuple):
    """What is left of a line that was too long, once it has ended."""

    head: bytes
    tail: bytes
    size_bytes: int


class LineSplitter:
    """Feed it what arrives; it does no I/O."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        """`limit_bytes` is the longest line that is taken, without its newline."""
        self._limit = limit_bytes
        self._held = bytearray()
        self._over: Oversized | None = None

    @property
    def inside_a_line(self) -> bool:
        return bool(self._held) or self._over is not None

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """The lines this chunk completes, in order, without their newlines."""
        *complete, rest = chunk.split(b"\n")
        lines: list[bytes | Oversized] = [self._end(piece) for piece in complete]
        if rest:
            self._hold(rest)
        return lines

    def _end(self, piece: bytes) -> bytes | Oversized:
        if not self._held and self._over is None and len(piece) <= self._limit:
            return piece
        self._hold(piece)
        if self._over is not None:
            over, self._over = self._over, None
            return over
        line = bytes(self._held)
        self._held = bytearray()
        return line

    def _hold(self, piece: bytes) -> None:
        if self._over is not None:
            head, tail, size_bytes = self._over
            self._over = Oversized(head, (tail + piece)[-EDGE_BYTES:], size_bytes + len(piece))
            return
        self._held += piece
        if len(self._held) > self._limit:
            self._over = Oversized(bytes(self._held[:EDGE_BYTES]), bytes(self._held[-EDGE_BYTES:]), len(self._held))
            self._held = bytearray()
