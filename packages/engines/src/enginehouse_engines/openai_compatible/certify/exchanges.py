"""One request and everything that came back, seen twice: event by event, and as the engine understands it.

Rule: an exchange always ends, and whatever goes wrong is part of it, not an exception.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import msgspec

from enginehouse_engines.openai_compatible.client import ModelClient
from enginehouse_engines.openai_compatible.provider_errors import ProviderError
from enginehouse_engines.openai_compatible.server_sent_events import EventLines
from enginehouse_engines.openai_compatible.stream import Reply, Translator
from enginehouse_protocol.capabilities import ModelInfo
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.ids import new_message_id
from enginehouse_protocol.permissions import JsonObject

DEADLINE_S = 120.0
_LATER = frozenset({429, 503, 529})
_MOST_WAIT_S = 30.0
_AGAIN = 2
EVERYTHING = "*"


@dataclass(kw_only=True)
class Exchange:
    """What one request came to. `reply` is None when nothing could be read."""

    reply: Reply | None = None
    events: list[JsonObject] = field(default_factory=list[JsonObject])
    done: bool = False
    """`[DONE]` was said."""
    beside: str = ""
    """The beginning of what was no event: plain JSON, a page."""
    error: EngineError | None = None
    left: bool = False
    """We hung up on purpose."""

    @property
    def accepted(self) -> bool:
        reply = self.reply
        if self.error is not None or reply is None or reply.fault is not None:
            return False
        return self.left or reply.ended or not reply.empty

    @property
    def refusal(self) -> str:
        """The server's words for not doing it."""
        if self.error is not None:
            return str(self.error)
        if self.reply is None or self.accepted:
            return ""
        if self.reply.fault is not None:
            return self.reply.fault.message
        return f"no chat completion, but: {self.reply.stray or 'nothing'}"

    @property
    def status(self) -> int | None:
        return self.error.http_status if self.error is not None else None

    @property
    def text(self) -> str:
        return self.reply.text if self.reply is not None else ""

    def deltas(self) -> Iterator[JsonObject]:
        """The `delta` of each choice, in order."""
        for event in self.events:
            choices: Any = event.get("choices")
            for choice in cast(list[Any], choices) if isinstance(choices, list) else []:
                delta: Any = cast(JsonObject, choice).get("delta") if isinstance(choice, dict) else None
                if isinstance(delta, dict):
                    yield cast(JsonObject, delta)

    def call_parts(self) -> Iterator[JsonObject]:
        for delta in self.deltas():
            parts: Any = delta.get("tool_calls")
            for part in cast(list[Any], parts) if isinstance(parts, list) else []:
                if isinstance(part, dict):
                    yield cast(JsonObject, part)

    def usages(self) -> list[JsonObject]:
        found = (event.get("usage") for event in self.events)
        return [cast(JsonObject, usage) for usage in found if isinstance(usage, dict) and usage]


@dataclass(kw_only=True)
class Heard:
    """Everything a certification heard. An exchange that is not there was not made; `skipped` may say why."""

    model: str = ""
    listed: tuple[ModelInfo, ...] | None = None
    listing_error: EngineError | None = None
    exchanges: dict[str, Exchange] = field(default_factory=dict[str, Exchange])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """Name of an exchange, or `EVERYTHING`, → why it was not made."""

    def of(self, name: str) -> Exchange | None:
        return self.exchanges.get(name)

    def why_not(self, name: str) -> str:
        return self.skipped.get(name) or self.skipped.get(EVERYTHING, "it was not asked")


async def exchange(client: ModelClient, body: JsonObject, *, leave_early: bool = False) -> Exchange:
    """Send `body`. A server that is busy is asked again, a few times."""
    for again in range(_AGAIN + 1):
        found = await _once(client, msgspec.json.encode(body), leave_early=leave_early)
        error = found.error
        if error is None or error.http_status not in _LATER or again == _AGAIN:
            return found
        await anyio.sleep(min(error.retry_after_s if error.retry_after_s is not None else 2.0, _MOST_WAIT_S))
    raise AssertionError("the loop returns")


async def _once(client: ModelClient, body: bytes, *, leave_early: bool) -> Exchange:
    found = Exchange()
    translator = Translator(new_message_id())
    lines = EventLines()
    with anyio.move_on_after(DEADLINE_S) as deadline:
        try:
            async with client.answer(body) as incoming:
                async for data in incoming:
                    said = list(translator.feed(data))
                    for event in lines.feed(data):
                        _keep(found, event)
                    if leave_early and said:
                        found.left = True
                        break
                    if translator.over:
                        break
        except ProviderError as error:
            if not translator.settled:
                found.error = error
    for event in lines.end():
        _keep(found, event)
    found.beside = lines.other_text[:200].decode("utf-8", "replace")
    _, found.reply = translator.end()
    if deadline.cancelled_caught:
        found.error = EngineError(f"no whole answer within {DEADLINE_S:g} s", code="provider.timeout")
    return found


def _keep(found: Exchange, event: tuple[bytes, ...]) -> None:
    text = b"\n".join(event).strip()
    if text == b"[DONE]":
        found.done = True
        return
    try:
        decoded: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if isinstance(decoded, dict):
        found.events.append(cast(JsonObject, decoded))
