"""The sessions somebody uses at the moment, each opened once; the others are files and nothing else.

Rule: whoever works with a session holds it with `use` for that long. One that nobody holds and that is at rest is
forgotten after a while: its record is closed, its engine ended, its memory free. Opening one waits for no other.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from enginehouse_core.sessions.session import Session
from enginehouse_protocol.errors import SessionClosed, TranscriptUnavailable
from enginehouse_protocol.ids import SessionId

KEPT_S = 10.0
KEPT_WITH_ENGINE_S = 300.0
"""An engine may have taken seconds to start, and its person may be thinking."""
GIVING_UP_S = 20.0
"""A session's own deadlines are shorter; what takes longer is a disk that hangs."""
_LOOK_EVERY_S = 2.0
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Place:
    """Where a session is, while it is open or being opened."""

    session: Session | None = None
    users: int = 0
    unused_since: float = 0.0
    changing: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while the session is opened or given up."""


class OpenSessions:
    def __init__(
        self,
        open_session: Callable[[SessionId], Awaitable[Session]],
        *,
        kept_s: float = KEPT_S,
        kept_with_engine_s: float = KEPT_WITH_ENGINE_S,
    ) -> None:
        self._open_session = open_session
        self._kept_s = kept_s
        self._kept_with_engine_s = kept_with_engine_s
        self._places: dict[SessionId, _Place] = {}
        self._stopping = False
        self._looking = anyio.CancelScope()

    def __iter__(self) -> Iterator[Session]:
        return iter([place.session for place in self._places.values() if place.session is not None])

    def get(self, session_id: SessionId) -> Session | None:
        """The session if it is open. For a look: who holds on to it uses `use`."""
        place = self._places.get(session_id)
        return place.session if place else None

    @asynccontextmanager
    async def use(
        self, session_id: SessionId, begin: Callable[[], Awaitable[Session]] | None = None
    ) -> AsyncGenerator[Session]:
        """The session, opened and repaired if need be; `begin` instead of that for one that is new.

        Raises:
            SessionNotFound, TranscriptUnreadable, TranscriptUnavailable
            SessionClosed: the hub is stopping.
        """
        async with self._held(session_id) as place:
            async with place.changing:
                session = place.session or await self._open(session_id, place, begin)
            yield session

    async def _open(
        self, session_id: SessionId, place: _Place, begin: Callable[[], Awaitable[Session]] | None
    ) -> Session:
        if not self._stopping:
            session = place.session = await (begin() if begin else self._open_session(session_id))
            if not self._stopping:
                return session
            await session.stop()  # it was opened behind the back of `stop_all`
        raise SessionClosed("the hub is stopping")

    @asynccontextmanager
    async def _held(self, session_id: SessionId) -> AsyncGenerator[_Place]:
        place = self._places.setdefault(session_id, _Place())
        place.users += 1
        try:
            yield place
        finally:
            place.users -= 1
            place.unused_since = anyio.current_time()
            if place.session is None:
                self._clear(session_id, place)

    @asynccontextmanager
    async def forgotten(self, session_id: SessionId) -> AsyncGenerator[None]:
        """Give the session up, whoever uses it, and let nobody open it meanwhile."""
        async with self._held(session_id) as place, place.changing:
            await self._forget(place)
            yield

    async def forget_unused(self) -> None:
        """As a task: give up what nobody has used for a while."""
        with self._looking:
            while True:
                await anyio.sleep(min(_LOOK_EVERY_S, self._kept_s))
                for session_id, place in list(self._places.items()):
                    if self._is_unused(place):
                        await self._give_up(session_id, place)

    async def _give_up(self, session_id: SessionId, place: _Place) -> None:
        async with place.changing:
            if self._is_unused(place):
                try:
                    await self._forget(place)
                except TranscriptUnavailable as error:
                    _log.warning("%s", error)
                self._clear(session_id, place)

    async def stop_all(self) -> None:
        """The hub ends: interrupt what runs. No session is opened any more. Bounded by each session's own deadlines."""
        self._stopping = True
        self._looking.cancel()
        async with anyio.create_task_group() as stopping:
            for place in list(self._places.values()):
                stopping.start_soon(self._stop, place)

    async def _stop(self, place: _Place) -> None:
        with anyio.move_on_after(GIVING_UP_S):
            async with place.changing:  # one that is being opened is stopped as well
                if place.session is not None:
                    await place.session.stop()

    def _is_unused(self, place: _Place) -> bool:
        session = place.session
        if session is None or place.users or not session.at_rest:
            return False
        kept_s = self._kept_with_engine_s if session.seat.taken else self._kept_s
        return anyio.current_time() - max(place.unused_since, session.rested_since) >= kept_s

    async def _forget(self, place: _Place) -> None:
        session = place.session
        if session is not None:
            with anyio.move_on_after(GIVING_UP_S, shield=True):  # half a session would be nobody's
                await session.stop()
                await session.stopped.wait()
                place.session = None
                return
            raise TranscriptUnavailable(
                f"session {session.session_id} cannot be given up: its disk has not answered for {GIVING_UP_S:g} s; "
                "try again when it does"
            )

    def _clear(self, session_id: SessionId, place: _Place) -> None:
        if place.session is None and not place.users and self._places.get(session_id) is place:
            del self._places[session_id]
