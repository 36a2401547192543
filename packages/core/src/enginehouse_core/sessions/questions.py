"""Questions the model asks the person: recorded, offered to every view that can answer, answered once.

Rule: nobody there, an interrupt, too late: the answer is None, and that is recorded too. Whatever an answer changes is
recorded before the engine hears of it.
"""

import contextlib
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from enginehouse_protocol.errors import AlreadyDecided, EnginehouseError, RequestNotFound, TranscriptUnavailable
from enginehouse_protocol.events import AnyBody, QuestionAnswered, QuestionAsked
from enginehouse_protocol.ids import QuestionId, TurnId

CLOSING_S = 1.0
"""How long recording what was cut off may hold up whoever cut it off."""


class Asker(Protocol):
    """What questions need of their session."""

    def can_be_answered(self) -> bool: ...

    async def put(self, body: AnyBody, turn_id: TurnId | None) -> int: ...

    async def synced(self, seq: int) -> None: ...

    def pending_changed(self) -> None: ...

    async def leave_plan_mode(self) -> None:
        """Record the change of mode, then make it. Outside plan mode this does nothing."""
        ...


@dataclass(eq=False)
class _Waiting:
    question: QuestionAsked
    turn_id: TurnId | None
    asked: bool = False
    """Whether the question is in the record."""
    offered: bool = False
    """Whether it is on disk, so that views may answer it."""
    answers: tuple[str, ...] | None = None
    host: str | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)
    closed: bool = False
    """Whether its answer is in the record."""
    kept: bool = False
    """Whether that is on disk."""
    over: anyio.Event = field(default_factory=anyio.Event)
    """Set when nothing more is done about this question."""

    @property
    def approves_plan(self) -> bool:
        options = self.question.options
        return self.question.kind == "plan" and bool(options) and self.answers == (options[0].label,)


class Questions:
    def __init__(self, asker: Asker, *, expires_after_s: float) -> None:
        self._asker = asker
        self._expires_after_s = expires_after_s
        self._waiting: dict[QuestionId, _Waiting] = {}
        self._ended_turn: TurnId | None = None
        self._open = 0
        self._quiet = anyio.Event()

    @property
    def pending(self) -> list[QuestionAsked]:
        return [
            waiting.question for waiting in self._waiting.values() if waiting.offered and not waiting.settled.is_set()
        ]

    async def ask(self, question: QuestionAsked, turn_id: TurnId | None) -> tuple[str, ...] | None:
        """The person's answers; None when there are none. Cancelling withdraws the question."""
        waiting = _Waiting(question, turn_id)
        self._open += 1
        try:
            await self._offer(waiting)
            await self._close(waiting)
        except BaseException:
            with (
                anyio.CancelScope(shield=True),
                anyio.move_on_after(CLOSING_S),
                contextlib.suppress(EnginehouseError),  # whoever opens the record next repairs it
            ):
                await self._close(waiting)
            raise
        finally:
            waiting.over.set()
            self._waiting.pop(question.question_id, None)
            self._open -= 1
            if not self._open:
                self._quiet.set()
                self._quiet = anyio.Event()
        return waiting.answers

    async def _offer(self, waiting: _Waiting) -> None:
        """Record the question and wait for what becomes of it."""
        self._waiting[waiting.question.question_id] = waiting
        seq = await self._asker.put(waiting.question, waiting.turn_id)
        waiting.asked = True
        await self._asker.synced(seq)
        if waiting.turn_id is not None and waiting.turn_id == self._ended_turn:
            return
        if self._asker.can_be_answered():
            waiting.offered = True
            self._asker.pending_changed()
            with anyio.move_on_after(self._expires_after_s):
                await waiting.settled.wait()

    async def _close(self, waiting: _Waiting) -> None:
        """Record how it ended. After a cut it goes on with what is missing."""
        waiting.settled.set()
        if waiting.asked and not waiting.closed:
            question_id = waiting.question.question_id
            answered = QuestionAnswered(question_id=question_id, answers=waiting.answers, host=waiting.host)
            seq = await self._asker.put(answered, waiting.turn_id)
            waiting.closed = True
            self._asker.pending_changed()
            await self._asker.synced(seq)
            waiting.kept = True
        if waiting.approves_plan:
            await self._asker.leave_plan_mode()

    async def answer(self, question_id: QuestionId, answers: tuple[str, ...] | None, host: str) -> None:
        """The first answer wins. Returns once it is on disk: what somebody heard of is kept.

        Raises:
            RequestNotFound, AlreadyDecided
            TranscriptUnavailable: it cannot be recorded, so it does not count.
        """
        waiting = self._waiting.get(question_id)
        if waiting is None or not waiting.offered:
            raise RequestNotFound(f"no question {question_id} waits for an answer")
        if waiting.settled.is_set():
            by = f"was answered from {waiting.host}" if waiting.host else "can no longer be answered"
            raise AlreadyDecided(f"this question {by}")
        waiting.answers, waiting.host = answers, host
        waiting.settled.set()
        await waiting.over.wait()
        if not waiting.kept:
            raise TranscriptUnavailable("the answer could not be recorded, so it does not count")

    def expire_all(self, turn_id: TurnId | None = None) -> None:
        """The turn ends: nobody can answer any more, and what this turn still asks is not offered."""
        self._ended_turn = turn_id or self._ended_turn
        self.withdraw_all()

    def withdraw_all(self) -> None:
        """Nobody is there any more to answer what waits."""
        for waiting in self._waiting.values():
            waiting.settled.set()

    async def settle_all(self) -> None:
        """After `expire_all`: return once what expired is in the record. Bounded, because a disk may hang."""
        with anyio.move_on_after(CLOSING_S):
            while self._open:
                await self._quiet.wait()
