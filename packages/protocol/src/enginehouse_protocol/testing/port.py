"""A `SessionPort` that stands where core stands: it stamps, answers, and checks the contract as it goes.

Rule: whatever core would refuse is refused here too, and noted in `violations`, because an engine may swallow
the error. A test ends with `port.violations == []`.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import anyio
import msgspec

from enginehouse_protocol.codec import map_text, refuse_nonfinite, well_formed
from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import EngineSession, Turn, TurnEnd, TurnLimits
from enginehouse_protocol.errors import EngineError, MalformedData, TranscriptUnavailable
from enginehouse_protocol.events import (
    TRANSIENT,
    Body,
    DurableBody,
    EngineBody,
    MessageAssistant,
    MessageUser,
    PermissionDecided,
    PermissionRequested,
    QuestionAnswered,
    QuestionAsked,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.ids import CallId, TurnId, new_message_id, new_request_id, new_turn_id
from enginehouse_protocol.permissions import Allow, Decision, Expired, JsonObject
from enginehouse_protocol.testing.answers import AskPolicy, QuestionPolicy, allow, first_option
from enginehouse_protocol.testing.contract import ContractWatch
from enginehouse_protocol.testing.history import MemoryHistory

BodyT = TypeVar("BodyT", bound=Body)


class RecordingPort:
    """Give it to `Opening.port`, and its `history` to `Opening.history`; run turns with `run`.

    `policy` answers asks and `answers` answers questions; both may be replaced at any time.
    """

    def __init__(
        self,
        history: MemoryHistory | None = None,
        *,
        policy: AskPolicy = allow,
        answers: QuestionPolicy = first_option,
    ) -> None:
        self.history = history or MemoryHistory()
        self.policy = policy
        self.answers = answers
        self.bodies: list[Body] = []
        """Everything recorded or passed by, in order, core's own bodies included."""
        self.asked: list[ToolUse] = []
        self.decisions: dict[CallId, Decision] = {}
        self.ignored: list[Body] = []
        """Repeated uses and results: legal to emit, dropped as core drops them."""
        self.violations: list[str] = []
        self.requested_turns: list[str] = []
        self.broken = ""
        """When set, every `emit` raises `TranscriptUnavailable` with this text."""
        self.turn_id: TurnId | None = None
        self._watch = ContractWatch()
        self._pending: set[anyio.CancelScope] = set()
        self._changed = anyio.Event()
        for event in self.history.events:
            self._watch.follow(event.body)

    # --- the contract ---

    async def emit(self, body: EngineBody) -> None:
        await anyio.lowlevel.checkpoint()
        if self.broken:
            raise TranscriptUnavailable(self.broken)
        if self._watch.repeats(body):
            self.ignored.append(body)
            return
        if problem := self._watch.problem(body, in_turn=self.turn_id is not None):
            raise self._violation(problem)
        try:
            refuse_nonfinite(msgspec.to_builtins(body))
            if isinstance(body, ToolResult):
                body = msgspec.structs.replace(body, content=self.history.by_reference(body.content))
        except MalformedData as error:
            raise self._violation(str(error)) from error
        clean = map_text(body, well_formed)
        if isinstance(clean, TRANSIENT):
            self._note(clean)
        else:
            self._record(cast(DurableBody, clean))

    async def ask(self, use: ToolUse) -> Decision:
        if use.call_id not in self._watch.uses:
            await self.emit(use)
        elif not self._watch.is_open(use.call_id):
            raise self._violation(f"asked about {use.call_id}, which has its result")
        if self.turn_id is None and not self._watch.below_detached(use):
            raise self._violation(f"asked about {use.call_id} outside a turn")
        self.asked.append(use)
        request_id = new_request_id()
        self._record(
            PermissionRequested(
                request_id=request_id,
                call_id=use.call_id,
                kind=use.kind,
                title=well_formed(use.title),
                risk="write",
                reasons=("the test decides",),
                input_digest=request_id,
                expires_at_ms=0,
            )
        )
        decision: Decision = Expired(reason="the request was cancelled")
        pending = anyio.CancelScope()
        self._pending.add(pending)
        try:
            with pending:
                decision = await self.policy(use)
            if pending.cancelled_caught:
                decision = Expired(reason="the turn was interrupted")
        finally:
            self._pending.discard(pending)
            self.decisions[use.call_id] = decision
            self._record(
                PermissionDecided(
                    call_id=use.call_id,
                    decision=decision,
                    by="expiry" if isinstance(decision, Expired) else "person",
                    risk="write",
                    input_digest=request_id,
                    request_id=request_id,
                )
            )
        return decision

    async def question(self, question: QuestionAsked) -> tuple[str, ...] | None:
        if self.turn_id is None:
            raise self._violation("a question outside a turn")
        self._record(map_text(question, well_formed))
        answers: tuple[str, ...] | None = None
        pending = anyio.CancelScope()
        self._pending.add(pending)
        try:
            with pending:
                answers = await self.answers(question)
        finally:
            self._pending.discard(pending)
            self._record(QuestionAnswered(question_id=question.question_id, answers=answers))
        return answers

    def request_turn(self, origin: str) -> None:
        self.requested_turns.append(origin)
        self._tell()

    # --- what core does around it ---

    async def run(
        self,
        session: EngineSession,
        *messages: str | MessageUser,
        origin: str = "message",
        limits: TurnLimits | None = None,
        turn_id: TurnId | None = None,
    ) -> TurnEnd:
        """One turn as core runs it: record its messages, run it, record its end.

        Raises:
            EngineError: what `session.run` raised, after recording `turn.failed`.
        """
        said = tuple(
            MessageUser(message_id=new_message_id(), content=(Text(text=message),))
            if isinstance(message, str)
            else msgspec.structs.replace(message, content=self.history.by_reference(message.content))
            for message in messages
        )
        self.turn_id = turn_id or new_turn_id()
        turn = Turn(id=self.turn_id, origin=origin, messages=said, limits=limits or TurnLimits())
        self._record(TurnStarted(origin=origin, message_ids=tuple(message.message_id for message in said)))
        for message in said:
            self._record(message)
        end: TurnCompleted | TurnFailed = TurnFailed(code="crashed", message="run did not return")
        try:
            returned = await session.run(turn)
            end = TurnCompleted(stop=returned.stop, detail=returned.detail)
            return returned
        except EngineError as error:
            end = TurnFailed(
                code=error.code,
                message=str(error),
                http_status=error.http_status,
                retry_after_s=error.retry_after_s,
            )
            raise
        except TranscriptUnavailable:
            raise
        except Exception as error:
            self.violations.append(f"run raised {error!r}, which is no EngineError")
            raise
        finally:
            self._end_turn(end)

    async def interrupt(self, session: EngineSession, *, deadline_s: float = 5.0) -> None:
        """Interrupt the running turn as core does: tell the engine, then expire what is pending."""
        assert self.turn_id is not None, "no turn is running"
        with anyio.fail_after(deadline_s):
            await session.interrupt(self.turn_id)
        self.expire_pending()

    def expire_pending(self) -> None:
        """Every ask that waits returns `Expired`, every question None."""
        for scope in tuple(self._pending):
            scope.cancel()

    def record(self, body: DurableBody) -> None:
        """Write what only core writes, such as `history.replaced` or a message of source `interruption`."""
        self._record(body)

    # --- for the test ---

    async def heard(
        self,
        kind: type[BodyT],
        where: Callable[[BodyT], bool] | None = None,
        *,
        count: int = 1,
        deadline_s: float = 5.0,
    ) -> BodyT:
        """The `count`th body of that kind, past ones included. TimeoutError when it does not come."""
        with anyio.fail_after(deadline_s):
            while len(found := self.all(kind, where)) < count:
                await self._changed.wait()
        return found[count - 1]

    async def heard_request(self, *, deadline_s: float = 5.0) -> str:
        """The first origin given to `request_turn`."""
        with anyio.fail_after(deadline_s):
            while not self.requested_turns:
                await self._changed.wait()
        return self.requested_turns[0]

    def all(self, kind: type[BodyT], where: Callable[[BodyT], bool] | None = None) -> list[BodyT]:
        return [body for body in self.bodies if isinstance(body, kind) and (where is None or where(body))]

    def texts(self) -> list[str]:
        """What the assistant said, message by message."""
        return [str(message.text) for message in self.all(MessageAssistant)]

    @property
    def open_uses(self) -> list[ToolUse]:
        """Uses without a result, detached ones included."""
        return self._watch.open_uses

    # --- inside ---

    def _end_turn(self, end: TurnCompleted | TurnFailed) -> None:
        for use in self._watch.owed_now:
            self.violations.append(f"the turn ended without a result for {use.name} {use.call_id}")
            self._record(ToolResult(call_id=use.call_id, status="unknown"))
        self._record(end)
        self.turn_id = None

    def _violation(self, problem: str) -> MalformedData:
        self.violations.append(problem)
        return MalformedData(problem)

    def _record(self, body: DurableBody) -> None:
        event = self.history.stamp(body, self.turn_id)
        self._watch.follow(event.body)
        self._note(event.body)

    def _note(self, body: Body) -> None:
        self.bodies.append(body)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def input_that_ran(port: RecordingPort, use: ToolUse) -> JsonObject:
    """What the last decision about `use` allowed to run."""
    decision = port.decisions[use.call_id]
    return decision.input if isinstance(decision, Allow) and decision.input is not None else use.input
