"""Events as bytes and back. Encoders and decoders are built once, here.

Rule: what cannot be understood is kept. An unknown tag becomes `Unknown` everywhere; a known tag with a wrong shape is
an error on the wire (`decode_event`) and an `Unknown` in a file (`decode_recorded`), where it can no longer be refused.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

import msgspec

from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.events import AnyBody, AnyEvent, Body, Event, Passing, Unknown, tag_of
from enginehouse_protocol.ids import SessionId, TurnId
from enginehouse_protocol.permissions import JsonObject

BodyT = TypeVar("BodyT", bound=Body)
MAX_DEPTH = 128
"""Of free JSON. Decoders stop at the interpreter's recursion limit, which counts the callers too."""


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The fields around a body whose shape is not known yet."""

    session_id: SessionId
    at_ms: int
    turn_id: TurnId | None
    body: JsonObject
    seq: int | None = None


_encoder = msgspec.json.Encoder()
_event_decoder = msgspec.json.Decoder(Event)
_passing_decoder = msgspec.json.Decoder(Passing)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BODY_TYPES: dict[str, type[Body]] = {}
for _member in get_args(AnyBody):
    _BODY_TYPES[str(_member.__struct_config__.tag)] = _member


def encode_event(event: AnyEvent) -> bytes:
    """One line without its newline.

    Raises:
        UnicodeEncodeError: a text holds a lone surrogate; `well_formed` replaces them.
    """
    if isinstance(event.body, Unknown):
        fields: dict[str, object] = {"session_id": event.session_id}
        if isinstance(event, Event):
            fields["seq"] = event.seq
        return _encoder.encode(
            fields
            | {"at_ms": event.at_ms, "turn_id": event.turn_id, "body": {"type": event.body.tag} | event.body.data}
        )
    return _encoder.encode(event)


def decode_event(line: bytes) -> AnyEvent:
    """An event from the wire.

    Raises:
        MalformedData: not an event, or a known tag whose fields are not what they must be.
    """
    return _decode(line, "refuse")


def decode_recorded(line: bytes) -> AnyEvent:
    """An event from a file: a known tag with a wrong shape is kept as `Unknown`.

    Raises:
        MalformedData: not an event at all.
    """
    return _decode(line, "keep")


def _decode(line: bytes, wrong_shape: Literal["refuse", "keep"]) -> AnyEvent:
    try:
        event = _event_decoder.decode(line)
        if not isinstance(event.body, Unknown):
            return event
    except _UNREADABLE:
        pass
    try:
        envelope = _envelope_decoder.decode(line)
    except _UNREADABLE as error:
        raise MalformedData(f"not an event: {error}") from error
    tag = envelope.body.get("type")
    if not isinstance(tag, str) or not tag:
        raise MalformedData("not an event: its body has no type")
    if envelope.seq is None and tag in _BODY_TYPES:
        try:
            return _passing_decoder.decode(line)
        except msgspec.DecodeError:
            pass
    if tag in _BODY_TYPES and wrong_shape == "refuse":
        raise MalformedData(f"a {tag} event with wrong fields: {_problem(tag, envelope.body)}")
    data = {key: value for key, value in envelope.body.items() if key != "type"}
    unknown = Unknown(tag=tag, data=data, reason="wrong_shape" if tag in _BODY_TYPES else "unknown_tag")
    if envelope.seq is None:
        return Passing(session_id=envelope.session_id, at_ms=envelope.at_ms, turn_id=envelope.turn_id, body=unknown)
    return Event(
        session_id=envelope.session_id,
        seq=envelope.seq,
        at_ms=envelope.at_ms,
        turn_id=envelope.turn_id,
        body=unknown,
    )


def _problem(tag: str, body: JsonObject) -> str:
    try:
        msgspec.convert(body, _BODY_TYPES[tag])
    except msgspec.ValidationError as error:
        return str(error)
    return "a durable tag without a seq, or a transient one with a seq"


def map_text(body: BodyT, change: Callable[[str], str]) -> BodyT:
    """The same body with `change` applied to every free text in it, keys of free JSON included.

    Tags and closed sets of words stay: a secret that happens to read `interrupted` is no reason to lose an event.

    Raises:
        MalformedData: a field is not what it must be, or free JSON is nested too deeply to be read back.
    """
    changed = _mapped(body, change, 0)
    try:
        return msgspec.convert(msgspec.to_builtins(changed), type(body))
    except msgspec.ValidationError as error:
        raise MalformedData(f"a {tag_of(body)} body with wrong fields: {error}") from error


def _mapped(value: Any, change: Callable[[str], str], depth: int) -> Any:
    _refuse_deep(depth)
    match value:
        case str():
            return change(value)
        case msgspec.Struct():
            texts = {name: _mapped(getattr(value, name), change, depth + 1) for name in _open_fields(type(value))}
            return msgspec.structs.replace(value, **texts)
        case dict():
            fields = cast(dict[str, Any], value)
            return {change(key): _mapped(item, change, depth + 1) for key, item in fields.items()}
        case list():
            return [_mapped(item, change, depth + 1) for item in cast(list[Any], value)]
        case tuple():
            return tuple(_mapped(item, change, depth + 1) for item in cast(tuple[Any, ...], value))
        case _:
            return value


@cache
def _open_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Names of the fields that may hold any text."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if not _is_closed(field.type))


def _is_closed(kind: Any) -> bool:
    return get_origin(kind) is Literal or any(get_origin(part) is Literal for part in get_args(kind))


def _refuse_deep(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise MalformedData(f"JSON nested more than {MAX_DEPTH} levels deep")


def well_formed(text: str) -> str:
    """Valid Unicode: surrogate pairs joined, every lone surrogate replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def refuse_nonfinite(value: object, depth: int = 0) -> None:
    """JSON has no NaN and no infinity, and turning them into null would be a lie.

    Raises:
        MalformedData: there is one somewhere in `value`, or it is nested too deeply to be read back.
    """
    _refuse_deep(depth)
    match value:
        case float() if not math.isfinite(value):
            raise MalformedData(f"{value} is not a number JSON can carry")
        case dict():
            for item in cast(dict[str, object], value).values():
                refuse_nonfinite(item, depth + 1)
        case list() | tuple():
            for item in cast(list[object], value):
                refuse_nonfinite(item, depth + 1)
        case _:
            pass
