"""One conversation: its queue, its state, the person's verbs.

Rule: one task, `drive`, is the only place a turn happens, so two can never overlap. Everything a person does is
recorded first and then wakes that task. What is true of a session is `record.fold`; here lives only what ends with
the process.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import msgspec

from enginehouse_core.hooks import Hooks
from enginehouse_core.masking import Masker
from enginehouse_core.permissions.flow import PermissionFlow
from enginehouse_core.permissions.policy import Judgement
from enginehouse_core.sessions.questions import Questions
from enginehouse_core.sessions.record import SessionRecord
from enginehouse_core.sessions.seat import EngineSeat
from enginehouse_core.sessions.turn import TurnInHand, run_turn
from enginehouse_protocol.content import Content, Text
from enginehouse_protocol.engine import Access
from enginehouse_protocol.errors import (
    MessageNotQueued,
    SessionClosed,
    TranscriptUnavailable,
)
from enginehouse_protocol.events import (
    AnyBody,
    MessageQueued,
    MessageWithdrawn,
    QuestionAsked,
    SessionChanged,
    SessionStateChanged,
    ToolResult,
    ToolUse,
)
from enginehouse_protocol.events import (
    SessionClosed as SessionClosedBody,
)
from enginehouse_protocol.hookspecs import SessionFacts
from enginehouse_protocol.hub import Delivery, QueuedMessage, QueueState, Receipt
from enginehouse_protocol.ids import MessageId, SessionId, TurnId, new_message_id
from enginehouse_protocol.permissions import Decision
from enginehouse_protocol.settings import SessionSettings

State = Literal["idle", "running", "awaiting_permission", "closed"]
INTERRUPT_S = 1.5
"""The common deadline for the engine's answer to an interrupt and for ending commands."""


