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

from enginehouse_engines.openai_compatible.dialects import REASONING_FIELDS
from enginehouse_engines.openai_compatible.faults import Fault, fault_in, fault_of, inner, readable
from enginehouse_engines.openai_compatible.finish_reasons import CALLS, meaning
from enginehouse_engines.openai_compatible.server_sent_events import EventLines
from enginehouse_engines.openai_compatible.token_counts import later, usage_of
from enginehouse_engines.openai_compatible.tool_fragments import Call, Fragments
from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.events import MessageDelta, ReasoningDelta, UsageUpdated
from enginehouse_protocol.ids import MessageId
from enginehouse_protocol.permissions import JsonObject

_LONGEST_DONE = 16
_decoder = msgspec.json.Decoder()


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
    reasoning_field: str | None = None
    """Where the reasoning stood, if it was a field of its own; it goes back there."""
    stray: str = ""
    """The beginning of what came and is no event of a completion: a page, plain text, an object of another kind."""

    @property
    def empty(self) -> bool:
        return not (self.text or self.reasoning or self.calls)

    @property
    def too_long(self) -> bool:
        """It reached a length limit, so its last call may be cut."""
        return meaning(self.finish) == "too_long"

    @property
    def filtered(self) -> bool:
        return meaning(self.finish) == "filtered"

    @property
    def lost_calls(self) -> bool:
        """Calls were announced, and neither one nor any word came."""
        return self.empty and self.finish in CALLS


