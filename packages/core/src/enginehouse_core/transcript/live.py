"""What passes by between durable events, as state: open messages, the end of what running tools print.

Rule: it is folded as events become visible, in their order, and holds nothing that a durable event says. What a view
missed of the transient events, this stands for.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from enginehouse_protocol.events import (
    AnyBody,
    LiveState,
    MessageAssistant,
    MessageDelta,
    MessageReset,
    OpenMessage,
    ReasoningDelta,
    RunningTool,
    SessionStateChanged,
    ToolOutput,
    ToolResult,
    TurnCompleted,
    TurnFailed,
    Unknown,
)
from enginehouse_protocol.ids import CallId, MessageId

TAIL_CHARACTERS = 16 << 10


@dataclass(slots=True)
class _Streaming:
    parent_call_id: CallId | None
    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Tail:
    pieces: deque[str] = field(default_factory=deque[str])
    length: int = 0
    cut: bool = False

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self.length += len(text)
        while self.length - len(self.pieces[0]) >= TAIL_CHARACTERS:
            self.length -= len(self.pieces.popleft())
            self.cut = True

    def whole(self, call_id: CallId) -> RunningTool:
        text = "".join(self.pieces)
        return RunningTool(call_id=call_id, tail=text[-TAIL_CHARACTERS:], cut=self.cut or len(text) > TAIL_CHARACTERS)


class PassingFold:
    """`apply` what becomes visible, in order."""

    def __init__(self) -> None:
        self.state: SessionStateChanged | None = None
        """The last one seen; None before the first."""
        self._messages: dict[MessageId, _Streaming] = {}
        self._tails: dict[CallId, _Tail] = {}

    def apply(self, body: AnyBody | Unknown) -> None:
        # A table, not a chain of tests: every delta of every stream comes through here.
        arm = _ARMS.get(type(body))
        if arm is not None:
            arm(self, body)

    def as_of(self, whole: LiveState) -> LiveState:
        """`whole` with what is known here. Of the queue `whole` knows better: it changes without a state being told."""
        state = self.state or whole.state
        return LiveState(
            seq=whole.seq,
            state=msgspec.structs.replace(state, queued=len(whole.queue), held=whole.state.held),
            messages=tuple(
                OpenMessage(
                    message_id=message_id,
                    text="".join(open_message.text),
                    reasoning="".join(open_message.reasoning),
                    parent_call_id=open_message.parent_call_id,
                )
                for message_id, open_message in self._messages.items()
            ),
            tools=tuple(tail.whole(call_id) for call_id, tail in self._tails.items()),
            queue=whole.queue,
            requests=whole.requests,
            questions=whole.questions,
        )

    def message(self, delta: MessageDelta | ReasoningDelta) -> _Streaming:
        known = self._messages.get(delta.message_id)
        if known is None:
            known = self._messages[delta.message_id] = _Streaming(delta.parent_call_id)
        return known

    def over(self, body: MessageAssistant | MessageReset) -> None:
        self._messages.pop(body.message_id, None)

    def printed(self, body: ToolOutput) -> None:
        self._tails.setdefault(body.call_id, _Tail()).add(body.text)

    def returned(self, body: ToolResult) -> None:
        self._tails.pop(body.call_id, None)

    def turn_over(self) -> None:
        """The output of detached work goes on."""
        self._messages.clear()


def _delta(fold: PassingFold, body: MessageDelta) -> None:
    fold.message(body).text.append(body.text)


def _reasoning(fold: PassingFold, body: ReasoningDelta) -> None:
    fold.message(body).reasoning.append(body.text)


def _state(fold: PassingFold, body: SessionStateChanged) -> None:
    fold.state = body


def _turn_over(fold: PassingFold, _: TurnCompleted | TurnFailed) -> None:
    fold.turn_over()


_ARMS: dict[type, Callable[[PassingFold, Any], None]] = {
    MessageDelta: _delta,
    ReasoningDelta: _reasoning,
    ToolOutput: PassingFold.printed,
    MessageAssistant: PassingFold.over,
    MessageReset: PassingFold.over,
    ToolResult: PassingFold.returned,
    TurnCompleted: _turn_over,
    TurnFailed: _turn_over,
    SessionStateChanged: _state,
}
