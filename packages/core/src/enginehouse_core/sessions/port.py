"""What an engine session may say to core, and core's hold on it.

Rule: an engine cannot break the record. A known use or a second result is ignored, what belongs to no turn is refused
outside one, and what an engine leaves open when its turn ends is closed here.
"""

from typing import Protocol

from enginehouse_core.sessions.record import SessionRecord
from enginehouse_protocol.content import Text
from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.events import (
    EngineBody,
    HistoryChanged,
    HistoryReplaced,
    MessageAssistant,
    MessageDelta,
    MessageReset,
    NativeUpdated,
    Notice,
    QuestionAsked,
    ReasoningDelta,
    StepStarted,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.ids import CallId, MessageId, TurnId
from enginehouse_protocol.permissions import Decision, Expired

_ANY_TIME = (UsageUpdated, Notice, NativeUpdated, MessageDelta, MessageReset, ReasoningDelta, ToolOutput)


class Conversation(Protocol):
    """What the port needs of its session."""

    @property
    def record(self) -> SessionRecord: ...

    @property
    def running_turn(self) -> TurnId | None: ...

    async def say(self, notice: Notice) -> None: ...

    async def decide(self, use: ToolUse, turn_id: TurnId | None) -> Decision: ...

    async def ask_person(self, question: QuestionAsked) -> tuple[str, ...] | None: ...

    def want_turn(self, origin: str) -> None: ...

    def count_step(self) -> None: ...


class Port:
    """The `SessionPort` of one opening of an engine session."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._record = conversation.record
        self._known: set[CallId] = set()
        self._streaming: set[MessageId] = set()
        self._closed = False

    async def emit(self, body: EngineBody) -> None:
        turn_id = self._turn_of(body)
        match body:
            case MessageDelta() | ReasoningDelta():
                self._streaming.add(body.message_id)
                await self._record.pass_on(body, turn_id)
            case ToolOutput():
                if body.call_id in self._record.ahead.open_uses:  # what it prints after its result is heard by nobody
                    await self._record.pass_on(body, turn_id)
            case ToolUse():
                await self._use(body, turn_id)
            case ToolResult():
                await self._result(body, turn_id)
            case MessageAssistant():
                await self._flush(body.message_id, turn_id)
                self._streaming.discard(body.message_id)
                await self._record.put(body, turn_id)
            case MessageReset():
                self._record.intake.rest_of_stream(body.message_id)
                self._streaming.discard(body.message_id)
                await self._record.put(body, turn_id)
            case HistoryChanged():
                await self._history_changed(body, turn_id)
            case StepStarted():
                await self._record.put(body, turn_id)
                self._conversation.count_step()
            case _:
                await self._record.put(body, turn_id)

    async def ask(self, use: ToolUse) -> Decision:
        if self._closed:
            return Expired(reason="the session is closed")
        turn_id = self._turn_of(use)
        await self._use(use, turn_id)
        return await self._conversation.decide(use, turn_id)

    async def question(self, question: QuestionAsked) -> tuple[str, ...] | None:
        if self._closed:
            return None
        return await self._conversation.ask_person(question)

    def request_turn(self, origin: str) -> None:
        if not self._closed:
            self._conversation.want_turn(origin)

    async def end_turn(self, turn_id: TurnId, *, interrupted: bool) -> list[CallId]:
        """Close what the engine left open in this turn; returns the uses it should have closed itself."""
        for message_id in sorted(self._streaming):
            await self._flush(message_id, turn_id)
            reset = MessageReset(message_id=message_id, reason="its turn ended before it was complete")
            await self._record.put(reset, turn_id)
        self._streaming.clear()
        left_open: list[CallId] = []
        for call_id, use in list(self._record.ahead.open_uses.items()):
            if use.turn_id != turn_id or self._is_owed(call_id):
                continue
            left_open.append(call_id)
            said = "Interrupted." if interrupted else "The engine ended its turn without saying how this ended."
            result = ToolResult(
                call_id=call_id,
                status="interrupted" if interrupted or not use.allowed else "unknown",
                content=(Text(text=said),),
                parent_call_id=use.use.parent_call_id,
            )
            await self._result(result, turn_id)
        return left_open

    def close(self) -> None:
        """The engine session is over; whatever it still says is not heard."""
        self._closed = True

    async def abandon(self) -> None:
        """What this engine session still owed will not come any more."""
        for call_id, use in list(self._record.ahead.open_uses.items()):
            if call_id in self._known and self._is_owed(call_id):
                said = Text(text="The engine ended while this was going on. It may have done all, some or none of it.")
                await self._result(ToolResult(call_id=call_id, status="unknown", content=(said,)), use.turn_id)

    def _is_owed(self, call_id: CallId | None) -> bool:
        """Whether this use is detached, or runs below one that is."""
        while call_id is not None and (use := self._record.ahead.open_uses.get(call_id)) is not None:
            if use.detached:
                return True
            call_id = use.use.parent_call_id
        return False

    def _turn_of(self, body: EngineBody) -> TurnId | None:
        """The turn a body belongs to.

        Raises:
            MalformedData: it belongs to one, and there is none.
        """
        if self._closed:
            raise MalformedData(f"{type(body).__name__} from an engine session that is closed")
        uses = self._record.ahead.open_uses
        if isinstance(body, ToolResult | ToolOutput) and body.call_id in uses:
            return uses[body.call_id].turn_id
        running = self._conversation.running_turn
        if running is not None or isinstance(body, _ANY_TIME):
            return running
        if isinstance(body, ToolResult) and body.call_id in self._known:
            return None  # a second result; ignored further on
        if body.parent_call_id is not None and self._is_owed(body.parent_call_id):
            return uses[body.parent_call_id].turn_id
        raise MalformedData(f"{type(body).__name__} outside a turn: use request_turn and wait to be run")

    async def _use(self, use: ToolUse, turn_id: TurnId | None) -> None:
        if await self._record.put(use, turn_id, only_if=lambda: use.call_id not in self._known):
            self._known.add(use.call_id)

    async def _result(self, result: ToolResult, turn_id: TurnId | None) -> None:
        open_uses = self._record.ahead.open_uses
        if result.call_id not in open_uses and result.call_id not in self._known:
            raise MalformedData(f"a result for {result.call_id}, which is no tool use of this session")
        await self._flush(result.call_id, turn_id)
        await self._record.put(result, turn_id, only_if=lambda: result.call_id in open_uses)

    async def _flush(self, key: str, turn_id: TurnId | None) -> None:
        """What a stream held back because it might have begun a secret."""
        for rest in self._record.intake.rest_of_stream(key):
            await self._record.put(rest, turn_id)

    async def _history_changed(self, body: HistoryChanged, turn_id: TurnId | None) -> None:
        first_seq = self._record.ahead.history_start
        seq = await self._record.put(body, turn_id)
        if first_seq < seq:
            replaced = HistoryReplaced(
                first_seq=first_seq, last_seq=seq - 1, by=seq, reason=body.reason, summary=body.summary
            )
            await self._record.put(replaced, turn_id)
