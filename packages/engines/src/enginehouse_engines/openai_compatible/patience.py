"""How long one answer is waited for: until its first byte, between two bytes, in all.

Rule: it costs next to nothing a byte. A timer is not set anew with every chunk of a stream, so an answer that stands
still is given up after its limit or up to a quarter later, never sooner.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal

import anyio

WaitsFor = Literal["first", "idle", "total"]
_SLACK = 0.25


class Patience:
    """Ends `scope` when a limit has passed. `waits_for` then says which."""

    def __init__(self, scope: anyio.CancelScope, *, total_s: float) -> None:
        self.waits_for: WaitsFor = "first"
        self._scope = scope
        self._end = anyio.current_time() + total_s
        self._set_again_at = 0.0

    def wait(self, waits_for: WaitsFor, limit_s: float) -> None:
        """From now on, `limit_s` and no longer."""
        deadline = anyio.current_time() + limit_s
        self.waits_for = waits_for if deadline < self._end else "total"
        self._scope.deadline = min(deadline, self._end)

    def heard(self, limit_s: float) -> None:
        """Something came; the next may take `limit_s`."""
        now = time.monotonic()
        if now >= self._set_again_at:
            self._set_again_at = now + limit_s * _SLACK
            self.wait("idle", limit_s * (1 + _SLACK))

    def hurry(self, limit_s: float) -> None:
        """What matters has come; whatever else comes has `limit_s` in all."""
        self._set_again_at = float("inf")
        self.wait("idle", limit_s)


class Incoming:
    """The bytes of one answer, as they come."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], patience: Patience) -> None:
        self._chunks = chunks
        self.patience = patience

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks
