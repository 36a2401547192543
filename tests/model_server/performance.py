"""What is done on the socket for one answer, in order: bytes to write and marks to stop at.

Rule: all of it is decided before the first byte is sent. One `bytes` is one write; between two of them stands
a mark, or the reply asked for small writes.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from model_server import wire
from model_server.request import ChatRequest
from model_server.script import Answer, Cut, End, Fault, Hold, Pause, Raw, Reply, Verbatim

Act = bytes | Hold | Pause | Cut
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}
_LAST_CHUNK = b"0\r\n\r\n"


class Performance(NamedTuple):
    status: int | None
    acts: list[Act]


class Wire(Protocol):
    """How a reply is written."""

    def events(self, reply: Reply, request: ChatRequest) -> list[wire.Event]: ...

    def document(self, reply: Reply, request: ChatRequest) -> bytes: ...


def perform(answer: Answer, request: ChatRequest, wire: Wire = wire) -> Performance:
    if isinstance(answer, Fault):
        if answer.status is not None:
            return Performance(answer.status, [*answer.before, whole(answer.status, answer.body, answer.headers)])
        acts: list[Act] = [answer.body] if answer.body else []
        return Performance(None, [*answer.before, *acts, Cut(b"", reset=False)])
    if isinstance(answer, Verbatim):
        head = _stream_head(answer.headers)
        return Performance(200, [*answer.before, *_streamed(answer.pieces, head, answer.split, small=True)])
    if request.stream:
        small = answer.flush_each or answer.split is not None
        stream = _streamed(wire.events(answer, request), _STREAM_HEAD, answer.split, small=small)
        return Performance(200, [*answer.before, *stream])
    return Performance(200, [*answer.before, *_waits(answer), whole(200, wire.document(answer, request))])


def whole(status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """A complete response. `headers` are added to the usual ones or replace them."""
    usual = {"content-type": "application/json", "content-length": str(len(body))}
    return _head(status, {**usual, **{name.lower(): value for name, value in headers}}) + body


def _waits(reply: Reply) -> list[Act]:
    """The marks of a stream, all before the document: it has no inside to stop at."""
    pieces = [*reply.reasoning, *reply.deltas, *(piece for each in reply.calls for piece in each.fragments)]
    pieces += [mark for _, marks in reply.breaks for mark in marks]
    return [piece for piece in pieces if isinstance(piece, Hold | Pause | Cut)]


def _streamed(events: Sequence[wire.Event], head: bytes, split: int | None, *, small: bool) -> list[Act]:
    acts: list[Act] = []
    writes = [head]
    parts: list[bytes] = []
    for event in (*events, End()):
        if isinstance(event, bytes | Raw):
            parts.append(event if isinstance(event, bytes) else event.data)
            continue
        writes += _http_chunks(parts, split)
        if isinstance(event, End):
            writes.append(_LAST_CHUNK)
        acts += writes if small else [b"".join(writes)]
        if isinstance(event, End):
            break
        acts.append(event)
        writes, parts = [], []
    return [act for act in acts if act != b""]


def _http_chunks(parts: list[bytes], size: int | None) -> list[bytes]:
    """Each part as one HTTP chunk; with a size, all of them together in chunks of that many bytes."""
    if size is not None:
        together = b"".join(parts)
        parts = [together[at : at + size] for at in range(0, len(together), size)]
    return [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Scripted')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def _stream_head(headers: Iterable[tuple[str, str]] = ()) -> bytes:
    usual = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "transfer-encoding": "chunked",
    }
    return _head(200, {**usual, **{name.lower(): value for name, value in headers}})


_STREAM_HEAD = _stream_head()
