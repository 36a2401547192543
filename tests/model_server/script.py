"""What the server may answer, as data: replies, faults, and where a stream stops, breaks or stalls.

Rule: an answer is a value without behaviour. It can be built once, used for many requests, compared and
printed; the server alone plays it.

    reply("Hello")                                          word by word
    reply(deltas=["He", hold("mid"), "llo"])                stops after "He" until release("mid")
    reply(calls=[call("bash", {"command": "ls"}), call("grep", {"pattern": "x"})])        parallel calls
    reply(deltas=["He", cut()])                             the connection closes in mid-stream
    breaking(after=3, by=cut(b'data: {"id'))(reply("Hi"))   closes inside the fourth HTTP chunk
    fault(429, headers={"retry-after": "0"})                refused, with the provider's error JSON
    verbatim(b'data: {"choices"', stall())                  a stream whose every byte the script gives
    hang_up(after=b"SSH-2.0-OpenSSH_9.6\r\n")               what is no HTTP at all
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing more is sent until the gate of this name is released. Without a name: never (a stall)."""

    gate: str | None


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection closes. `partial` is sent first, inside an HTTP chunk that announced more bytes."""

    partial: bytes
    reset: bool


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes put into the event stream as they are, as one HTTP chunk."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """The response ends cleanly here: no finish reason, no `[DONE]`."""


Mark = Hold | Pause | Cut | Raw | End
"""A place in a stream where something other than the next piece of text happens."""
Piece = str | Mark


def hold(gate: str) -> Hold:
    return Hold(gate)


def stall() -> Hold:
    return Hold(None)


def pause(seconds: float) -> Pause:
    return Pause(seconds)


def cut(partial: bytes = b"", *, reset: bool = False) -> Cut:
    return Cut(partial, reset)


def raw(data: bytes) -> Raw:
    return Raw(data)


def end() -> End:
    return End()


def keep_alive() -> Raw:
    """The comment line some providers send while a model thinks."""
    return Raw(b": keep-alive\n\n")


def error_event(message: str, *, code: str | None = None, kind: str = "server_error") -> Raw:
    """An error object inside a stream that began with status 200. Real ones end there: add `end()`."""
    return Raw(b"data: " + msgspec.json.encode(error_body(message, code=code, kind=kind)) + b"\n\n")


def error_body(message: str, *, code: str | None = None, kind: str, param: str | None = None) -> JsonObject:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0

    def as_json(self) -> JsonObject:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call. `id` None: the server makes `call_<step>_<index>`, the same for the same request."""

    name: str
    fragments: tuple[Piece, ...]
    id: str | None = None

    @property
    def arguments(self) -> str:
        return "".join(piece for piece in self.fragments if isinstance(piece, str))


