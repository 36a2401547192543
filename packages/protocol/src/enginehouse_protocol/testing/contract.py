"""What an engine may emit when: the rules of `enginehouse_protocol.engine` that can be seen from outside.

Rule: it only watches. `follow` is told everything recorded, `problem` answers for what comes next.
"""

from typing import cast, get_args

from enginehouse_protocol.events import (
    Body,
    EngineBody,
    MessageAssistant,
    MessageDelta,
    MessageReset,
    NativeUpdated,
    Notice,
    ReasoningDelta,
    ToolDetached,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.ids import CallId, MessageId

_ENGINE_BODIES: tuple[type[Body], ...] = get_args(EngineBody)
_LEGAL_BETWEEN_TURNS = (MessageDelta, MessageReset, ReasoningDelta, UsageUpdated, Notice, NativeUpdated)


class ContractWatch:
    """The open tool uses and finished messages of one session."""

    def __init__(self) -> None:
        self.uses: dict[CallId, ToolUse] = {}
        self._open: set[CallId] = set()
        self._detached: set[CallId] = set()
        self._finished_messages: set[MessageId] = set()

    @property
    def open_uses(self) -> list[ToolUse]:
        """Uses without a result, detached ones included, oldest first."""
        return [use for use in self.uses.values() if use.call_id in self._open]

    @property
    def owed_now(self) -> list[ToolUse]:
        """Uses that must have their result before the turn ends."""
        return [use for use in self.open_uses if use.call_id not in self._detached and not self.below_detached(use)]

    def is_open(self, call_id: CallId) -> bool:
        return call_id in self._open

    def repeats(self, body: Body) -> bool:
        """A use that is known, or a second result: legal, and ignored."""
        match body:
            case ToolUse():
                return body.call_id in self.uses
            case ToolResult():
                return body.call_id in self.uses and body.call_id not in self._open
            case _:
                return False

    def follow(self, body: Body) -> None:
        """Take note of something recorded."""
        match body:
            case ToolUse():
                self.uses[body.call_id] = body
                self._open.add(body.call_id)
            case ToolResult():
                self._open.discard(body.call_id)
            case ToolDetached():
                self._detached.add(body.call_id)
            case MessageAssistant():
                self._finished_messages.add(body.message_id)
            case _:
                pass

    def problem(self, body: Body, *, in_turn: bool) -> str | None:
        """What is wrong with emitting this now; None: nothing."""
        if not isinstance(body, _ENGINE_BODIES):
            return f"an engine emitted {type(body).__name__}, which is core's"
        if not in_turn and not self._legal_between_turns(body):
            return f"{type(body).__name__} outside a turn"
        match body:
            case ToolResult() | ToolDetached() | ToolOutput() if body.call_id not in self.uses:
                return f"{type(body).__name__} for {body.call_id}, which nobody used"
            case ToolDetached() | ToolOutput() if body.call_id not in self._open:
                return f"{type(body).__name__} for {body.call_id} after its result"
            case MessageDelta() | ReasoningDelta() | MessageReset() if body.message_id in self._finished_messages:
                return f"{type(body).__name__} for {body.message_id} after its message"
            case MessageAssistant() if body.message_id in self._finished_messages:
                return f"a second message {body.message_id}"
            case _:
                return None

    def _legal_between_turns(self, body: Body) -> bool:
        match body:
            case ToolResult() | ToolOutput() if body.call_id in self._detached or body.call_id not in self.uses:
                return True  # an unknown call is its own problem
            case MessageDelta() | ReasoningDelta() | MessageReset():
                return True
            case _:
                return isinstance(body, _LEGAL_BETWEEN_TURNS) or self.below_detached(body)

    def below_detached(self, body: Body) -> bool:
        """Whether this is work of something that goes on in the background."""
        parent = cast("CallId | None", getattr(body, "parent_call_id", None))
        while parent is not None:
            if parent in self._detached:
                return True
            parent = self.uses[parent].parent_call_id if parent in self.uses else None
        return False
