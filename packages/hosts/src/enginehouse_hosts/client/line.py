"""One connection to the hub, from `initialize` to its end, and whose view is which on it.

Rule: every event read is taken by its view before the next one is read, or its view is left. An event that cannot be
understood ends the connection: going on would be going on without it.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import anyio
import msgspec
from anyio.abc import ByteStream, TaskGroup

from enginehouse_protocol.errors import ConnectionLost, EnginehouseError, UsageError, VersionMismatch
from enginehouse_protocol.hub import Attach, Nothing
from enginehouse_protocol.methods import (
    PROTOCOL_VERSION,
    Attached,
    HubEnding,
    Initialize,
    Initialized,
    ViewEnded,
    ViewEvents,
    ViewId,
    ViewRef,
    call,
)
from enginehouse_protocol.rpc import Peer, Refused, WireError
from enginehouse_protocol.rpc.envelope import METHOD_NOT_FOUND

INITIALIZE_S = 20.0
"""A hub that has just started, on a busy machine, answers within this."""
ATTACH_S = 60.0
"""Opening a session may mean reading and repairing a long record."""
DETACH_S = 2.0
"""A courtesy: whoever leaves does not wait longer for a hub that does not answer."""

_log = logging.getLogger(__name__)
_events_decoder = msgspec.json.Decoder(ViewEvents)
_ended_decoder = msgspec.json.Decoder(ViewEnded)
_ending_decoder = msgspec.json.Decoder(HubEnding)


class Listener(Protocol):
    """One attachment of a view. Called on the reader, so none of these takes long."""

    def begun(self, line: "Line", view_id: ViewId) -> None: ...

    def take(self, lines: tuple[msgspec.Raw, ...], size_bytes: int) -> bool:
        """False: no more, please; the view is left."""
        ...

    def ended(self, error: WireError | None) -> None: ...

    def lost(self) -> None:
        """The connection ended."""
        ...


class Line:
    """Run `live` once; the stream is closed when it returns."""

    def __init__(self, stream: ByteStream) -> None:
        self.peer = Peer(stream, _refuse, notified=self._hear)
        self.gone = anyio.Event()
        """Set once everybody who listened has been told that it ended."""
        self.ending: str | None = None
        """Why the hub ends on purpose, if it said so."""
        self._why = ""
        self._over = anyio.Event()
        self._greeting = anyio.CancelScope()
        self._listeners: dict[ViewId, Listener] = {}
        self._leaving: set[ViewId] = set()
        self._chores: TaskGroup | None = None

    @property
    def lost(self) -> bool:
        return self._over.is_set() or self.peer.lost

    async def live(self, hello: Initialize, *, up: Callable[[], None], down: Callable[[], None]) -> str:
        """Say hello, call `up`, go on until the connection ends, call `down`; returns why it ended, for people.

        Cancelled: what is queued still goes out, bounded by the peer. That includes calling off what was asked.

        Raises:
            EnginehouseError: the hub did not admit us; ConnectionLost when it ended before it answered.
        """
        refused: list[EnginehouseError] = []
        over = anyio.Event()

        async def live() -> None:
            with anyio.CancelScope(shield=True):  # cancelling would stop the peer's writer first
                try:
                    await self._live(hello, up, down)
                except EnginehouseError as error:
                    refused.append(error)
                finally:
                    over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(live)
            try:
                await over.wait()
            finally:
                self._end("it was closed here")
                self._greeting.cancel()
        if refused:
            raise refused[0]
        return self._why

    async def _live(self, hello: Initialize, up: Callable[[], None], down: Callable[[], None]) -> None:
        async with self.peer:
            with self._greeting:
                answer = await call(self.peer, "initialize", hello, Initialized, deadline_s=INITIALIZE_S)
                _check(answer, hello)
            if self._greeting.cancelled_caught:
                return
            try:
                async with anyio.create_task_group() as self._chores:
                    self._chores.start_soon(self._notice_the_end)
                    up()
                    await self._over.wait()
                    self._chores.cancel_scope.cancel()
            finally:
                self._chores = None
                down()
                listeners, self._listeners = list(self._listeners.values()), {}
                for listener in listeners:
                    listener.lost()
                self.gone.set()

    async def _notice_the_end(self) -> None:
        self._end(await self.peer.ended())

    def _end(self, why: str) -> None:
        if not self._over.is_set():
            self._why = why
            self._over.set()

    # --- views ----------------------------------------------------------------------------------------------------

    async def attach(self, params: Attach, listener: Listener) -> None:
        """`listener.begun` has been called when this returns, and was before the view's first event was read.

        Raises:
            EnginehouseError: as the hub raised it, or the connection ended.
        """

        def begun(attached: Attached) -> None:
            if self._over.is_set():
                return  # nobody would tell it that this is over
            self._listeners[attached.view_id] = listener
            listener.begun(self, attached.view_id)

        await call(self.peer, "sessions.attach", params, Attached, deadline_s=ATTACH_S, received=begun)
        if self._over.is_set():
            raise ConnectionLost(self._why)

    async def detach(self, view_id: ViewId) -> None:
        """Bounded. The view hears nothing more from now on, whatever the hub says."""
        self._listeners.pop(view_id, None)
        if view_id in self._leaving or self.lost:
            return
        self._leaving.add(view_id)
        await self._say_detach(view_id)

    def leave(self, view_id: ViewId) -> None:
        """Detach without waiting for it."""
        self._listeners.pop(view_id, None)
        if self._chores is not None and view_id not in self._leaving and not self.lost:
            self._leaving.add(view_id)
            self._chores.start_soon(self._say_detach, view_id)

    async def _say_detach(self, view_id: ViewId) -> None:
        try:
            await call(self.peer, "sessions.detach", ViewRef(view_id=view_id), Nothing, deadline_s=DETACH_S)
        except EnginehouseError as error:
            _log.info("detaching the view %s: %s", view_id, error)
        else:
            self._leaving.discard(view_id)  # nothing comes for it any more

    # --- hearing --------------------------------------------------------------------------------------------------

    def _hear(self, method: str, params: msgspec.Raw) -> None:
        if self._over.is_set():
            return
        try:
            match method:
                case "view.events":
                    self._events(_events_decoder.decode(params), len(memoryview(params)))
                case "view.ended":
                    ended = _ended_decoder.decode(params)
                    if listener := self._listeners.pop(ended.view_id, None):
                        listener.ended(ended.error)
                case "hub.ending":
                    self.ending = _ending_decoder.decode(params).reason
                    self._end(self.ending)
                case _:
                    pass
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("a %s of the hub cannot be understood; the connection ends: %s", method, error)
            self._end(f"what it said as {method} could not be understood: {error}")

    def _events(self, events: ViewEvents, size_bytes: int) -> None:
        listener = self._listeners.get(events.view_id)
        # Nobody's: whoever attached was cancelled before the answer came, and the hub holds a view for them.
        if listener is None or not listener.take(events.lines, size_bytes):
            self.leave(events.view_id)


async def _refuse(method: str, _: msgspec.Raw) -> msgspec.Raw:
    raise Refused(METHOD_NOT_FOUND, UsageError.code, f"a host has no method {method[:100]!r}")


def _check(answer: Initialized, hello: Initialize) -> None:
    if answer.protocol_version != PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the hub (version {answer.hub.version}, process {answer.hub.pid}) speaks protocol "
            f"{answer.protocol_version}, this is version {hello.host.version} and speaks {PROTOCOL_VERSION}; use a "
            "host and a hub of the same version",
            running=answer.hub.version,
            ours=hello.host.version,
            pid=answer.hub.pid,
        )
