"""Where answers wait for the test, and where the test waits for the server.

Rule: nobody polls and nobody sleeps. Whatever changes says so, and every waiter looks again.
"""

from collections.abc import Callable

import anyio


class Gates:
    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._open: set[str] = set()
        self._changed = anyio.Event()

    def release(self, gate: str) -> None:
        """Open the gate for everything that waits at it and for all that comes later."""
        self._open.add(gate)
        self.tell()

    async def pass_(self, gate: str | None) -> None:
        """Wait at the gate until it is open; for ever at the nameless one."""
        if gate is None:
            await anyio.sleep_forever()
            return
        self._reached.add(gate)
        self.tell()
        await self.until(lambda: gate in self._open)

    async def reached(self, gate: str) -> None:
        await self.until(lambda: gate in self._reached)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition that changes only together with `tell`. The deadline is the caller's."""
        while not holds():
            await self._changed.wait()

    def tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
