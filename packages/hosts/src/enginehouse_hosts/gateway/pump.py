"""One view of one connection: what the hub shows it, sent on.

Rule: the events are passed on as the bytes they are. Whatever slows this view, a full outbox or a slow record, holds
up this task alone.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import anyio
from anyio.abc import TaskStatus

from enginehouse_protocol.errors import ConnectionLost, EnginehouseError
from enginehouse_protocol.events import Passing
from enginehouse_protocol.hub import Attach, Delivery, HubApi, View
from enginehouse_protocol.methods import ViewEnded, ViewId
from enginehouse_protocol.rpc import Peer, WireError, to_wire
from enginehouse_protocol.rpc.envelope import INTERNAL_ERROR

GATHER_S = 0.01
GATHER_MOST_S = 0.05
"""The pause after a batch of passing events only, for a few views and for very many.

A model streams hundreds of pieces a second, each visible at once: sent singly to a hundred views they would keep a
core busy with envelopes and wake-ups. In a pause nobody sees they become one batch. After durable events there is
none: somebody may wait for them, and catching up must not be slowed.
"""
_FEW_VIEWS = 20

_log = logging.getLogger(__name__)


class Crowd:
    """What all views of one gateway have in common."""

    def __init__(self, gather_s: float) -> None:
        self.views = 0
        self._gather_s = gather_s
        self._batch: tuple[Delivery, ...] = ()
        self._joined = b""

    @property
    def pause_s(self) -> float:
        return min(max(self._gather_s, GATHER_MOST_S), self._gather_s * max(1.0, self.views / _FEW_VIEWS))

    def joined(self, batch: tuple[Delivery, ...]) -> bytes:
        """The lines of a batch as JSON. Views at one place are given the same batch, and share this."""
        if batch is not self._batch:
            self._batch, self._joined = batch, b",".join([delivery.line for delivery in batch])
        return self._joined


class Pump:
    """`run` is its task; `begin` once the host knows the view's id; `stop` on the host's wish."""

    def __init__(
        self, peer: Peer, view_id: ViewId, crowd: Crowd, turn: anyio.Lock, *, over: Callable[[], object]
    ) -> None:
        """`turn` is held by the one view of the connection whose batch waits for room: no other makes one meanwhile."""
        self._peer = peer
        self._view_id = view_id
        self._crowd = crowd
        self._turn = turn
        self._tell_over = over
        self._begun = anyio.Event()
        self._over = anyio.Event()
        self._stopping = False
        self._idle: anyio.CancelScope | None = None
        """What may be cut short to stop: waiting for the hub, never the sending of what it gave."""

    def begin(self) -> None:
        self._begun.set()

    async def stop(self) -> None:
        """Return once nothing more will be sent and the hub's view is left."""
        self._stopping = True
        self._begun.set()
        if self._idle is not None:
            self._idle.cancel()
        await self._over.wait()

    async def run(
        self, hub: HubApi, params: Attach, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Started once the hub has admitted the view; what it raises instead is raised where this was started."""
        self._crowd.views += 1
        try:
            error = await self._show(hub, params, task_status)
            if not self._stopping:
                await self._say_ended(error)
        finally:
            self._crowd.views -= 1
            self._tell_over()
            self._over.set()

    async def _show(self, hub: HubApi, params: Attach, task_status: TaskStatus[None]) -> WireError | None:
        attached = False
        error: WireError | None = None
        try:
            async with hub.sessions_attach(params) as view:
                attached = True
                task_status.started()
                await self._begun.wait()
                error = await self._pump(view)
        except Exception as problem:
            if not attached:
                raise
            error = error or self._explained(problem)
        return error

    async def _say_ended(self, error: WireError | None) -> None:
        try:
            await self._peer.notify("view.ended", ViewEnded(view_id=self._view_id, error=error))
        except ConnectionLost:
            pass

    async def _pump(self, view: View) -> WireError | None:
        """Until the view ends or is to stop; returns what broke it."""
        batches = view.batches()
        pause_s = 0.0
        try:
            while batch := await self._next(batches, pause_s):
                try:
                    await self._send(batch)
                except ConnectionLost:
                    return None  # the connection ends, and this task with it
                passing = all(isinstance(delivery.event, Passing) for delivery in batch)
                pause_s = self._crowd.pause_s if passing else 0.0
        except Exception as problem:  # noqa: BLE001 – a view's end
            return self._explained(problem)
        finally:
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()
        return None

    async def _send(self, batch: tuple[Delivery, ...]) -> None:
        """Raises: ConnectionLost."""
        async with self._turn:
            params = b'{"view_id":"%s","lines":[%s]}' % (self._view_id.encode(), self._crowd.joined(batch))
            await self._peer.notify("view.events", params)

    async def _next(self, batches: AsyncIterator[tuple[Delivery, ...]], pause_s: float) -> tuple[Delivery, ...] | None:
        """None: there are none, or it is to stop."""
        with anyio.CancelScope() as self._idle:
            if self._stopping:
                return None
            if pause_s:
                await anyio.sleep(pause_s)
            while (batch := await anext(batches, None)) == ():
                pass
            return batch
        return None

    def _explained(self, problem: Exception) -> WireError:
        if isinstance(problem, EnginehouseError):
            return to_wire(problem)
        _log.error("the view %s broke", self._view_id, exc_info=problem)
        message = "something went wrong inside; the hub's log says what"
        return WireError(code=INTERNAL_ERROR, message=message, data={"code": "internal"})
