"""One line as a message, and a message as one line. Parameters and results stay as the bytes they are.

Rule: a line that is no message still becomes an answer, and the answer carries the id whenever the line shows one.
"""

import re
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.rpc.framing import EDGE_BYTES, LINE_LIMIT_BYTES, Oversized

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CANCELLED = -32800
APPLICATION_ERROR = -32000
"""An `EnginehouseError`; which one stands in its data."""

CANCEL = "$/cancel"

Key = int | str
"""A request's id. The numbers are those JavaScript can count to."""
_Key = Annotated[int, msgspec.Meta(ge=-(2**53) + 1, le=2**53 - 1)] | Annotated[str, msgspec.Meta(max_length=200)]
JsonValue = dict[str, Any] | list[Any] | str | int | float | bool | None
_ABSENT = msgspec.Raw()


class WireError(msgspec.Struct, frozen=True, kw_only=True):
    """`data.code` is stable, for programs; `message` is for people."""

    code: int
    message: str
    data: JsonValue = None


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    id: _Key


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """Any message. What it is shows in what it has: see `read`."""

    jsonrpc: Literal["2.0"]
    id: _Key | msgspec.UnsetType | None = msgspec.UNSET
    method: str | None = None
    params: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT
    error: WireError | None = None


class Malformed(NamedTuple):
    """A line that is no message. `answers`: it was meant as the answer to our request `key`, so nobody is told."""

    error: WireError
    key: Key | None = None
    answers: bool = False


class _Stub(msgspec.Struct):
    """What can still be learned from a message with a mistake in it."""

    id: _Key | None = None
    method: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


class _Request(msgspec.Struct, kw_only=True):
    jsonrpc: str = "2.0"
    id: Key
    method: str
    params: Any


class _Notification(msgspec.Struct, kw_only=True):
    jsonrpc: str = "2.0"
    method: str
    params: Any


class _Success(msgspec.Struct, kw_only=True):
    jsonrpc: str = "2.0"
    id: Key
    result: Any


class _Failure(msgspec.Struct, kw_only=True):
    jsonrpc: str = "2.0"
    id: Key | None
    error: WireError


_encoder = msgspec.json.Encoder()
_envelope_decoder = msgspec.json.Decoder(Envelope)
_stub_decoder = msgspec.json.Decoder(_Stub)
cancel_decoder = msgspec.json.Decoder(Cancel)


def request_line(key: Key, method: str, params: msgspec.Struct | msgspec.Raw) -> bytes:
    return _line(_Request(id=key, method=method, params=params))


def notification_line(method: str, params: msgspec.Struct | msgspec.Raw) -> bytes:
    return _line(_Notification(method=method, params=params))


def success_line(key: Key, result: msgspec.Struct | msgspec.Raw) -> bytes:
    return _line(_Success(id=key, result=result))


def failure_line(key: Key | None, error: WireError) -> bytes:
    return _line(_Failure(id=key, error=error))


def _line(message: msgspec.Struct) -> bytes:
    """Without its newline.

    Raises:
        MalformedData: it cannot be JSON, or is longer than the other side takes.
    """
    try:
        line = _encoder.encode(message)
        if b"\n" in line:  # somebody's raw JSON was laid out for people
            line = msgspec.json.format(line, indent=-1)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedData(f"this cannot be sent as JSON: {error}") from error
    if len(line) > LINE_LIMIT_BYTES:
        raise MalformedData(f"a message of {len(line)} bytes is too long to send; the limit is {LINE_LIMIT_BYTES}")
    return line


def malformed(number: int, problem: str, key: Key | None = None) -> Malformed:
    return Malformed(WireError(code=number, message=problem, data={"code": "malformed_data"}), key)


def read(line: bytes | Oversized, limit_bytes: int = LINE_LIMIT_BYTES) -> Envelope | Malformed:
    """A request has a method and an id, a notification only a method, a response an id and one of result and error.

    Nothing else is returned as an `Envelope`, except a response without an id: an error about no one request.
    """
    if isinstance(line, Oversized):
        problem = f"a line of {line.size_bytes} bytes is too long; the limit is {limit_bytes}"
        return _known_by_its_edges(line.head, line.tail, problem)
    try:
        message = _envelope_decoder.decode(line)
    except msgspec.ValidationError as error:
        return _explain(line, str(error))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return malformed(PARSE_ERROR, f"this line is not JSON: {error}")
    except RecursionError:
        return _known_by_its_edges(line[:EDGE_BYTES], line[-EDGE_BYTES:], "this line is nested too deeply")
    if message.method is not None:
        if message.id is None:
            return malformed(INVALID_REQUEST, "a request's id is a number or a text, not null")
        return message
    if message.id is not msgspec.UNSET and bool(message.result) != (message.error is not None):
        if message.id is not None or message.error is not None:
            return message
    return _explain(line, "neither a request nor a response")


def _explain(line: bytes, problem: str) -> Malformed:
    try:
        stub = _stub_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if line.lstrip()[:1] == b"[":
            return malformed(INVALID_REQUEST, "batches are not taken; send one message a line")
        if isinstance(error, msgspec.ValidationError):
            return malformed(INVALID_REQUEST, f"not a JSON-RPC 2.0 message: {problem}")
        return malformed(PARSE_ERROR, f"this line is not JSON: {error}")
    answers = not stub.method and bool(stub.result or stub.error)
    return malformed(INVALID_REQUEST, f"not a JSON-RPC 2.0 message: {problem}", stub.id)._replace(answers=answers)


# --- a line that cannot be read whole -----------------------------------------------------------------------------

_TOKEN = re.compile(rb'\s*("(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+)')
_KEY_AT_THE_END = re.compile(rb'[{,]\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)\s*\}\s*$')


def _known_by_its_edges(head: bytes, tail: bytes, problem: str) -> Malformed:
    members, key = _beginning(head)
    if key is None and (at_the_end := _KEY_AT_THE_END.search(tail)):
        key = _key(at_the_end[1])
    answers = "method" not in members and bool(members & {"result", "error"})
    return malformed(INVALID_REQUEST, problem, key)._replace(answers=answers)


def _beginning(head: bytes) -> tuple[set[str], Key | None]:
    """Names of the message's own members as far as `head` shows them, and its id if that is among them."""
    members: set[str] = set()
    key: Key | None = None
    tokens: list[bytes] = []
    position = 0
    while found := _TOKEN.match(head, position):  # ends at a text that goes on behind the edge
        tokens.append(found[1])
        position = found.end()
    depth = 0
    for number, token in enumerate(tokens[:-1]):
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        elif depth == 1 and tokens[number + 1] == b":" and token.startswith(b'"'):
            members.add(token[1:-1].decode(errors="replace"))
            if token == b'"id"' and number + 3 < len(tokens):  # the last one may be cut
                key = _key(tokens[number + 2])
    return members, key


def _key(token: bytes) -> Key | None:
    try:
        return cancel_decoder.decode(b'{"id":' + token + b"}").id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
