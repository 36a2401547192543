"""One view of a session through whatever connection there is: what was received, what was delivered, where to go on.

Rule: only what was delivered counts. A lost connection, or a consumer that was too slow for what may wait here, is the
same thing: attach again after the last durable event that was delivered.
"""

from collections import deque
from collections.abc import AsyncGenerator
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import TaskStatus

from enginehouse_hosts.client.line import DETACH_S, Line
from enginehouse_hosts.client.link import Link
from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.errors import ConnectionLost, EnginehouseError
from enginehouse_protocol.events import Event, LiveState
from enginehouse_protocol.hub import Attach, Delivery
from enginehouse_protocol.methods import ViewId
from enginehouse_protocol.rpc import WireError, from_wire

WAITING_ENTRIES = 8_192
WAITING_BYTES = 8 << 20
"""What may wait for a consumer. More than the hub sends in one go, so a consumer that keeps up never meets it."""


class _Place(NamedTuple):
    """Where this view is attached."""

    line: Line
    view_id: ViewId


class RemoteView:
    """A `View` with one reader. Run `keep` as a task until `leave`."""

    def __init__(self, link: Link, params: Attach) -> None:
        self._link = link
        self._params = params
        self._after = params.after
        """Where to attach. What the caller holds at first; `_delivered` knows only what went through here, since a
        record that was cut back gives seqs again that the caller may have heard of elsewhere."""
        self._delivered = 0
        self._waiting: deque[tuple[msgspec.Raw, ...]] = deque()
        self._entries = 0
        self._bytes = 0
        self._news = anyio.Event()
        self._place: _Place | None = None
        self._apart = anyio.Event()
        """Set when the present attachment is over."""
        self._hungry: anyio.Event | None = None
        """After what waited was dropped: set when the consumer is back."""
        self._finished = False
        self._error: EnginehouseError | None = None
        self._scope: anyio.CancelScope | None = None
        self._stopped = anyio.Event()

    # --- its consumer ---------------------------------------------------------------------------------------------

    async def batches(self) -> AsyncGenerator[tuple[Delivery, ...]]:
        while True:
            if self._waiting:
                if batch := self._fresh(self._taken()):
                    yield batch
            elif self._finished:
                if self._error is not None:
                    raise self._error
                return
            else:
                if self._hungry is not None:
                    self._hungry.set()
                self._news = anyio.Event()
                await self._news.wait()

    def _taken(self) -> tuple[msgspec.Raw, ...]:
        lines = self._waiting.popleft()
        self._entries -= len(lines)
        self._bytes -= _size(lines)
        return lines

    def _fresh(self, lines: tuple[msgspec.Raw, ...]) -> tuple[Delivery, ...]:
        deliveries: list[Delivery] = []
        for raw in lines:
            line = bytes(raw)
            # As recorded: the lines are those of the transcript, where one with a wrong shape is kept, not refused.
            event = decode_recorded(line)
            if isinstance(event, Event):
                if event.seq <= self._delivered:
                    continue  # delivered between asking to be attached again and the answer
                self._delivered = self._after = event.seq
            elif isinstance(event.body, LiveState) and event.body.seq < self._delivered:
                self._delivered = self._after = event.body.seq  # the record lost its end with a disk: seqs come again
            deliveries.append(Delivery(event=event, line=line))
        return tuple(deliveries)

    # --- its attachment -------------------------------------------------------------------------------------------

    async def keep(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Attach, and again whenever that is over. Started once attached for the first time; what prevents that is
        raised, what prevents a later time is raised by `batches`."""
        begun = False
        with anyio.CancelScope() as self._scope:
            try:
                await self._attach()
                begun = True
                task_status.started()
                while not self._finished:
                    await self._apart.wait()
                    if self._hungry is not None:
                        await self._hungry.wait()
                    if not self._finished:
                        await self._attach()
            except EnginehouseError as error:
                if not begun:
                    raise
                self._finish(error)
            finally:
                self._finish(ConnectionLost("it was closed here"))
                self._stopped.set()

    async def _attach(self) -> None:
        while True:
            line = await self._link.line(for_view=True)
            try:
                await line.attach(msgspec.structs.replace(self._params, after=self._after), self)
                return
            except ConnectionLost:
                if not line.lost:
                    raise  # the hub's own answer

    async def leave(self) -> None:
        """Detach. Bounded; best effort."""
        with anyio.move_on_after(DETACH_S, shield=True):
            if self._scope is not None:
                self._scope.cancel()
                await self._stopped.wait()
            if self._place is not None:
                await self._place.line.detach(self._place.view_id)
        self._drop()

    def _finish(self, error: EnginehouseError | None) -> None:
        if not self._finished:
            self._finished = True
            self._error = error
            self._news.set()

    def _drop(self) -> None:
        self._waiting.clear()
        self._entries = self._bytes = 0

    # --- what the connection says, on its reader ------------------------------------------------------------------

    def begun(self, line: Line, view_id: ViewId) -> None:
        """What still waits comes again, with what happened since."""
        self._drop()
        self._place = _Place(line, view_id)
        self._apart = anyio.Event()
        self._hungry = None

    def take(self, lines: tuple[msgspec.Raw, ...], size_bytes: int) -> bool:
        if self._waiting and (self._entries + len(lines) > WAITING_ENTRIES or self._bytes + size_bytes > WAITING_BYTES):
            self._drop()
            self._hungry = anyio.Event()
            self._part()
            return False
        self._waiting.append(lines)
        self._entries += len(lines)
        self._bytes += _size(lines)
        self._news.set()
        return True

    def ended(self, error: WireError | None) -> None:
        self._finish(None if error is None else from_wire(error))
        self._part()

    def lost(self) -> None:
        self._part()

    def _part(self) -> None:
        self._place = None
        self._apart.set()
        self._news.set()


def _size(lines: tuple[msgspec.Raw, ...]) -> int:
    return sum(len(memoryview(line)) for line in lines)
