"""The engine's seat in a session: opened when the first turn needs it, resumed where it can be, left in good order.

Rule: the engine session's context is entered and left in one task of its own, so a slow opening can be given up and a
dead engine is noticed, and nothing is written under a native id whose history was not loaded.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import anyio
from anyio.abc import TaskGroup

from enginehouse_core.sessions.engine_room import EngineRoom
from enginehouse_core.sessions.port import Conversation, Port
from enginehouse_core.sessions.recap import render_recap
from enginehouse_protocol.capabilities import EngineAbilities
from enginehouse_protocol.engine import Access, EngineSession, Fresh, Opening, Resume, Start
from enginehouse_protocol.errors import EngineError, NativeSessionLost
from enginehouse_protocol.events import Event, Notice
from enginehouse_protocol.ids import TurnId
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.workspace import Workspace

LEAVING_S = 5.0


class _Occupant:
    """One opening of the engine session, from its first moment to its last."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.session: EngineSession | None = None
        self.error: Exception | None = None
        self.ready = anyio.Event()
        self.leave = anyio.Event()
        self.gone = anyio.Event()
        self.scope = anyio.CancelScope()


class EngineSeat:
    def __init__(
        self,
        room: EngineRoom,
        tasks: TaskGroup,
        workspace: Callable[[Access], AbstractAsyncContextManager[Workspace]],
        log: logging.Logger,
    ) -> None:
        self.tasks = tasks
        self.access = Access()
        self.stale = False
        """True: open again before the next turn."""
        self.abilities = EngineAbilities()
        self._room = room
        self._workspace = workspace
        self._log = log
        self._occupant: _Occupant | None = None

    async def take(self, conversation: Conversation) -> tuple[EngineSession, Port]:
        """The live engine session, opened if need be. Cancelling gives up the opening.

        Raises:
            EngineError: it cannot be opened.
        """
        occupant = self._occupant
        if occupant is not None and (self.stale or occupant.gone.is_set()):
            await self.leave()
            occupant = None
        if occupant is None:
            occupant = await self._open(conversation)
        assert occupant.session is not None
        return occupant.session, occupant.port

    async def _open(self, conversation: Conversation) -> _Occupant:
        native = conversation.record.fold.native
        if native is not None:
            try:
                return await self._occupy(conversation, Resume(native_id=native.native_id))
            except NativeSessionLost as error:
                text = (
                    f"the engine no longer has this conversation ({error}); it goes on with a recap of it, "
                    "rendered from the record"
                )
                notice = Notice(level="warning", code="session.native_lost", text=text)
                await conversation.record.put(notice, conversation.running_turn)
        return await self._occupy(conversation, None)

    async def _occupy(self, conversation: Conversation, start: Start | None) -> _Occupant:
        fold = conversation.record.fold
        engine = await self._room.engine(fold.engine)
        self.abilities = engine.abilities
        if start is None:
            start = Fresh()
            if engine.abilities.native_resume:  # it has lost its own; an engine without a store reads the history
                start = Fresh(recap=render_recap([event async for event in _all(conversation)]))
        occupant = self._occupant = _Occupant(Port(conversation))
        self.stale = False
        self.tasks.start_soon(self._sit, conversation, occupant, start)
        try:
            await occupant.ready.wait()
        except BaseException:
            occupant.scope.cancel()
            raise
        if occupant.session is None:
            self._occupant = None
            error = occupant.error
            if isinstance(error, EngineError):
                raise error
            raise EngineError(f"the engine could not be opened: {error!r}", code="engine.broken") from error
        return occupant

    async def _sit(self, conversation: Conversation, occupant: _Occupant, start: Start) -> None:
        fold = conversation.record.fold
        engine = await self._room.engine(fold.engine)
        try:
            with occupant.scope:
                async with self._workspace(self.access) as workspace:
                    opening = Opening(
                        session_id=conversation.record.session_id,
                        roots=fold.roots,
                        start=start,
                        settings=fold.settings,
                        instructions="",
                        access=self.access,
                        port=occupant.port,
                        workspace=workspace,
                        history=conversation.record,
                    )
                    async with engine.open(opening) as occupant.session:
                        occupant.ready.set()
                        await occupant.leave.wait()
        except Exception as error:  # noqa: BLE001 an adapter ends here, whatever it raised
            occupant.error = error
            if not isinstance(error, EngineError):
                self._log.exception("engine %s broke", fold.engine)
        finally:
            occupant.port.close()
            occupant.ready.set()
            occupant.gone.set()

    async def leave(self, within_s: float = LEAVING_S) -> None:
        """Leave the engine session, which ends its processes; past `within_s` it is cancelled. Idempotent."""
        occupant, self._occupant = self._occupant, None
        if occupant is None:
            return
        occupant.leave.set()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(within_s):
                await occupant.gone.wait()
            occupant.scope.cancel()

    async def interrupt(self, turn_id: TurnId) -> None:
        """Tell the engine; may not return when it is deaf."""
        occupant = self._occupant
        if occupant is not None and occupant.session is not None:
            await occupant.session.interrupt(turn_id)

    async def apply(self, settings: SessionSettings) -> None:
        """Tell the engine of changed settings. An engine that is not open hears them when it opens.

        Raises:
            SettingRefused
        """
        occupant = self._occupant
        if occupant is None or occupant.session is None or occupant.gone.is_set():
            return
        if await occupant.session.apply(settings) == "reopen":
            self.stale = True


async def _all(conversation: Conversation) -> AsyncIterator[Event]:
    seq = 0
    while page := await conversation.record.events_after(seq):
        for event in page:
            yield event
        seq = page[-1].seq
