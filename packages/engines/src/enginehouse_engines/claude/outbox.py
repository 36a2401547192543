"""What the translator said and nobody has done yet.

Rule: putting never waits, so the reader always reads. When the one who tells core is behind, adjacent deltas of one
message become one; an interrupt drops what only passes by.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

import anyio

from enginehouse_engines.claude.saying import Said, drop_transients, merge

_BEHIND: Final = 32


class Outbox:
    """One for each session. Order is kept."""

    def __init__(self) -> None:
        self._waiting: deque[Said] = deque()
        self._merged = 0
        self._idle = False
        self._changed = anyio.Event()

    def put(self, said: Iterable[Said]) -> None:
        self._waiting.extend(said)
        if len(self._waiting) > max(_BEHIND, 2 * self._merged):
            self._waiting = deque(merge(self._waiting))
            self._merged = len(self._waiting)
        self._tell()

    def drop(self) -> None:
        """Forget the transients that wait."""
        self._waiting = deque(drop_transients(self._waiting))

    async def take(self) -> Said:
        if not self._waiting:
            self._idle = True
            self._tell()
            while not self._waiting:
                await self._changed.wait()
            self._idle = False
        if len(self._waiting) <= _BEHIND:
            self._merged = 0
        return self._waiting.popleft()

    async def emptied(self) -> None:
        """Return once everything that was put has been taken, and the taker has come back for more."""
        while self._waiting or not self._idle:
            await self._changed.wait()

    async def changed(self) -> None:
        """Return when something was put, or all was taken."""
        await self._changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
