"""Turns the body of one streamed Chat Completions answer into deltas and, at its end, a `Reply`. Does no I/O.

Rule: whatever a server sends, the answer is one of three: a whole reply, a reply that was cut, or a fault in the
provider's own words. Nothing is guessed into a success, and text that came before a fault is kept.
"""

import itertools
import json
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec

from enginehouse_engines.openai_compatible.server_sent_events import EventLines
from enginehouse_engines.openai_compatible.tool_fragments import Call, Fragments
from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.events import MessageDelta, ReasoningDelta, UsageUpdated
from enginehouse_protocol.ids import MessageId
from enginehouse_protocol.permissions import JsonObject

_decoder = msgspec.json.Decoder()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An error a server reported inside an answer that began as a success."""

    message: str
    code: str = ""
    http_status: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What one answer amounted to."""

    text: str
    reasoning: str
    calls: tuple[Call, ...]
    finish: str | None
    """The server's `finish_reason`. Only evidence: the presence of calls decides what happens next."""
    refused: bool
    usage: UsageUpdated
    ended: bool
    """False: the stream stopped without `[DONE]` and without a finish reason."""
    fault: Fault | None
    stray: str = ""
    """The beginning of a body that was no event stream at all."""

    @property
    def empty(self) -> bool:
        return not (self.text or self.reasoning or self.calls)


class Translator:
    """The state of one answer. Feed it the body in arrival order, then call `end` once."""

    def __init__(self, message_id: MessageId) -> None:
        self._message_id = message_id
        self._lines = EventLines()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls = Fragments()
        self._finish: str | None = None
        self._refused = False
        self._usage = UsageUpdated(scope="request")
        self._fault: Fault | None = None
        self._done = False
        self._fresh: list[tuple[Literal["text", "reasoning"], str]] = []

    @property
    def over(self) -> bool:
        """Nothing that matters can follow: `[DONE]` or a fault was seen."""
        return self._done or self._fault is not None

    @property
    def settled(self) -> bool:
        """The reply is whole, even if the connection now breaks: only usage could still come."""
        return self.over or self._finish is not None

    def feed(self, data: bytes) -> Iterator[MessageDelta | ReasoningDelta]:
        """What these bytes said, adjacent deltas merged into one."""
        for event in self._lines.feed(data):
            self._event(event)
        yield from self._deltas()

    def end(self) -> tuple[tuple[MessageDelta | ReasoningDelta, ...], Reply]:
        """What was still in the buffers, and the reply. To be called also when the connection broke."""
        for event in self._lines.end():
            self._event(event)
        if not self.settled and not self._text and not self._calls and not self._reasoning:
            self._plain_body()
        return tuple(self._deltas()), Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            calls=self._calls.calls(),
            finish=self._finish,
            refused=self._refused or self._finish == "content_filter",
            usage=self._usage,
            ended=self._done or self._finish is not None,
            fault=self._fault,
            stray=self._lines.other_text[:400].decode("utf-8", "replace"),
        )

    def _deltas(self) -> Iterator[MessageDelta | ReasoningDelta]:
        fresh, self._fresh = self._fresh, []
        for kind, pieces in itertools.groupby(fresh, operator.itemgetter(0)):
            text = "".join(piece for _, piece in pieces)
            if kind == "text":
                yield MessageDelta(message_id=self._message_id, text=text)
            else:
                yield ReasoningDelta(message_id=self._message_id, text=text)

    def _event(self, lines: tuple[bytes, ...]) -> None:
        if self.over:
            return
        if len(lines) > 1:
            joined = _decoded(b"\n".join(lines))
            if isinstance(joined, dict):
                self._chunk(cast(JsonObject, joined))
                return
        for line in lines:  # one chunk a line where a server forgets the empty line between events
            if line.strip() == b"[DONE]":
                self._done = True
                return
            chunk = _decoded(line)
            if isinstance(chunk, dict):
                self._chunk(cast(JsonObject, chunk))
            # Anything else (`data: : PROCESSING`) is a keep-alive in the wrong place.

    def _chunk(self, chunk: JsonObject) -> None:
        if fault := _fault_in(chunk):
            self._fault = fault
            return
        if usage := chunk.get("usage"):
            self._read_usage(usage)
        choices: Any = chunk.get("choices")
        if not isinstance(choices, list):
            return
        for choice in cast(list[Any], choices):
            if isinstance(choice, dict) and cast(JsonObject, choice).get("index") in (None, 0):
                self._choice(cast(JsonObject, choice))

    def _choice(self, choice: JsonObject) -> None:
        if fault := _fault_in(choice):
            self._fault = fault
            return
        if usage := choice.get("usage"):
            self._read_usage(usage)
        delta: Any = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            self._delta(cast(JsonObject, delta))
        if isinstance(finish := choice.get("finish_reason"), str) and finish:
            self._finish = finish

    def _delta(self, delta: JsonObject) -> None:
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            self._say("reasoning", reasoning)
        content: Any = delta.get("content")
        if isinstance(content, list):
            for part in cast(list[Any], content):
                self._part(part)
        else:
            self._say("text", content)
        if refusal := delta.get("refusal"):
            self._refused = True
            self._say("text", refusal)
        calls: Any = delta.get("tool_calls")
        if isinstance(calls, list):
            for fragment in cast(list[Any], calls):
                if isinstance(fragment, dict):
                    self._calls.add(cast(JsonObject, fragment))

    def _part(self, part: object) -> None:
        """A piece of content from a server that sends lists: text, or thinking made of text."""
        match part:
            case {"type": "text", "text": text}:
                self._say("text", text)
            case {"type": "thinking", "thinking": [*inner]}:
                for piece in inner:
                    if isinstance(piece, dict):
                        self._say("reasoning", cast(JsonObject, piece).get("text"))
            case _:
                pass

    def _say(self, kind: Literal["text", "reasoning"], text: object) -> None:
        if isinstance(text, str) and text:
            (self._text if kind == "text" else self._reasoning).append(text)
            self._fresh.append((kind, text))

    def _read_usage(self, usage: object) -> None:
        """The last one counts: servers that report more than once report totals of this request."""
        if isinstance(usage, dict):
            self._usage = usage_of(cast(JsonObject, usage))

    def _plain_body(self) -> None:
        """The server took no notice of `stream`: one JSON document, a whole completion or an error."""
        body = _decoded(self._lines.other_text)
        if isinstance(body, dict):
            self._chunk(cast(JsonObject, body))


