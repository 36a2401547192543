"""Puts tool calls together from the pieces a server streams. Does no I/O.

Rule: two calls are never merged into one and none is lost, also where a server forgets `index`, gives every call the
same index, or repeats an id. `index` decides first, then the id, then the order of arrival.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from enginehouse_protocol.permissions import JsonObject


@dataclass(frozen=True, kw_only=True)
class Call:
    """One complete request of the model. `id` may be empty or repeated: it is the provider's."""

    id: str
    name: str
    arguments: str


@dataclass(kw_only=True)
class _Open:
    index: int | None
    id: str
    name: str
    parts: list[str] = field(default_factory=list[str])

    def is_whole(self) -> bool:
        """Whether its arguments are already a JSON object, so that more of the same must be another call."""
        try:
            return isinstance(msgspec.json.decode("".join(self.parts)), dict)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return False


class Fragments:
    """The calls of one reply, in the order in which each was first named."""

    def __init__(self) -> None:
        self._calls: list[_Open] = []
        self._last: _Open | None = None

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, fragment: JsonObject) -> None:
        found: Any = fragment.get("function")
        function = cast(JsonObject, found) if isinstance(found, dict) else {}
        index = _index(fragment.get("index"))
        call_id = _text(fragment.get("id"))
        name = _text(function.get("name"))
        arguments = _arguments(function.get("arguments"))
        call = self._which(index, call_id, name, arguments)
        if call is None:
            call = _Open(index=index, id=call_id, name=name)
            self._calls.append(call)
        else:
            call.id = call.id or call_id
            if name and name != call.name:
                call.name += name
        if arguments:
            if call.parts == ["{}"]:
                call.parts.clear()  # a placeholder: the arguments only begin now
            call.parts.append(arguments)
        self._last = call

    def calls(self) -> tuple[Call, ...]:
        return tuple(Call(id=call.id, name=call.name, arguments="".join(call.parts)) for call in self._calls)

    def _which(self, index: int | None, call_id: str, name: str, arguments: str) -> _Open | None:
        """The open call these pieces continue; None when they begin another."""
        if index is not None:
            call = next((call for call in reversed(self._calls) if call.index == index), None)
        elif call_id:
            call = next((call for call in reversed(self._calls) if call.id == call_id), None)
        else:
            call = self._last
            if call is not None and name and call.name:
                return call if name == call.name and not call.is_whole() else None
        if call is None:
            return None
        if name and call_id and call.id and call_id != call.id:
            return None  # one index for every call
        if name and index is None and name != call.name:
            return None  # one id for every call
        if name and arguments and call.is_whole():
            return None  # one id, one name, and the first is finished
        return call


def _index(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        return int(value[:9])
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: object) -> str:
    """Servers with an API of their own behind the scenes send an object here, not its text."""
    if isinstance(value, dict):
        return msgspec.json.encode(cast(JsonObject, value)).decode()
    return _text(value)