class Translator:
    """The state of one answer. Feed it the body in arrival order, then call `end` once."""

    def __init__(self, message_id: MessageId) -> None:
        self._message_id = message_id
        self._lines = EventLines()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_field: str | None = None
        self._calls = Fragments()
        self._finish: str | None = None
        self._refused = False
        self._usage = UsageUpdated(scope="request")
        self._fault: Fault | None = None
        self._done = False
        self._odd = ""
        self._foreign: JsonObject = {}
        self._fresh: list[tuple[Literal["text", "reasoning"], str]] = []

    @property
    def over(self) -> bool:
        """Nothing that matters can follow: `[DONE]` or a fault was seen, or nobody would send that much else."""
        return self._done or self._fault is not None or self._lines.hopeless

    @property
    def settled(self) -> bool:
        """The reply is whole, even if the connection now breaks: only usage could still come."""
        return self._done or self._fault is not None or self._finish is not None

    @property
    def said(self) -> bool:
        """Whether anything of it was shown: text or reasoning."""
        return bool(self._text or self._reasoning)

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
            refused=self._refused or meaning(self._finish) == "filtered",
            usage=self._counted(),
            ended=self._done or self._finish is not None,
            fault=self._fault,
            reasoning_field=self._reasoning_field,
            stray=readable(self._lines.other_text) or self._odd or self._foreign_words(),
        )

    def _deltas(self) -> Iterator[MessageDelta | ReasoningDelta]:
        if not (fresh := self._fresh):
            return
        self._fresh = []
        for kind, pieces in itertools.groupby(fresh, operator.itemgetter(0)):
            text = "".join(piece for _, piece in pieces)
            if kind == "text":
                yield MessageDelta(message_id=self._message_id, text=text)
            else:
                yield ReasoningDelta(message_id=self._message_id, text=text)

    def _event(self, lines: tuple[bytes, ...]) -> None:
        if self._done or self._fault is not None:
            return
        if len(lines) > 1:
            joined = _decoded(b"\n".join(lines))
            if isinstance(joined, dict):
                self._chunk(cast(JsonObject, joined))
                return
        for line in lines:  # one chunk a line where a server forgets the empty line between events
            if len(line) < _LONGEST_DONE and line.strip() == b"[DONE]":
                self._done = True
                return
            chunk = _decoded(line)
            if isinstance(chunk, dict):
                self._chunk(cast(JsonObject, chunk))
            elif not self._odd and not line.startswith(b":"):  # `data: : PROCESSING` is a keep-alive in a wrong place
                self._odd = readable(line)

    def _chunk(self, chunk: JsonObject) -> None:
        choices: Any = chunk.get("choices")
        if (chunk.get("error") or not choices) and (fault := fault_in(chunk)):
            self._fault = fault
            return
        if usage := chunk.get("usage"):
            self._read_usage(usage)
        if not isinstance(choices, list):
            if usage := inner(chunk, "x_groq").get("usage"):
                self._read_usage(usage)
            self._foreign = self._foreign or chunk
            return
        for choice in cast(list[Any], choices):
            if isinstance(choice, dict) and cast(JsonObject, choice).get("index") in (None, 0):
                self._choice(cast(JsonObject, choice))

    def _choice(self, choice: JsonObject) -> None:
        if usage := choice.get("usage"):
            self._read_usage(usage)
        delta: Any = choice.get("delta")
        if not delta and not (self._text or self._reasoning or self._calls):
            delta = choice.get("message")  # a whole reply; after deltas it would only say them again
        if isinstance(delta, dict):
            self._delta(cast(JsonObject, delta))
        finish: Any = choice.get("finish_reason")
        if choice.get("error"):
            self._fault = fault_in(choice)
        elif isinstance(finish, str) and finish:
            if meaning(finish) == "broken":
                self._fault = Fault(message=f"the answer ended with {finish!r}", code="server_error")
            else:
                self._finish = finish

    def _delta(self, delta: JsonObject) -> None:
        content: Any = delta.get("content")
        if len(delta) == 1 and isinstance(content, str):
            self._say("text", content)  # nearly all of them
            return
        for name in REASONING_FIELDS:
            if isinstance(reasoning := delta.get(name), str) and reasoning:
                self._say("reasoning", reasoning)
                self._reasoning_field = self._reasoning_field or name
                break
        if isinstance(content, list):
            for part in cast(list[Any], content):
                self._part(part)
        else:
            self._say("text", content)
        if refusal := delta.get("refusal"):
            self._refused = True
            self._say("text", refusal)
        calls: Any = delta.get("tool_calls")
        if isinstance(calls, dict):
            calls = [calls]
        elif calls is None and isinstance(function := delta.get("function_call"), dict):
            calls = [{"function": function}]  # what came before `tool_calls`
        if isinstance(calls, list):
            for fragment in cast(list[Any], calls):
                if isinstance(fragment, dict):
                    self._calls.add(cast(JsonObject, fragment))

    def _part(self, part: object) -> None:
        """A piece of content from a server that sends lists: text, or thinking made of text."""
        match part:
            case {"type": "text" | "output_text", "text": text}:
                self._say("text", text)
            case {"type": "refusal", "refusal": refusal}:
                self._refused = True
                self._say("text", refusal)
            case {"type": "thinking", "thinking": str(thinking)}:
                self._say("reasoning", thinking)
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
        """The last number counts: servers that report more than once report totals of this request."""
        if isinstance(usage, dict):
            found = usage_of(cast(JsonObject, usage))
            known = self._usage
            self._usage = found if known.input_tokens is None and known.output_tokens is None else later(known, found)

    def _foreign_words(self) -> str:
        """What an object of another kind says: its message, or all of it where nothing else came."""
        found = self._foreign
        if any(isinstance(found.get(key), str) for key in ("message", "detail", "msg")):
            return fault_of(found).message
        said = self._text or self._reasoning or self._calls
        return readable(msgspec.json.encode(found)) if found and not said else ""

    def _counted(self) -> UsageUpdated:
        """What the server counted; a reply of no tokens was not counted."""
        if self._usage.output_tokens == 0 and (self._text or self._reasoning or self._calls):
            return msgspec.structs.replace(self._usage, output_tokens=None, context_tokens=None)
        return self._usage

    def _plain_body(self) -> None:
        """The server took no notice of `stream`: one JSON document, a whole completion or an error; or one a line."""
        text = self._lines.other_text
        body = _decoded(text)
        if body is None and text.startswith(b"{"):
            body = [_decoded(line) for line in text.split(b"\n")]
        for chunk in cast(list[object], body) if isinstance(body, list) else [body]:
            if isinstance(chunk, dict) and not self.over:
                self._chunk(cast(JsonObject, chunk))


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
