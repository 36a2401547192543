"""The replies of the model that are under way: which block has which message id, what was shown of it, how it ended.

Rule: a block becomes one durable message when the CLI says it is finished; what was shown of one that never is, is
taken back. A reply that breaks off loses its open block alone: what was finished stands, its tools may have run.

The CLI says that a text is finished before anybody knows whether it was cut, so the last text of a streamed reply is
held until the stream says why it stopped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from enginehouse_engines.claude.frames import ApiEvent, ApiMessage
from enginehouse_protocol.events import (
    EngineBody,
    MessageAssistant,
    MessageDelta,
    MessageReset,
    Reasoning,
    ReasoningDelta,
)
from enginehouse_protocol.ids import CallId, MessageId, ReplyId, new_reply_id
from enginehouse_protocol.permissions import JsonObject

_WHOLE = frozenset(("end_turn", "tool_use", "stop_sequence", "pause_turn"))
"""Why a reply stops that is not cut. `max_tokens`, `refusal` and words of tomorrow mean that something is missing."""
THINKING = frozenset(("thinking", "redacted_thinking"))


@dataclass(slots=True)
class _Block:
    message_id: MessageId
    kind: str
    use_id: str = ""
    shown: bool = False
    finished: bool = False
    arguments: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Reply:
    reply_id: ReplyId
    provider_id: str
    parent: CallId | None
    streamed: bool
    blocks: dict[int, _Block] = field(default_factory=dict[int, _Block])
    held: MessageAssistant | None = None
    _numbers: set[int] = field(default_factory=set[int])

    def block(self, index: int, kind: str, use_id: str = "") -> _Block:
        """A new block, or the one that is under way there already. No two ever have one message id."""
        present = self.blocks.get(index)
        if present is not None and not present.finished:
            return present
        number = index if index not in self._numbers else max(self._numbers) + 1
        self._numbers.add(number)
        made = self.blocks[index] = _Block(MessageId(f"{self.reply_id}-{number}"), kind, use_id)
        return made

    def unfinished(self, kind: str, use_id: str) -> _Block:
        """The streamed block that is now finished; a new one when nothing of it was streamed."""
        for block in self.blocks.values():
            if not block.finished and block.kind == kind and block.use_id == use_id:
                return block
        return self.block(max(self.blocks, default=-1) + 1, kind, use_id)

    def release(self, *, complete: bool) -> list[EngineBody]:
        held, self.held = self.held, None
        if held is None:
            return []
        return [held if complete else msgspec.structs.replace(held, complete=False)]


class Replies:
    """One reply under way for the main conversation and for each subagent."""

    def __init__(self, new_id: Callable[[], ReplyId] = new_reply_id) -> None:
        self._new_id = new_id
        self._open: dict[CallId | None, _Reply] = {}
        self.begun = 0
        """How many replies of the main conversation began, ever."""

    def stream(self, event: ApiEvent, parent: CallId | None) -> list[EngineBody]:
        """One event of the provider's stream."""
        reply = self._open.get(parent)
        match event.type:
            case "content_block_delta" if reply is not None and event.delta is not None:
                return self._delta(reply, event)
            case "message_start":
                said = self._give_up(parent, "the reply broke off")
                message = event.message or {}
                self._begin(_text(message, "id"), parent, streamed=True)
                return said
            case "content_block_start" if reply is not None:
                said = reply.release(complete=True)
                block = event.content_block or {}
                reply.block(event.index, _text(block, "type"), _text(block, "id"))
                return said
            case "message_delta" if reply is not None:
                stop = event.delta.stop_reason if event.delta is not None else None
                return reply.release(complete=stop in _WHOLE)
            case "message_stop":
                return self._give_up(parent, "the reply broke off")
            case _:
                return []

    def finished(
        self,
        message: ApiMessage,
        content: JsonObject,
        parent: CallId | None,
        *,
        aborted: bool = False,
        duration_ms: int | None = None,
    ) -> list[EngineBody]:
        """A text or a thought the CLI says is finished, or was cut here."""
        reply, said = self._reply_of(message, parent)
        kind = _text(content, "type")
        block = reply.unfinished(kind, "")
        block.finished = True
        said += reply.release(complete=True)
        text = _text(content, "text")
        if kind not in THINKING and not text and not block.shown:
            return said
        body = MessageAssistant(
            message_id=block.message_id,
            reply_id=reply.reply_id,
            text=text,
            reasoning=_reasoning(content) if kind in THINKING else None,
            complete=not aborted and message.stop_reason in (None, *_WHOLE),
            duration_ms=duration_ms,
            parent_call_id=parent,
        )
        if reply.streamed and not aborted:
            reply.held = body
            return said
        return [*said, body]

    def used(
        self, message: ApiMessage, use_id: str, kind: str, parent: CallId | None
    ) -> tuple[ReplyId, str, list[EngineBody]]:
        """A tool use the CLI says is finished: its reply, its arguments as they were received, what has to go first."""
        reply, said = self._reply_of(message, parent)
        block = reply.unfinished(kind, use_id)
        block.finished = True
        said += reply.release(complete=True)
        return reply.reply_id, "".join(block.arguments), said

    def end_main(self, reason: str) -> list[EngineBody]:
        """The turn is over."""
        return self._give_up(None, reason)

    def end_all(self, reason: str) -> list[EngineBody]:
        """Nothing more will come of any of them."""
        return [body for parent in tuple(self._open) for body in self._give_up(parent, reason)]

    def _delta(self, reply: _Reply, event: ApiEvent) -> list[EngineBody]:
        block = reply.blocks.get(event.index)
        delta = event.delta
        if block is None or delta is None or block.finished:
            return []
        match delta.type:
            case "text_delta" if delta.text:
                block.shown = True
                return [MessageDelta(message_id=block.message_id, text=delta.text, parent_call_id=reply.parent)]
            case "thinking_delta" if delta.thinking:
                block.shown = True
                return [ReasoningDelta(message_id=block.message_id, text=delta.thinking, parent_call_id=reply.parent)]
            case "input_json_delta":
                block.arguments.append(delta.partial_json)
                return []
            case _:
                return []

    def _reply_of(self, message: ApiMessage, parent: CallId | None) -> tuple[_Reply, list[EngineBody]]:
        reply = self._open.get(parent)
        if reply is not None and message.id and reply.provider_id == message.id:
            return reply, []
        said = self._give_up(parent, "another reply came instead")
        return self._begin(message.id, parent, streamed=False), said

    def _begin(self, provider_id: str, parent: CallId | None, *, streamed: bool) -> _Reply:
        if parent is None:
            self.begun += 1
        reply = self._open[parent] = _Reply(self._new_id(), provider_id, parent, streamed)
        return reply

    def _give_up(self, parent: CallId | None, reason: str) -> list[EngineBody]:
        reply = self._open.pop(parent, None)
        if reply is None:
            return []
        said = reply.release(complete=False)
        said += [
            MessageReset(message_id=block.message_id, reason=reason, parent_call_id=parent)
            for block in reply.blocks.values()
            if block.shown and not block.finished
        ]
        return said


def _reasoning(content: JsonObject) -> Reasoning:
    """The text may be shown; the rest is the provider's own, signature and all."""
    return Reasoning(
        text=_text(content, "thinking"), opaque={key: value for key, value in content.items() if key != "thinking"}
    )


def _text(data: JsonObject, key: str) -> str:
    value: Any = data.get(key)
    return value if isinstance(value, str) else ""
