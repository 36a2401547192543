"""What a frame of the CLI means, as the translator says it and the session does it.

Rule: order is meaning. The session does what is said one after the other; only adjacent deltas of one message may be
merged, and only transients may be dropped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from enginehouse_protocol.engine import TurnEnd
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.events import TRANSIENT, EngineBody, MessageDelta, ReasoningDelta
from enginehouse_protocol.permissions import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class Emit:
    """Give this body to the port."""

    body: EngineBody


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnEnded:
    """The CLI's result came, or cannot come any more; every use of the turn has its result before this."""

    end: TurnEnd | EngineError
    """What `run` returns or raises."""
    prompt_uuid: str | None
    """Of our prompt that this answers; None: the CLI had begun the turn by itself, so a turn of ours goes on."""
    origin: str = ""
    """What began a turn of the CLI's own, in its words: `task-notification`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WantsTurn:
    """The CLI began to speak outside a turn. What follows, up to `TurnEnded`, is to be emitted inside one."""

    origin: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeId:
    """The CLI's session id, at first sight and when it changed. `native.updated` was said before this."""

    native_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeChanged:
    """The CLI's own permission mode is another than it was, whoever changed it."""

    mode: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolsOffered:
    """What the CLI offers the model from now on; said when it is not what it was."""

    tools: tuple[str, ...]
    model: str
    api_key_source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotUnderstood:
    """A frame, a block or a field of a kind we do not know. Never fatal: it is kept in the log."""

    what: str
    data: JsonObject = field(default_factory=dict[str, object])


Said = Emit | TurnEnded | WantsTurn | NativeId | ModeChanged | ToolsOffered | NotUnderstood


def merge(said: Iterable[Said]) -> list[Said]:
    """The same with adjacent deltas of one message as one delta. Anything else between two keeps them apart."""
    merged: list[Said] = []
    parts: list[str] = []
    open_delta: MessageDelta | ReasoningDelta | None = None

    def close() -> None:
        nonlocal open_delta
        if open_delta is not None:
            merged.append(Emit(body=msgspec.structs.replace(open_delta, text="".join(parts))))
        open_delta = None
        parts.clear()

    for each in said:
        if isinstance(each, Emit) and isinstance(each.body, MessageDelta | ReasoningDelta):
            body = each.body
            if type(body) is not type(open_delta) or open_delta is None or body.message_id != open_delta.message_id:
                close()
                open_delta = body
            parts.append(body.text)
            continue
        close()
        merged.append(each)
    close()
    return merged


def drop_transients(said: Iterable[Said]) -> list[Said]:
    """The same without what only passes by. What is durable, and what the session has to do, stays in order."""
    return [each for each in said if not (isinstance(each, Emit) and isinstance(each.body, TRANSIENT))]
