"""One conversation: its queue, its state, the person's verbs.

Rule: one task, `drive`, is the only place a turn happens, so two can never overlap. Everything a person does is
recorded first and then wakes that task. What is true of a session is `record.fold`; here lives only what ends with
the process.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
from anyio.abc import TaskGroup

from enginehouse_core.hooks import Hooks
from enginehouse_core.masking import Masker
from enginehouse_core.permissions.flow import NOBODY_THERE, PermissionFlow
from enginehouse_core.permissions.policy import Judgement
from enginehouse_core.sessions.interrupt import begin_interrupt
from enginehouse_core.sessions.questions import Questions
from enginehouse_core.sessions.queue import MessageQueue, Wishes
from enginehouse_core.sessions.record import SessionRecord
from enginehouse_core.sessions.seat import EngineSeat
from enginehouse_core.sessions.showing import Showing, State
from enginehouse_core.sessions.supplies import Supplied
from enginehouse_core.sessions.turn import TurnInHand, run_turn
from enginehouse_protocol.content import Content, Text
from enginehouse_protocol.errors import SessionClosed, TranscriptUnavailable
from enginehouse_protocol.events import (
    AnyBody,
    Notice,
    QuestionAsked,
    SessionChanged,
    ToolResult,
    ToolUse,
    TurnFailed,
)
from enginehouse_protocol.events import SessionClosed as SessionClosedBody
from enginehouse_protocol.hookspecs import SessionFacts
from enginehouse_protocol.hub import QueuedMessage, Receipt
from enginehouse_protocol.ids import CallId, MessageId, SessionId, TurnId, new_message_id
from enginehouse_protocol.permissions import Decision
from enginehouse_protocol.settings import SessionSettings

_log = logging.getLogger(__name__)


class Session:
    """An open session. Run `drive` as a task; the public methods may be called from any other."""

    def __init__(  # wired in one place, the hub
        self,
        record: SessionRecord,
        seat: EngineSeat,
        hooks: Hooks,
        tasks: TaskGroup,
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
        self.seat = seat
        self.tasks = tasks
        self.before_turn = before_turn
        """Called as a turn begins; what it returns is a warning for the person."""
        self.flow = PermissionFlow(self, hooks, expires_after_s=expires_after_s, store_rule=store_rule)
        self.questions = Questions(self, expires_after_s=expires_after_s)
        self.queue = MessageQueue(record, Wishes(max_steps=max_steps))
        self.showing = Showing(self, tasks, self._nobody_left)
        self.stopped = anyio.Event()
        """Set once `drive` has given up the engine and the record."""
        self.rested_since = anyio.current_time()
        """When the last turn ended."""
        self._judge = judge
        self._end_commands = end_commands
        self._turn: TurnInHand | None = None
        self._wanted: list[str] = []
        self._wake = anyio.Event()
        self._recovering = anyio.Lock()
        self._changing = anyio.Lock()
        self._closing = anyio.Lock()
        self._ending = record.fold.closed
        """No turn begins any more."""
        self._stopping = False
        record.on_failure = self._record_failed

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
    def wants_turn(self) -> bool:
        """Whether the engine asked for a turn that has not begun."""
        return bool(self._wanted)

    @property
    def at_rest(self) -> bool:
        """Whether nothing would be lost or cut off if this process forgot the session now."""
        resting = self._turn is None and not self._wanted and (not self.queue or self.queue.held)
        return resting and not any(use.detached for use in self.record.ahead.open_uses.values())

    @property
    def settings(self) -> SessionSettings:
        return self.record.ahead.settings

    def facts(self) -> SessionFacts:
        fold = self.record.ahead
        return SessionFacts(
            session_id=self.session_id,
            engine=fold.engine,
            directory=fold.directory,
            mode=fold.settings.mode or "default",
        )

    def can_be_answered(self) -> bool:
        """Whether it makes sense to ask: somebody is attached who can answer, or the turn waits for somebody."""
        return self.showing.can_answer or (self._turn is not None and self._turn.unattended == "wait")

    def _nobody_left(self) -> None:
        if not self.can_be_answered():
            self.flow.withdraw_all(NOBODY_THERE)
            self.questions.withdraw_all()

    # --- the person's verbs ---------------------------------------------------------------------------------------

    async def send(
        self,
        content: tuple[Content, ...],
        supplied: Supplied | None = None,
        wishes: Wishes | None = None,
        message_id: MessageId | None = None,
    ) -> Receipt:
        """Record a message, then let it run when its turn comes. One whose id is known was sent before.

        Raises:
            SessionClosed, TranscriptUnavailable
        """
        message_id = message_id or new_message_id()
        await self._recover()  # what was taken back is not known any more
        if message_id in self.record.ahead.recent:
            return await self._sent_before(message_id, supplied)
        self._require_open()
        await self.take(supplied)
        if wishes is not None:
            self.queue.wish(message_id, wishes)
        seq = 0
        try:
            while not seq:
                self._require_open()
                seq = await self.queue.add(
                    message_id, content, busy=lambda: self._turn is not None, ending=lambda: self._ending
                )
            await self.record.log.synced(seq)
        except BaseException:  # what is queued runs, also when whoever sent it is gone
            if message_id in self.record.ahead.queue:
                self.tasks.start_soon(self._go_on_after, self.record.ahead.recent[message_id])
            raise
        self._go_on()
        return Receipt(message_id=message_id, seq=seq)

    async def _go_on_after(self, seq: int) -> None:
        try:
            await self.record.log.synced(seq)
        except TranscriptUnavailable:
            return  # it was taken back
        self._go_on()

    async def _sent_before(self, message_id: MessageId, supplied: Supplied | None) -> Receipt:
        """Whoever sends again did not hear of a crash: what it cut off goes on, as it would have."""
        await self.take(supplied)
        seq = self.record.ahead.recent[message_id]
        await self.record.log.synced(seq)
        if self.queue.cut_off and message_id in self.record.ahead.queue:
            self._go_on()
        return Receipt(message_id=message_id, seq=seq)

    def _go_on(self) -> None:
        self.queue.let_go()
        self._wake.set()
        self.showing.tell()

    async def take(self, supplied: Supplied | None) -> None:
        """Work with this from the next turn on."""
        if supplied is None or supplied.access == self.seat.access or self.record.fold.closed:
            return
        self.seat.access = supplied.access
        self.seat.stale = True
        if supplied.by:
            what = ", ".join(supplied.names) or "no secrets"
            text = f"from here on this session works with what {supplied.by} supplied: {what}"
            await self.say(Notice(level="info", code="session.supplied", text=text))

    async def interrupt(self) -> None:
        """End the running turn; returns once the session is idle."""
        turn = self._turn
        if turn is not None:
            begin_interrupt(self, turn)
            await turn.over.wait()

    async def end_commands(self) -> None:
        """End what carries this session's marker, unless a detached use may still own some of it."""
        if any(use.detached for use in self.record.ahead.open_uses.values()):
            return
        try:
            await self._end_commands()
        except Exception:  # noqa: BLE001 an interrupt goes on without it
            _log.exception("the commands of %s could not be looked for", self.session_id)

    async def change(self, title: str | None, settings: SessionSettings | None) -> None:
        """Raises: SettingRefused: the engine cannot have that; nothing changed."""
        self._require_open()
        await self._recover()
        async with self._changing:
            merged = self.settings.updated(settings) if settings else None
            if merged == self.settings:
                merged = None
            if merged is not None:
                await self.seat.apply(merged)
                merged = self.settings.updated(settings) if settings else merged  # a plan may have been approved
            if title is not None or merged is not None:
                await self.record.put_durably(SessionChanged(title=title, settings=merged))
            if merged is not None:
                self.flow.rejudge()

    async def close(self) -> None:
        """End the conversation for good: it can be read, not continued.

        Raises:
            TranscriptUnavailable: it cannot be recorded, so it is not closed.
        """
        async with self._closing:
            if not self.record.ahead.closed:
                await self._close()

    async def _close(self) -> None:
        self._ending = True
        try:
            await self.interrupt()
            await self._recover()
            await self.seat.leave()
            for call_id, use in list(self.record.ahead.open_uses.items()):
                gone = ToolResult(call_id=call_id, status="unknown", content=(Text(text="The session was closed."),))
                await self.record.put(gone, use.turn_id)
            # A message may still be on its way into the record: nothing may stand in it that nobody answers.
            while not (seq := await self.record.put(SessionClosedBody(), only_if=lambda: not self.queue)):
                await self.queue.withdraw_all()
            await self.record.log.synced(seq)
        except BaseException:
            self._ending = self._stopping
            raise
        self.showing.tell()

    async def stop(self) -> None:
        """The hub ends: interrupt what runs and let `drive` return. The conversation stays as it is."""
        self._ending = self._stopping = True
        self.showing.end()
        await self.interrupt()
        self._wake.set()

    # --- the queue ------------------------------------------------------------------------------------------------

    async def edit_queued(self, message_id: MessageId, content: tuple[Content, ...]) -> Receipt:
        await self._recover()
        return await self.queue.edit(message_id, content)

    async def withdraw_queued(self, message_id: MessageId) -> QueuedMessage:
        await self._recover()
        withdrawn = await self.queue.withdraw(message_id)
        self._let_go_of_nothing()
        self.showing.tell()
        return withdrawn

    async def resume_queue(self, supplied: Supplied | None = None) -> None:
        self._require_open()
        await self._recover()
        await self.take(supplied)
        self._go_on()

    def _let_go_of_nothing(self) -> None:
        """A hold is about what waits: without that it would only swallow what comes next."""
        if self.queue.held and not self.queue and not self._wanted:
            self.queue.let_go()
            self._wake.set()

    # --- for the port, the flow, the questions and the turn -------------------------------------------------------

    def judge(self, use: ToolUse) -> Judgement:
        return self._judge(use, self.facts())

    def recorded_use(self, call_id: CallId) -> ToolUse | None:
        """The use as the record has it, masked; None when it has no open use of this id."""
        found = self.record.ahead.open_uses.get(call_id)
        return found.use if found else None

    async def put(self, body: AnyBody, turn_id: TurnId | None) -> int:
        return await self.record.put(body, turn_id)

    async def synced(self, seq: int) -> None:
        await self.record.log.synced(seq)

    async def say(self, notice: Notice) -> None:
        await self.record.put(notice, self.running_turn)

    def pending_changed(self) -> None:
        self.showing.tell()

    async def decide(self, use: ToolUse, turn_id: TurnId | None) -> Decision:
        return await self.flow.decide(use, turn_id, owed=turn_id != self.running_turn)

    async def ask_person(self, question: QuestionAsked) -> tuple[str, ...] | None:
        return await self.questions.ask(question, self.running_turn)

    async def leave_plan_mode(self) -> None:
        """A plan was approved."""
        if self.settings.mode != "plan":
            return
        settings = self.settings.updated(SessionSettings(mode="default"))
        await self.record.put_durably(SessionChanged(settings=settings, reason="plan_approved"), self.running_turn)
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
        if turn.steps > turn.max_steps:
            begin_interrupt(self, turn, "max_steps")

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
        if self._ending or self.record.failure or self.queue.held:
            return None
        usual = self.queue.usual
        if self._wanted:
            return TurnInHand(origin=self._wanted.pop(0), max_steps=usual.max_steps)
        if (found := self.queue.next()) is None:
            return None
        message_id, wishes = found
        return TurnInHand(
            origin="message",
            message_id=message_id,
            max_steps=wishes.max_steps or usual.max_steps,
            unattended=wishes.unattended,
        )

    async def _run(self, turn: TurnInHand) -> None:
        self._turn = turn
        self.showing.tell()
        try:
            await run_turn(self, turn)
        except TranscriptUnavailable:
            self.queue.hold()  # read-only until a person sends again; what is not on disk did not happen
        except Exception:  # noqa: BLE001 one session's surprise must not end the hub
            _log.exception("a turn of %s broke", self.session_id)
            self.queue.hold()
            await self._close_broken(turn)
        finally:
            self._turn = None
            self.queue.forget()
            self.rested_since = anyio.current_time()
            turn.settled.set()
            turn.over.set()
        self.showing.tell()

    async def _close_broken(self, turn: TurnInHand) -> None:
        self.seat.dismiss()
        try:
            for call_id, use in list(self.record.ahead.open_uses.items()):
                if use.turn_id == turn.id:
                    await self.record.put(ToolResult(call_id=call_id, status="unknown"), turn.id)
            if self.record.ahead.open_turn == turn.id:
                text = "Enginehouse itself failed in this turn; the log says how"
                await self.record.put_durably(TurnFailed(code="core.broken", message=text), turn.id)
        except Exception:  # noqa: BLE001 nothing more can be done for this turn
            _log.exception("its end could not be recorded")

    # --- when the disk refuses ------------------------------------------------------------------------------------

    def _record_failed(self) -> None:
        """Nothing can be recorded, so nothing may go on."""
        self.queue.hold()
        if self._turn is not None:
            begin_interrupt(self, self._turn)

    async def _recover(self) -> None:
        """Go on after a failed write, when there is one and the disk lets us.

        Raises:
            TranscriptUnavailable: it does not.
        """
        if not self.record.failure:
            return
        async with self._recovering:
            if not self.record.failure:
                return
            await self.interrupt()
            # The engine may have seen events that were taken back; it starts again from what is on disk.
            self.seat.stale = True
            with anyio.CancelScope(shield=True):  # half a recovery would leave nobody's record
                await self.record.recover()
            self._let_go_of_nothing()
            self.showing.tell_again()

    def _require_open(self) -> None:
        if self.record.fold.closed or self._ending:
            raise SessionClosed(f"session {self.session_id} is closed; it can be read, not continued")
