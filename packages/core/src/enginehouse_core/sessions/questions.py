"""Questions the model asks the person: recorded, offered to every view that can answer, answered once.

Rule: nobody there, an interrupt, too late: the answer is None, and that is recorded too.
"""

from dataclasses import dataclass, field
from typing import Protocol

import anyio

from enginehouse_protocol.errors import AlreadyDecided, RequestNotFound
from enginehouse_protocol.events import AnyBody, QuestionAnswered, QuestionAsked
from enginehouse_protocol.ids import QuestionId, TurnId


class Asker(Protocol):
    """What questions need of their session."""

    def can_be_answered(self) -> bool: ...

    async def put(self, body: AnyBody, turn_id: TurnId | None) -> int: ...

    async def synced(self, seq: int) -> None: ...

    def pending_changed(self) -> None: ...

    async def leave_plan_mode(self) -> None: ...


@dataclass
class _Waiting:
    question: QuestionAsked
    answers: tuple[str, ...] | None = None
    host: str | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)


class Questions:
    def __init__(self, asker: Asker, *, expires_after_s: float) -> None:
        self._asker = asker
        self._expires_after_s = expires_after_s
        self._waiting: dict[QuestionId, _Waiting] = {}

    @property
    def pending(self) -> list[QuestionAsked]:
        return [waiting.question for waiting in self._waiting.values() if not waiting.settled.is_set()]

    async def ask(self, question: QuestionAsked, turn_id: TurnId | None) -> tuple[str, ...] | None:
        """The person's answers; None when there are none. Cancelling withdraws the question."""
        seq = await self._asker.put(question, turn_id)
        waiting = _Waiting(question)
        try:
            await self._asker.synced(seq)
            if self._asker.can_be_answered():
                self._waiting[question.question_id] = waiting
                self._asker.pending_changed()
                with anyio.move_on_after(self._expires_after_s):
                    await waiting.settled.wait()
        finally:
            # Also when the asking is cancelled: the record never keeps an open question.
            self._waiting.pop(question.question_id, None)
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await self._close(waiting, turn_id)
        return waiting.answers

    async def _close(self, waiting: _Waiting, turn_id: TurnId | None) -> None:
        question = waiting.question
        answered = QuestionAnswered(question_id=question.question_id, answers=waiting.answers, host=waiting.host)
        await self._asker.synced(await self._asker.put(answered, turn_id))
        self._asker.pending_changed()
        approved = question.kind == "plan" and question.options and waiting.answers == (question.options[0].label,)
        if approved:
            await self._asker.leave_plan_mode()

    def answer(self, question_id: QuestionId, answers: tuple[str, ...] | None, host: str) -> None:
        """The first answer wins.

        Raises:
            RequestNotFound, AlreadyDecided
        """
        waiting = self._waiting.get(question_id)
        if waiting is None:
            raise RequestNotFound(f"no question {question_id} waits for an answer")
        if waiting.settled.is_set():
            raise AlreadyDecided(f"this question was answered from {waiting.host}")
        waiting.answers, waiting.host = answers, host
        waiting.settled.set()

    def expire_all(self) -> None:
        for waiting in self._waiting.values():
            waiting.settled.set()
