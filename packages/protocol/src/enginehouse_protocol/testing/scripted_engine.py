"""An engine whose turns are data. For tests of everything that stands on the engine contract.

Rule: it keeps the contract in every step, an interrupted one included, unless a step says otherwise (`Emit`,
`Hang`, `Fail`, `Crash`): what a test sees going wrong is then what it tests.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Self

import anyio
from anyio.abc import TaskGroup

from enginehouse_protocol.capabilities import EngineAbilities, EngineDescription, ModelInfo
from enginehouse_protocol.content import content_text
from enginehouse_protocol.engine import Access, Applied, Fresh, Opening, Resume, Turn, TurnEnd
from enginehouse_protocol.errors import EngineError, NativeSessionLost, TranscriptUnavailable
from enginehouse_protocol.events import Event, MessageAssistant, MessageUser, NativeUpdated
from enginehouse_protocol.ids import EngineName, SessionId, TurnId
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing.native_store import NativeStore
from enginehouse_protocol.testing.player import Player, TurnIsOver
from enginehouse_protocol.testing.script import Gate, Say, Step

Script = Sequence[Sequence[Step]] | Callable[[Turn], Sequence[Step]]


class ScriptedEngine:
    """`turns` is one list of steps a turn, played in order in each session, or a function that makes them.

    With `native_store` it is an engine that keeps the conversation itself (`native_resume`), else
    `Opening.history` is all it knows. `apply` answers `applied`, or raises it; with `apply_gate`, after that.
    """

    def __init__(
        self,
        turns: Script = (),
        *,
        name: str = "scripted",
        description: EngineDescription | None = None,
        native_store: NativeStore | None = None,
        applied: Applied | EngineError = "now",
        apply_gate: Gate | None = None,
        open_error: EngineError | None = None,
    ) -> None:
        self.name = EngineName(name)
        self.turns = turns
        self.native_store = native_store
        self.applied: Applied | EngineError = applied
        self.apply_gate = apply_gate
        self.open_error = open_error
        """Raised by the next `open`, once."""
        self.description = description or EngineDescription(
            name=self.name,
            title="Scripted engine",
            version="1",
            models=(ModelInfo(name="script"),),
            abilities=EngineAbilities(edited_input=True, native_resume=native_store is not None),
        )
        self.abilities = self.description.abilities
        self.openings: list[Opening] = []
        self.turns_run: list[Turn] = []
        self.interrupts: list[TurnId] = []
        self.changes: list[SessionSettings] = []
        self.open_sessions = 0
        self.known: list[str] = []
        """All that the session whose turn ran last knows, oldest first: what a model would be given."""
        self._next_turn: dict[SessionId, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def describe(self, access: Access) -> EngineDescription:  # noqa: ARG002 - the same for everybody
        return self.description

    def open(self, opening: Opening) -> AbstractAsyncContextManager["ScriptedSession"]:
        return self._open(opening)

    @asynccontextmanager
    async def _open(self, opening: Opening) -> AsyncGenerator["ScriptedSession"]:
        self.openings.append(opening)
        if self.open_error is not None:
            error, self.open_error = self.open_error, None
            raise error
        known: list[str] = []
        native_id: str | None = None
        match opening.start:
            case Resume(native_id=native_id):
                if self.native_store is None:
                    raise NativeSessionLost("this engine keeps no sessions")
                known = self.native_store.load(native_id)
            case Fresh(recap=recap) if recap:
                known = [recap]
            case Fresh():
                pass
        try:
            async with anyio.create_task_group() as background:
                self.open_sessions += 1
                try:
                    yield ScriptedSession(self, opening, background, native_id, known)
                finally:
                    self.open_sessions -= 1
                    background.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # what the session's owner raised, as it raised it

    def steps(self, opening: Opening, turn: Turn) -> Sequence[Step]:
        if callable(self.turns):
            return self.turns(turn)
        index = self._next_turn.get(opening.session_id, 0)
        self._next_turn[opening.session_id] = index + 1
        if index < len(self.turns):
            return self.turns[index]
        return (Say("The script is over."),)


class ScriptedSession:
    """The live side of one session of a `ScriptedEngine`."""

    def __init__(
        self,
        engine: ScriptedEngine,
        opening: Opening,
        background: TaskGroup,
        native_id: str | None,
        known: list[str],
    ) -> None:
        self._engine = engine
        self._opening = opening
        self._background = background
        self._native_id = native_id
        self._known = known
        self._interrupted: set[TurnId] = set()
        self._running: tuple[TurnId, anyio.CancelScope, Player] | None = None

    async def run(self, turn: Turn) -> TurnEnd:
        self._engine.turns_run.append(turn)
        player = Player(self._opening, turn, self._background, await self._knowledge(turn))
        self._engine.known = player.known
        end = TurnEnd(stop="end")
        with anyio.CancelScope() as scope:
            self._running = turn.id, scope, player
            try:
                await self._first_sight()
                if turn.id in self._interrupted:
                    scope.cancel()
                await anyio.lowlevel.checkpoint()
                for step in self._engine.steps(self._opening, turn):
                    await player.play(step)
            except TurnIsOver as over:
                end = over.end
            finally:
                self._running = None
        if scope.cancelled_caught:
            end = TurnEnd(stop="interrupted")
        await self._keep(turn, player)
        return end

    async def interrupt(self, turn_id: TurnId) -> None:
        self._engine.interrupts.append(turn_id)
        self._interrupted.add(turn_id)
        if self._running is None or self._running[0] != turn_id:
            return
        _, scope, player = self._running
        hanging = player.hanging
        if hanging is None:
            scope.cancel()
        elif hanging.deaf:
            await anyio.sleep_forever()

    async def apply(self, change: SessionSettings) -> Applied:
        if self._engine.apply_gate is not None:
            await self._engine.apply_gate.passed()
        if isinstance(self._engine.applied, EngineError):
            raise self._engine.applied
        self._engine.changes.append(change)
        return self._engine.applied

    async def _knowledge(self, turn: Turn) -> list[str]:
        said = [f"{message.source}: {content_text(message.content)}" for message in turn.messages]
        if self._engine.native_store is not None:
            return [*self._known, *said]
        known = [*self._known]
        seq = 0
        while page := await self._opening.history.events_after(seq):
            seq = page[-1].seq
            known += [text for event in page if (text := _spoken(event))]
        return known if not said or said[-1] in known else [*known, *said]

    async def _first_sight(self) -> None:
        """The id is published at first sight; the store holds it once a turn has ended."""
        if self._engine.native_store is not None and self._native_id is None:
            self._native_id = self._engine.native_store.new_id()
            await self._opening.port.emit(NativeUpdated(native_id=self._native_id))

    async def _keep(self, turn: Turn, player: Player) -> None:
        if self._engine.native_store is None or self._native_id is None:
            return
        self._known = player.known
        self._engine.native_store.save(self._native_id, self._known)
        try:
            await self._opening.port.emit(NativeUpdated(native_id=self._native_id, turn_ref=turn.id))
        except TranscriptUnavailable:
            pass  # the turn is over either way


def _spoken(event: Event) -> str:
    match event.body:
        case MessageUser() as message:
            return f"{message.source}: {content_text(message.content)}"
        case MessageAssistant(text=str() as text) if text:
            return f"assistant: {text}"
        case _:
            return ""


def last_text(turn: Turn) -> str:
    """What the person said last in this turn; for scripts that are functions of it."""
    return content_text(turn.messages[-1].content) if turn.messages else ""