class Session:
    """An open session. Run `drive` as a task; the public methods may be called from any other."""

    def __init__(
        self,
        record: SessionRecord,
        seat: EngineSeat,
        hooks: Hooks,
        *,
        judge: Callable[[ToolUse, SessionFacts], Judgement],
        store_rule: Callable[[str], Awaitable[None]],
        before_turn: Callable[[], Awaitable[str]],
        end_commands: Callable[[], Coroutine[Any, Any, None]],
        expires_after_s: float,
        max_steps: int | None = None,
    ) -> None:
        self.record = record
        self.hooks = hooks
        self.before_turn = before_turn
        """Called as a turn begins; what it returns is a warning for the person."""
        self.flow = PermissionFlow(self, hooks, expires_after_s=expires_after_s, store_rule=store_rule)
        self.questions = Questions(self, expires_after_s=expires_after_s)
        self.seat = seat
        # A queue found on disk was cut off from its person: it waits until one sends or resumes.
        self.held = bool(record.fold.queue)
        self.stopped = anyio.Event()
        """Set once `drive` has given up the engine and the record."""
        self._judge = judge
        self._usual_max_steps = max_steps
        self._end_commands = end_commands
        self._turn: TurnInHand | None = None
        self._wanted: list[str] = []
        self._max_steps: dict[MessageId, int] = {}  # limits that came with a message that has not run yet
        self._answering_views = 0
        self._wake = anyio.Event()
        self._ending = record.fold.closed
        """No turn begins any more."""
        self._stopping = False
        self._shown: SessionStateChanged | None = None

    # --- what is true now -----------------------------------------------------------------------------------------

    @property
    def session_id(self) -> SessionId:
        return self.record.session_id

    @property
    def masker(self) -> Masker:
        return self.record.intake.masker

    @property
    def running_turn(self) -> TurnId | None:
        return self._turn.id if self._turn else None

    @property
    def state(self) -> State:
        if self.record.fold.closed:
            return "closed"
        if self._turn is None:
            return "idle"
        return "awaiting_permission" if self.flow.pending or self.questions.pending else "running"

    @property
    def settings(self) -> SessionSettings:
        return self.record.fold.settings

    def facts(self) -> SessionFacts:
        fold = self.record.fold
        return SessionFacts(
            session_id=self.session_id,
            engine=fold.engine,
            directory=fold.directory,
            mode=fold.settings.mode or "default",
        )

    def can_be_answered(self) -> bool:
        return self._answering_views > 0

    # --- the person's verbs ---------------------------------------------------------------------------------------

    async def send(
        self, content: tuple[Content, ...], access: Access | None, *, max_steps: int | None = None
    ) -> Receipt:
        """Record a message, then let it run when its turn comes.

        Raises:
            SessionClosed, TranscriptUnavailable
        """
        self._require_open()
        await self._recover()
        if access is not None and access != self.seat.access:
            self.seat.access = access
            self.seat.stale = True
        message_id = new_message_id()
        source = "human" if self._turn is None and not self.record.fold.queue else "queue"
        if max_steps is not None:
            self._max_steps[message_id] = max_steps
        seq = await self.record.put_durably(MessageQueued(message_id=message_id, content=content, source=source))
        self.held = False
        self._wake.set()
        return Receipt(message_id=message_id, seq=seq)

    async def interrupt(self) -> None:
        """End the running turn; returns once the session is idle."""
        turn = self._turn
        if turn is None:
            return
        if not turn.interrupted:
            turn.interrupted = True
            self.held = bool(self.record.fold.queue)  # idle means: empty, or visibly held
            self.flow.expire_all("the turn was interrupted")
            self.questions.expire_all()
            turn.preparing.cancel()
            with anyio.move_on_after(INTERRUPT_S):
                async with anyio.create_task_group() as ending:
                    if not any(use.detached for use in self.record.fold.open_uses.values()):
                        ending.start_soon(self._end_commands)
                    await self.seat.interrupt(turn.id)
                    await turn.engine_done.wait()
            turn.running.cancel()
        await turn.over.wait()

    async def change(self, title: str | None, settings: SessionSettings | None) -> None:
        """Raises: SettingRefused: the engine cannot have that; nothing changed."""
        self._require_open()
        await self._recover()
        merged = self.settings.updated(settings) if settings else None
        if merged == self.settings:
            merged = None
        if merged is not None:
            await self.seat.apply(merged)
        if title is not None or merged is not None:
            await self.record.put_durably(SessionChanged(title=title, settings=merged))
            self.flow.rejudge()

    async def close(self) -> None:
        """End the conversation for good: it can be read, not continued."""
        if self.record.fold.closed:
            return
        self._ending = True
        await self.interrupt()
        await self._recover()
        for message_id in list(self.record.fold.queue):
            await self.record.put(MessageWithdrawn(message_id=message_id, by="close"))
        await self.seat.leave()
        for call_id, use in list(self.record.fold.open_uses.items()):
            gone = ToolResult(call_id=call_id, status="unknown", content=(Text(text="The session was closed."),))
            await self.record.put(gone, use.turn_id)
        await self.record.put_durably(SessionClosedBody())
        self._show_state()

    async def stop(self) -> None:
        """The hub ends: interrupt what runs and let `drive` return. The conversation stays as it is."""
        self._ending = self._stopping = True
        await self.interrupt()
        self._wake.set()

    # --- the queue ------------------------------------------------------------------------------------------------

    def queue(self) -> QueueState:
        queued = self.record.fold.queue.values()
        messages = tuple(QueuedMessage(message_id=entry.message_id, content=entry.content) for entry in queued)
        return QueueState(messages=messages, held=self.held)

    async def edit_queued(self, message_id: MessageId, content: tuple[Content, ...]) -> Receipt:
        entry = self._queued(message_id)
        seq = await self.record.put_durably(msgspec.structs.replace(entry, content=content))
        return Receipt(message_id=message_id, seq=seq)

    async def withdraw_queued(self, message_id: MessageId) -> QueuedMessage:
        entry = self._queued(message_id)
        await self.record.put_durably(MessageWithdrawn(message_id=message_id, by="person"))
        return QueuedMessage(message_id=message_id, content=entry.content)

    def resume_queue(self) -> None:
        self.held = False
        self._wake.set()

    def _queued(self, message_id: MessageId) -> MessageQueued:
        entry = self.record.fold.queue.get(message_id)
        if entry is None:
            raise MessageNotQueued(f"message {message_id} is not in the queue; it may have been sent already")
        return entry

    # --- views ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def attach(self, after: int, *, can_answer: bool) -> AsyncGenerator["SessionView"]:
        self._answering_views += can_answer
        try:
            yield SessionView(self.record, after)
        finally:
            self._answering_views -= can_answer

    # --- for the port, the flow and the questions -----------------------------------------------------------------

    def judge(self, use: ToolUse) -> Judgement:
        return self._judge(use, self.facts())

    async def put(self, body: AnyBody, turn_id: TurnId | None) -> int:
        return await self.record.put(body, turn_id)

    async def synced(self, seq: int) -> None:
        await self.record.log.synced(seq)

    def pending_changed(self) -> None:
        self._show_state()

    async def decide(self, use: ToolUse, turn_id: TurnId | None) -> Decision:
        return await self.flow.decide(use, turn_id)

    async def ask_person(self, question: QuestionAsked) -> tuple[str, ...] | None:
        return await self.questions.ask(question, self.running_turn)

    async def leave_plan_mode(self) -> None:
        """A plan was approved."""
        if self.settings.mode != "plan":
            return
        settings = self.settings.updated(SessionSettings(mode="default"))
        await self.record.put(SessionChanged(settings=settings, reason="plan_approved"), self.running_turn)
        self.flow.rejudge()
        await self.seat.apply(settings)

    def want_turn(self, origin: str) -> None:
        if origin not in self._wanted:
            self._wanted.append(origin)
            self._wake.set()

    def count_step(self) -> None:
        """Limit the steps of an engine that does not count them itself."""
        turn = self._turn
        if turn is None or turn.max_steps is None or self.seat.abilities.counts_steps:
            return
        turn.steps += 1
        if turn.steps > turn.max_steps and not turn.interrupted:
            turn.stop = "max_steps"
            self.seat.tasks.start_soon(self.interrupt)

    # --- the one task ---------------------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Run turns as messages come, until `stop`."""
        try:
            while not self._stopping:
                await self._wake.wait()
                self._wake = anyio.Event()
                while turn := self._next_turn():
                    await self._run(turn)
        finally:
            await self.seat.leave()
            await self.record.close()
            self.stopped.set()

    def _next_turn(self) -> TurnInHand | None:
        if self._ending or self.record.failure:
            return None
        if self._wanted:
            return TurnInHand(origin=self._wanted.pop(0), max_steps=self._usual_max_steps)
        if self.record.fold.queue and not self.held:
            message = next(iter(self.record.fold.queue.values()))
            max_steps = self._max_steps.pop(message.message_id, self._usual_max_steps)
            return TurnInHand(origin="message", message=message, max_steps=max_steps)
        return None

    async def _run(self, turn: TurnInHand) -> None:
        self._turn = turn
        self._show_state()
        try:
            await run_turn(self, turn)
        except TranscriptUnavailable:
            # Read-only until a person sends again. What is not on disk did not happen: the message may be queued still.
            await self.record.reread()
            self.held = True
        finally:
            self._turn = None
            turn.over.set()
        self._show_state()

    def _show_state(self) -> None:
        shown = SessionStateChanged(
            state=self.state,
            queued=len(self.record.fold.queue),
            held=self.held and bool(self.record.fold.queue),
        )
        if shown == self._shown or self.record.failure:
            return
        self._shown = shown
        # Carries nothing a secret could be in and needs no disk: straight to the log.
        try:
            self.record.log.put(self.record.log.stamp(shown, self.running_turn))
        except TranscriptUnavailable:
            self._shown = None

    async def _recover(self) -> None:
        if self.record.failure:
            # The engine may have seen events that were taken back; it starts again from what is on disk.
            self.seat.stale = True
            await self.record.recover()

    def _require_open(self) -> None:
        if self.record.fold.closed or self._ending:
            raise SessionClosed(f"session {self.session_id} is closed; it can be read, not continued")


class SessionView:
    """One view's cursor on a session's record."""

    def __init__(self, record: SessionRecord, after: int) -> None:
        self._record = record
        self._after = after

    def batches(self) -> AsyncIterator[tuple[Delivery, ...]]:
        return self._record.follow(self._after)
