"""The error tree as JSON-RPC errors and back.

Rule: what crosses is the class, by its stable code, its attributes and its message. What the other side does not know
becomes the nearest ancestor it does know, and keeps its code.
"""

import inspect
import typing
from functools import cache
from typing import Any, cast

import msgspec

from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.errors import EnginehouseError, MalformedData, UsageError
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.rpc.envelope import (
    APPLICATION_ERROR,
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    WireError,
)

_BY_NUMBER: dict[int, tuple[type[EnginehouseError], str]] = {
    PARSE_ERROR: (MalformedData, MalformedData.code),
    INVALID_REQUEST: (MalformedData, MalformedData.code),
    INVALID_PARAMS: (MalformedData, MalformedData.code),
    METHOD_NOT_FOUND: (UsageError, UsageError.code),
    INTERNAL_ERROR: (EnginehouseError, "internal"),
    CANCELLED: (EnginehouseError, "cancelled"),
}
"""For errors without a code of ours: what the specification's own numbers mean."""
_TAKEN = ("code", "kind")


class Refused(Exception):
    """A handler's way to answer with one of the specification's own errors. It crosses no connection."""

    def __init__(self, number: int, code: str, message: str) -> None:
        super().__init__(message)
        self.error = WireError(code=number, message=well_formed(message), data={"code": code})


def to_wire(error: EnginehouseError) -> WireError:
    """`kind` stands beside `code` where an instance has a code of its own: it names the class."""
    data: JsonObject = {"code": error.code}
    if error.code != type(error).code:
        data["kind"] = type(error).code
    for name, value in vars(error).items():
        if name.startswith("_") or name in _TAKEN or value is None:
            continue
        if isinstance(value, str):
            data[name] = well_formed(value)
        elif isinstance(value, int | float):
            data[name] = value
    return WireError(code=APPLICATION_ERROR, message=well_formed(str(error)), data=data)


def from_wire(error: WireError) -> EnginehouseError:
    """The same error, to be raised here. It is always of the tree, whatever the other side sent."""
    data = error.data if isinstance(error.data, dict) else {}
    code, kind = data.get("code"), data.get("kind")
    if not isinstance(code, str):
        known, code = _BY_NUMBER.get(error.code, (EnginehouseError, EnginehouseError.code))
        return _made(known, code, error.message, {})
    return _made(_nearest(kind if isinstance(kind, str) else code), code, error.message, data)


def coded(code: str, message: str) -> EnginehouseError:
    """An error of no class of its own: programs tell it by its code."""
    return _made(EnginehouseError, code, message, {})


def _made(kind: type[EnginehouseError], code: str, message: str, data: JsonObject) -> EnginehouseError:
    attributes = _attributes(kind, data)
    while attributes is None:  # another version's error of that name; its ancestor asks for less
        kind = cast("type[EnginehouseError]", kind.__mro__[1])
        attributes = _attributes(kind, data)
    error = kind.__new__(kind)
    error.args = (message,)  # not through __init__: the message was made where it happened
    for name, value in attributes.items():
        setattr(error, name, value)
    if code != kind.code:
        error.code = code
    return error


def _attributes(kind: type[EnginehouseError], data: JsonObject) -> JsonObject | None:
    """What an instance has to have, or None when `data` does not give it."""
    attributes: JsonObject = {}
    for name, (hint, default) in _wanted(kind).items():
        value = data.get(name)
        if value is None and default is not inspect.Parameter.empty:
            value = default
        try:
            attributes[name] = msgspec.convert(value, hint)
        except msgspec.ValidationError:
            return None
    return attributes


@cache
def _wanted(kind: type[EnginehouseError]) -> dict[str, tuple[Any, Any]]:
    """Attribute → its type and default: what the class's own constructor takes, beside the message and the code."""
    if kind.__init__ is Exception.__init__:
        return {}
    hints = typing.get_type_hints(kind.__init__)
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return {
        parameter.name: (hints[parameter.name], parameter.default)
        for parameter in parameters
        if parameter.name not in ("message", "code")
    }


def _nearest(code: str) -> type[EnginehouseError]:
    kinds = _kinds()
    while code:
        if code in kinds:
            return kinds[code]
        code = code.rpartition(".")[0]
    return EnginehouseError


@cache
def _kinds() -> dict[str, type[EnginehouseError]]:
    """Every class of the tree by its code. Only those of `errors`: a plugin's are known to its own process."""
    found: dict[str, type[EnginehouseError]] = {}
    waiting: list[type[EnginehouseError]] = [EnginehouseError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__ == EnginehouseError.__module__:
            found[kind.code] = kind
            waiting += kind.__subclasses__()
    return found