def call(
    name: str,
    arguments: Mapping[str, Any] | str | Sequence[Piece],
    *,
    id: str | None = None,
    fragment_size: int = 24,
) -> Call:
    """Arguments as an object (encoded as JSON), as text sent verbatim (so it may be broken JSON), or as the
    fragments themselves with marks between them. The first two are cut into fragments of `fragment_size`
    characters."""
    if isinstance(arguments, Mapping):
        arguments = msgspec.json.encode(arguments).decode()
    if isinstance(arguments, str):
        text = arguments
        arguments = [text[at : at + fragment_size] for at in range(0, len(text), fragment_size)]
    return Call(name=name, fragments=tuple(arguments), id=id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's answer. In a stream: role, reasoning, text, calls, finish reason, usage if asked for,
    `[DONE]`."""

    deltas: tuple[Piece, ...] = ()
    reasoning: tuple[Piece, ...] = ()
    calls: tuple[Call, ...] = ()
    interleave: bool = False
    """Parallel calls come fragment by fragment in turn, as some servers send them, instead of one after the
    other."""
    usage: Usage | Literal["omit"] | None = None
    """None: numbers made from the sizes. "omit": none is sent even when asked for, as some servers do."""
    finish_reason: str | None = None
    """None: "tool_calls" when there are calls, else "stop"."""
    before: tuple[Hold | Pause, ...] = ()
    """Waits before the status line."""
    breaks: tuple[tuple[int, tuple[Mark, ...]], ...] = ()
    """(n, marks): the marks stand after the n-th event of the stream; the role event is the first."""
    split: int | None = None
    """HTTP chunks of exactly this many bytes, wherever they fall. None: one event, one HTTP chunk."""
    flush_each: bool = False
    """Hand every HTTP chunk to the socket by itself. Else all that stand between two marks go at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An answer that is not a reply. `status` None: the connection closes after `body`, which is sent as it is."""

    status: int | None
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    before: tuple[Hold | Pause, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbatim:
    """A stream of which the script gives every byte: what no reply would be made into."""

    pieces: tuple[bytes | Mark, ...]
    """Bytes are one HTTP chunk each."""
    split: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    before: tuple[Hold | Pause, ...] = ()


Answer = Reply | Fault | Verbatim
ANSWERS = (Reply, Fault, Verbatim)
"""For `isinstance`."""


def reply(
    text: str = "",
    *,
    deltas: Sequence[Piece] | None = None,
    reasoning: str | Sequence[Piece] = (),
    calls: Sequence[Call] = (),
    interleave: bool = False,
    usage: Usage | Literal["omit"] | None = None,
    finish_reason: str | None = None,
    before: Sequence[Hold | Pause] = (),
    split: int | None = None,
    flush_each: bool = False,
) -> Reply:
    """`text` comes word by word; `deltas` says the pieces itself."""
    if deltas is not None and text:
        raise ValueError("give `text` or `deltas`, not both")
    return Reply(
        deltas=tuple(_words(text) if deltas is None else deltas),
        reasoning=tuple(_words(reasoning) if isinstance(reasoning, str) else reasoning),
        calls=tuple(calls),
        interleave=interleave,
        usage=usage,
        finish_reason=finish_reason,
        before=tuple(before),
        split=split,
        flush_each=flush_each,
    )


def fault(
    status: int,
    message: str | None = None,
    *,
    body: bytes | JsonObject | None = None,
    code: str | None = None,
    kind: str | None = None,
    headers: Mapping[str, str] | None = None,
    before: Sequence[Hold | Pause] = (),
) -> Fault:
    """Answer with this status. Without `body`, the error JSON of the provider; bytes are sent as they are."""
    if body is None:
        kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        body = error_body(message or f"The script answers {status} here.", code=code, kind=kind)
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Fault(status=status, body=content, headers=tuple((headers or {}).items()), before=tuple(before))


def hang_up(*, after: bytes = b"", before: Sequence[Hold | Pause] = ()) -> Fault:
    """Close the connection instead of answering, `after` these bytes, which need not be HTTP."""
    return Fault(status=None, body=after, before=tuple(before))


def verbatim(
    *pieces: bytes | Mark,
    split: int | None = None,
    headers: Mapping[str, str] | None = None,
    before: Sequence[Hold | Pause] = (),
) -> Verbatim:
    """Status 200 and these bytes. `split`: in HTTP chunks of that many bytes, wherever they fall."""
    return Verbatim(pieces=pieces, split=split, headers=tuple((headers or {}).items()), before=tuple(before))


def breaking(*, after: int, by: Mark | Sequence[Mark]) -> Callable[[Answer], Answer]:
    """What breaks a reply after its n-th event (the role event is the first), whatever the reply says.

    Anything but a reply passes unchanged: it has no stream to break, or one that says itself where it breaks.
    """
    marks = tuple(by) if isinstance(by, Sequence) else (by,)

    def broken(answer: Answer) -> Answer:
        return replace(answer, breaks=(*answer.breaks, (after, marks))) if isinstance(answer, Reply) else answer

    return broken


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)
