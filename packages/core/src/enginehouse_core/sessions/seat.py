"""The engine's seat in a session: opened when the first turn needs it, resumed where it can be, left in good order.

Rule: the engine session's context is entered and left in one task of its own, so a slow opening can be given up and a
dead engine is noticed. There is never a second one on the same session while the first lives, and nothing is written
under a native id whose history was not loaded.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import anyio
from anyio.abc import TaskGroup

from enginehouse_core.foreign import call_foreign
from enginehouse_core.sessions.engine_room import EngineRoom
from enginehouse_core.sessions.port import Conversation, Port
from enginehouse_core.sessions.recap import render_recap
from enginehouse_protocol.capabilities import EngineAbilities
from enginehouse_protocol.engine import Access, EngineSession, Fresh, Opening, Resume, Start
from enginehouse_protocol.errors import (
    EngineError,
    EngineExited,
    NativeSessionLost,
    SettingRefused,
    TranscriptUnavailable,
)
from enginehouse_protocol.events import Event, Notice
from enginehouse_protocol.ids import TurnId
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.workspace import Workspace

LEAVING_S = 5.0
APPLYING_S = 5.0
_OWED_S = 1.0
_log = logging.getLogger(__name__)


class Occupant:
    """One opening of the engine session, from its first moment to its last."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.session: EngineSession | None = None
        self.error: Exception | None = None
        self.ready = anyio.Event()
        self.gone = anyio.Event()
        self.scope = anyio.CancelScope()
        self._leave = anyio.Event()
        self._within_s = LEAVING_S

    def dismiss(self, within_s: float) -> None:
        """Ask it to leave; past `within_s` it is cancelled. What it still says is not heard."""
        self._within_s = min(self._within_s, within_s)
        self.port.close()
        self._leave.set()
        if self.session is None:
            self.scope.cancel()
        else:
            self.scope.deadline = anyio.current_time() + self._within_s

    async def dismissed(self) -> None:
        await self._leave.wait()

    @property
    def why_gone(self) -> EngineError:
        if isinstance(self.error, EngineError):
            return self.error
        if self.error is not None:
            return EngineError(f"the engine failed inside: {self.error!r}", code="engine.broken")
        return EngineExited("the engine ended in the middle of its turn; it starts again with the next message")


class EngineSeat:
    def __init__(
        self,
        room: EngineRoom,
        tasks: TaskGroup,
        workspace: Callable[[Access], AbstractAsyncContextManager[Workspace]],
    ) -> None:
        self.access = Access()
        self.stale = False
        """True: open again before the next turn."""
        self.abilities = EngineAbilities()
        self._room = room
        self._tasks = tasks
        self._workspace = workspace
        self._occupant: Occupant | None = None
        self._leaving: Occupant | None = None

    @property
    def taken(self) -> bool:
        """Whether the engine session is open."""
        return self._occupant is not None and not self._occupant.gone.is_set()

    async def take(self, conversation: Conversation) -> tuple[Occupant, EngineSession]:
        """The live engine session, opened if need be. Cancelling gives up the opening.

        Raises:
            EngineError: it cannot be opened.
        """
        if self._occupant is not None and (self.stale or self._occupant.gone.is_set()):
            self.dismiss()
        if self._leaving is not None:
            with anyio.move_on_after(LEAVING_S + 1) as patience:
                await self._leaving.gone.wait()
            if patience.cancelled_caught:
                text = "the engine does not let go of this session's former run; end it, or restart Enginehouse"
                raise EngineError(text, code="engine.stuck")
            self._leaving = None
        occupant = self._occupant or await self._open(conversation)
        assert occupant.session is not None
        return occupant, occupant.session

    async def _open(self, conversation: Conversation) -> Occupant:
        native = conversation.record.fold.native
        if native is not None:
            try:
                return await self._occupy(conversation, Resume(native_id=native.native_id))
            except NativeSessionLost as error:
                text = (
                    f"the engine no longer has this conversation ({error}); it goes on with a recap of it, "
                    "rendered from the record"
                )
                await conversation.say(Notice(level="warning", code="session.native_lost", text=text))
        return await self._occupy(conversation, None)

    async def _occupy(self, conversation: Conversation, start: Start | None) -> Occupant:
        engine = await self._room.engine(conversation.record.fold.engine)
        self.abilities = engine.abilities
        if start is None:
            start = Fresh()
            if engine.abilities.native_resume:  # it has lost its own; an engine without a store reads the history
                start = Fresh(recap=render_recap([event async for event in _all(conversation)]))
        occupant = Occupant(Port(conversation))
        self.stale = False
        self._tasks.start_soon(self._sit, conversation, occupant, start)
        try:
            await occupant.ready.wait()
        except BaseException:
            occupant.dismiss(0)
            self._leaving = occupant
            raise
        if occupant.session is None:
            raise occupant.why_gone
        self._occupant = occupant
        return occupant

    async def _sit(self, conversation: Conversation, occupant: Occupant, start: Start) -> None:
        fold = conversation.record.fold

        async def live() -> None:
            with occupant.scope:
                engine = await self._room.engine(fold.engine)
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
                        await occupant.dismissed()

        try:
            await call_foreign(live)
        except Exception as error:  # noqa: BLE001 an adapter ends here, whatever it raised
            occupant.error = error
            if not isinstance(error, EngineError):
                _log.exception("engine %s broke", fold.engine)
        finally:
            occupant.port.close()
            occupant.ready.set()
            await self._give_up_owed(occupant)
            occupant.gone.set()

    async def _give_up_owed(self, occupant: Occupant) -> None:
        with anyio.move_on_after(_OWED_S, shield=True):
            try:
                await occupant.port.abandon()
            except TranscriptUnavailable:
                _log.warning("what an engine still owed could not be closed in the record")

    def dismiss(self, within_s: float = LEAVING_S) -> None:
        """Let the engine session go, which ends its processes. Does not wait; the next `take` does."""
        if self._occupant is not None:
            self._occupant.dismiss(within_s)
            self._leaving, self._occupant = self._occupant, None

    async def leave(self) -> None:
        """The same, and wait for it, within bounds."""
        self.dismiss()
        if self._leaving is not None:
            with anyio.move_on_after(LEAVING_S + 1, shield=True):
                await self._leaving.gone.wait()

    async def interrupt(self, turn_id: TurnId) -> None:
        """Tell the engine. Does not return when it is deaf, and never raises what it raises."""
        if self._occupant is not None and self._occupant.session is not None:
            try:
                session = self._occupant.session
                await call_foreign(lambda: session.interrupt(turn_id))
            except Exception:  # noqa: BLE001 the deadline of the interrupt deals with it
                _log.exception("the engine failed to interrupt")

    async def apply(self, settings: SessionSettings) -> None:
        """Tell the engine of changed settings. An engine that is not open hears them when it opens.

        Raises:
            SettingRefused
        """
        occupant = self._occupant
        if occupant is None or occupant.session is None or occupant.gone.is_set():
            return
        known, self.stale = self.stale, True  # should this be cut off, or too slow, the engine may not know
        session = occupant.session
        try:
            with anyio.move_on_after(APPLYING_S):
                self.stale = await call_foreign(lambda: session.apply(settings)) == "reopen" or known
        except SettingRefused:
            self.stale = known
            raise


async def _all(conversation: Conversation) -> AsyncIterator[Event]:
    seq = 0
    while page := await conversation.record.events_after(seq):
        for event in page:
            yield event
        seq = page[-1].seq
