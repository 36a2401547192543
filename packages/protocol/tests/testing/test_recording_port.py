"""The recording port refuses what core refuses, and remembers that it had to."""

import anyio
import pytest

from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import Applied, Turn, TurnEnd
from enginehouse_protocol.errors import EngineError, FileUnusable, MalformedData, TranscriptUnavailable
from enginehouse_protocol.events import (
    EngineBody,
    MessageAssistant,
    MessageDelta,
    NativeUpdated,
    Notice,
    PermissionDecided,
    PlanUpdated,
    QuestionAsked,
    SessionClosed,
    ToolDetached,
    ToolOutput,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    UsageUpdated,
)
from enginehouse_protocol.ids import (
    CallId,
    MessageId,
    QuestionId,
    ReplyId,
    TurnId,
    new_call_id,
    new_message_id,
    new_turn_id,
)
from enginehouse_protocol.permissions import Allow, Expired, JsonObject
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import MemoryHistory, RecordingPort, deny, edit, input_that_ran, never, no_answer

pytestmark = pytest.mark.anyio


def use(call_id: CallId | None = None, *, parent: CallId | None = None, given: JsonObject | None = None) -> ToolUse:
    return ToolUse(
        call_id=call_id or new_call_id(),
        name="bash",
        kind="execute",
        title="$ ls",
        input=given or {"command": "ls"},
        parent_call_id=parent,
    )


class Playing:
    """An engine session whose turn is whatever the test gives."""

    def __init__(self, port: RecordingPort, *bodies: EngineBody, error: Exception | None = None) -> None:
        self._port = port
        self._bodies = bodies
        self._error = error

    async def run(self, turn: Turn) -> TurnEnd:
        for body in self._bodies:
            await self._port.emit(body)
        if self._error is not None:
            raise self._error
        return TurnEnd(stop="end", detail="all played")

    async def interrupt(self, turn_id: TurnId) -> None:
        return None

    async def apply(self, change: SessionSettings) -> Applied:
        return "now"


async def test_a_turn_is_recorded_with_its_messages_and_its_end() -> None:
    port = RecordingPort()
    await port.run(Playing(port, Notice(level="info", code="c", text="t")), "hi", "there")
    assert [type(body).__name__ for body in port.history.bodies()] == [
        "TurnStarted",
        "MessageUser",
        "MessageUser",
        "Notice",
        "TurnCompleted",
    ]
    assert [event.seq for event in port.history.events] == [1, 2, 3, 4, 5]
    assert len({event.turn_id for event in port.history.events}) == 1
    assert port.all(TurnCompleted)[0].detail == "all played"
    assert port.violations == []


async def test_a_known_use_and_a_second_result_are_ignored() -> None:
    port = RecordingPort()
    first = use()
    done = ToolResult(call_id=first.call_id, status="ok")
    late = ToolResult(call_id=first.call_id, status="error")
    await port.run(Playing(port, first, first, done, late), "go")
    assert (port.all(ToolUse), port.all(ToolResult)) == ([first], [done])
    assert port.ignored == [first, late]
    assert port.violations == []


async def test_a_use_without_a_result_is_a_violation_and_closed() -> None:
    port = RecordingPort()
    await port.run(Playing(port, use()), "go")
    assert [result.status for result in port.all(ToolResult)] == ["unknown"]
    assert "without a result" in port.violations[0]


async def test_a_detached_use_may_get_its_result_after_the_turn_and_so_may_what_runs_below_it() -> None:
    port = RecordingPort()
    outer = use()
    inner = use(parent=outer.call_id)
    below = use(parent=inner.call_id)
    await port.run(Playing(port, outer, ToolDetached(call_id=outer.call_id)), "go")
    assert port.open_uses == [outer]
    for body in (
        inner,
        ToolOutput(call_id=outer.call_id, text="x"),
        below,
        ToolResult(call_id=below.call_id, status="ok", parent_call_id=inner.call_id),
        ToolResult(call_id=inner.call_id, status="ok", parent_call_id=outer.call_id),
        ToolResult(call_id=outer.call_id, status="ok"),
    ):
        await port.emit(body)
    assert isinstance(await port.ask(use(parent=outer.call_id)), Allow)
    assert port.violations == []


@pytest.mark.parametrize(
    "body",
    [
        MessageDelta(message_id=MessageId("m"), text="x"),
        UsageUpdated(scope="request"),
        Notice(level="info", code="c", text="t"),
        NativeUpdated(native_id="n"),
    ],
    ids=lambda body: type(body).__name__,
)
async def test_some_bodies_are_legal_outside_a_turn(body: EngineBody) -> None:
    port = RecordingPort()
    await port.emit(body)
    assert (port.bodies, port.violations) == ([body], [])


@pytest.mark.parametrize(
    "body",
    [
        MessageAssistant(message_id=MessageId("m"), reply_id=ReplyId("r"), text="x"),
        use(),
        PlanUpdated(entries=()),
        ToolResult(call_id=CallId("c"), status="ok"),
        ToolOutput(call_id=CallId("c"), text="x"),
        SessionClosed(),
    ],
    ids=lambda body: type(body).__name__,
)
async def test_everything_else_is_refused_outside_a_turn(body: EngineBody) -> None:
    port = RecordingPort()
    with pytest.raises(MalformedData):
        await port.emit(body)
    assert port.bodies == []
    assert len(port.violations) == 1


NOBODYS = CallId("c_nobody")
SAID = MessageAssistant(message_id=new_message_id(), reply_id=ReplyId("r"), text="x")