def usage_of(usage: JsonObject) -> UsageUpdated:
    """A server's token counts in our words. What it did not say stays unknown."""
    prompt = _count(usage.get("prompt_tokens"))
    output = _count(usage.get("completion_tokens"))
    cached = _count(_inner(usage, "prompt_tokens_details").get("cached_tokens"))
    return UsageUpdated(
        scope="request",
        input_tokens=prompt,
        cached_input_tokens=cached if cached is not None else _count(usage.get("prompt_cache_hit_tokens")),
        output_tokens=output,
        reasoning_tokens=_count(_inner(usage, "completion_tokens_details").get("reasoning_tokens")),
        context_tokens=None if prompt is None or output is None else prompt + output,
    )


def _fault_in(found: JsonObject) -> Fault | None:
    error: Any = found.get("error")
    if error is None and found.get("object") == "error":
        error = found
    if error is None and found.get("finish_reason") == "error":
        error = "the provider ended its answer with an error it did not explain"
    return fault_of(error) if error else None


def fault_of(error: object) -> Fault:
    """An error in whatever shape a server gives it."""
    if not isinstance(error, dict):
        return Fault(message=str(error))
    fields = cast(JsonObject, error)
    code = fields.get("code")
    words = next((fields[key] for key in ("message", "detail", "error") if isinstance(fields.get(key), str)), None)
    status = code if isinstance(code, int) and 400 <= code < 600 else None
    return Fault(
        message=words or json.dumps(fields, ensure_ascii=False),
        code=str(code if code is not None else fields.get("type") or ""),
        http_status=status,
    )


def _decoded(line: bytes) -> object:
    """A JSON value, its text made valid Unicode; None when it is none."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:  # msgspec refuses lone surrogates and ill-formed UTF-8, which a person would rather see replaced than lost
        return _mended(json.loads(line.decode("utf-8", "replace"), parse_constant=lambda _: None))
    except (ValueError, RecursionError):
        return None


def _mended(value: object) -> object:
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {well_formed(key): _mended(item) for key, item in cast(dict[str, object], value).items()}
        case list():
            return [_mended(item) for item in cast(list[object], value)]
        case _:
            return value


def _inner(fields: JsonObject, key: str) -> JsonObject:
    found: Any = fields.get(key)
    return cast(JsonObject, found) if isinstance(found, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