@pytest.mark.parametrize(
    "bodies",
    [
        [ToolResult(call_id=NOBODYS, status="ok")],
        [ToolDetached(call_id=NOBODYS)],
        [ToolOutput(call_id=NOBODYS, text="x")],
        [SAID, MessageDelta(message_id=SAID.message_id, text="x")],
        [SAID, SAID],
        [use(NOBODYS), ToolResult(call_id=NOBODYS, status="ok"), ToolOutput(call_id=NOBODYS, text="late")],
        [use(NOBODYS), ToolResult(call_id=NOBODYS, status="ok"), ToolDetached(call_id=NOBODYS)],
        [use(given={"n": float("nan")})],
        [ToolResult(call_id=NOBODYS, status="fine")],  # pyright: ignore[reportArgumentType]
        [SessionClosed()],
    ],
)
async def test_what_makes_no_sense_is_refused_inside_a_turn(bodies: list[EngineBody]) -> None:
    port = RecordingPort()
    with pytest.raises(MalformedData):
        await port.run(Playing(port, *bodies), "go")
    assert port.violations


async def test_ill_formed_text_is_mended() -> None:
    port = RecordingPort()
    await port.run(Playing(port, MessageDelta(message_id=MessageId("m"), text="a\ud800")), "go")
    assert port.all(MessageDelta)[0].text == "a\ufffd"


async def test_an_engine_error_is_a_failed_turn_and_any_other_error_a_violation_too() -> None:
    port = RecordingPort()
    failing = Playing(port, error=EngineError("busy", code="overloaded", retry_after_s=2.0))
    with pytest.raises(EngineError):
        await port.run(failing, "go")
    assert port.all(TurnFailed) == [TurnFailed(code="overloaded", message="busy", retry_after_s=2.0)]
    assert port.violations == []
    with pytest.raises(ZeroDivisionError):
        await port.run(Playing(port, error=ZeroDivisionError()), "go")
    assert "no EngineError" in port.violations[0]


async def test_a_broken_record_is_said_to_whoever_emits() -> None:
    port = RecordingPort()
    port.broken = "no space left"
    with pytest.raises(TranscriptUnavailable, match="no space left"):
        await port.emit(Notice(level="info", code="c", text="t"))


class Asking(Playing):
    """Asks about one use, keeps the decision and finishes it."""

    def __init__(self, port: RecordingPort) -> None:
        super().__init__(port)
        self.use = use()
        self.decision: object = None

    async def run(self, turn: Turn) -> TurnEnd:
        self.decision = await self._port.ask(self.use)
        await self._port.emit(ToolResult(call_id=self.use.call_id, status="denied"))
        return TurnEnd(stop="end")


async def test_asking_records_the_use_first_and_the_decision_before_it_returns() -> None:
    port = RecordingPort(policy=deny("no"))
    await port.run(Asking(port), "go")
    assert [type(body).__name__ for body in port.bodies][2:6] == [
        "ToolUse",
        "PermissionRequested",
        "PermissionDecided",
        "ToolResult",
    ]


async def test_an_edit_is_what_ran() -> None:
    port = RecordingPort(policy=edit(command="pwd"))
    asking = Asking(port)
    await port.run(asking, "go")
    assert asking.decision == Allow(input={"command": "pwd"})
    assert input_that_ran(port, asking.use) == {"command": "pwd"}


async def test_a_request_nobody_answers_expires_and_a_cancelled_one_too() -> None:
    port = RecordingPort(policy=never)
    asking = Asking(port)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(port.run, asking, "go")
        await port.heard(ToolUse)
        port.expire_pending()
    assert isinstance(asking.decision, Expired)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(port.run, Asking(port), "go")
        await port.heard(ToolUse, count=2)
        tasks.cancel_scope.cancel()
    assert [decided.by for decided in port.all(PermissionDecided)] == ["expiry", "expiry"]


async def test_asking_outside_a_turn_or_after_the_result_is_a_violation() -> None:
    port = RecordingPort()
    with pytest.raises(MalformedData):
        await port.ask(use())
    asking = Asking(port)
    await port.run(asking, "go")
    with pytest.raises(MalformedData, match="has its result"):
        await port.ask(asking.use)


async def test_a_question_nobody_answers_is_answered_by_none() -> None:
    port = RecordingPort(answers=no_answer)
    port.turn_id = new_turn_id()
    assert await port.question(QuestionAsked(question_id=QuestionId("q"), text="which?")) is None


async def test_waiting_for_a_body_is_bounded() -> None:
    with pytest.raises(TimeoutError):
        await RecordingPort().heard(Notice, deadline_s=0.01)


async def test_history_pages_and_says_what_is_missing() -> None:
    history = MemoryHistory()
    for number in range(1001):
        history.stamp(Notice(level="info", code="c", text=str(number)))
    assert [len(await history.events_after(seq)) for seq in (0, 1000, 1001)] == [1000, 1, 0]
    assert await history.blob(history.keep(b"long")) == b"long"
    with pytest.raises(FileUnusable):
        await history.blob("0" * 64)


async def test_a_port_over_an_old_record_knows_its_uses() -> None:
    first = RecordingPort()
    old = use()
    await first.run(Playing(first, old, ToolDetached(call_id=old.call_id)), "go")
    second = RecordingPort(MemoryHistory(events=tuple(first.history.events)))
    await second.emit(ToolResult(call_id=old.call_id, status="ok", content=(Text(text="done"),)))
    assert second.violations == []
