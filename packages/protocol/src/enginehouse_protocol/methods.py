"""The hub's methods as one table. Dispatch, the remote client, the schema, the types and the reference page follow it.

Rule: nothing is listed twice. The table is read off `HubApi` and `Connection`; to change it, change them.

Events travel in the one encoding they have, as lines: `codec.decode_recorded` reads one, as it would from the file.
"""

import inspect
import re
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NewType, Protocol, TypeVar

import msgspec

from enginehouse_protocol import errors
from enginehouse_protocol.errors import EnginehouseError, MalformedData
from enginehouse_protocol.hub import Attach, HubApi, Nothing
from enginehouse_protocol.rpc import Handler, Peer, Refused, Reply, WireError
from enginehouse_protocol.rpc.envelope import INVALID_PARAMS, METHOD_NOT_FOUND, Cancel

PROTOCOL_VERSION = 1
ViewId = NewType("ViewId", str)
"""Of one view of one connection; made by the hub."""
ResultT = TypeVar("ResultT", bound=msgspec.Struct)


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who is on the other side. `id` is the host's own, the same after every reconnect; answers are signed with it."""

    id: str
    name: str
    """For people: `terminal`, `VS Code`."""
    version: str


class HubInfo(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    pid: int


class Initialize(msgspec.Struct, frozen=True, kw_only=True):
    protocol_version: int
    host: HostInfo
    can_answer: bool = False
    """Whether a person can be asked there, over all its views. Where nobody can, a request is denied."""


class Initialized(msgspec.Struct, frozen=True, kw_only=True):
    protocol_version: int
    hub: HubInfo


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    view_id: ViewId


class ViewRef(msgspec.Struct, frozen=True, kw_only=True):
    view_id: ViewId


class ViewEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The next events of a view, in order. Each line is an event as it stands in the transcript, or a passing one."""

    view_id: ViewId
    lines: tuple[msgspec.Raw, ...]


class ViewEnded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nothing more comes for this view. Without an error: the session's hub is ending, or the session was deleted."""

    view_id: ViewId
    error: WireError | None = None


class HubEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The hub was told to end: who is attached should not start another one unasked."""

    reason: str
    """For people."""


class Connection(Protocol):
    """What one connection adds to the methods of the hub. Its views end with it."""

    async def initialize(self, params: Initialize) -> Initialized:
        """Say who is there. The first request of every connection; any other before it is refused.

        Raises: UsageError (no common version).
        """
        ...

    async def sessions_attach(self, params: Attach) -> Reply:
        """Begin a view: everything after `after`, then what happens, as `view.events`.

        Raises: SessionNotFound, TranscriptUnreadable.
        """
        ...

    async def sessions_detach(self, params: ViewRef) -> Nothing:
        """End a view. What was on its way still arrives before the answer, nothing after it."""
        ...


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    """On the wire: `noun.verb`."""
    attribute: str
    """In Python: `noun_verb`."""
    owner: Literal["hub", "connection"]
    params: type[msgspec.Struct]
    result: type[msgspec.Struct]
    summary: str
    raises: tuple[str, ...]
    """Names of classes in `errors`. Any method may raise others of that tree."""


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    params: type[msgspec.Struct]
    sender: Literal["hub", "host", "both"]
    summary: str


_PURPOSES = {
    "sessions.create": "Begin a session on an engine.",
    "sessions.list": "Every session of the profile, or of one directory.",
    "sessions.events": "A page of a session's durable events.",
    "sessions.interrupt": "End what the session is doing.",
    "sessions.set": "Change a session's title or settings.",
    "sessions.close": "End the session. It can be read, but nothing can be sent any more.",
    "sessions.delete": "Remove the session and everything kept for it.",
    "queue.list": "The messages that wait for their turn.",
    "queue.edit": "Replace the text of a message that waits. It keeps its place.",
    "queue.withdraw": "Take a message out of the queue.",
    "queue.resume": "Let a held queue drain again.",
    "permissions.pending": "The permission requests that wait for a person.",
    "permissions.answer": "Reply to a permission request.",
    "questions.pending": "The questions that wait for a person.",
    "questions.answer": "Reply to a question of the model. The first answer counts.",
}
"""What a method is for, where the Protocol takes the name to say so."""
_RAISES = re.compile(r"Raises:\s*(.+?)\.?\s*$", re.DOTALL)


def _read_off(contract: type, owner: Literal["hub", "connection"]) -> list[Method]:
    return [
        _method(function, owner)
        for name, function in vars(contract).items()
        if inspect.isfunction(function) and not name.startswith("_") and (contract is not HubApi or name != _STREAMING)
    ]


_STREAMING = "sessions_attach"
"""In process it gives a view, on the wire the id of one."""


def _method(function: Callable[..., object], owner: Literal["hub", "connection"]) -> Method:
    name = function.__name__.replace("_", ".")
    hints = typing.get_type_hints(function)
    (taken,) = [hints[parameter] for parameter in inspect.signature(function).parameters if parameter != "self"]
    said = inspect.getdoc(function) or ""
    found = _RAISES.search(said)
    said = _RAISES.sub("", said)
    return Method(
        name=name,
        attribute=function.__name__,
        owner=owner,
        params=taken,
        result=Attached if function.__name__ == _STREAMING else hints["return"],
        summary=" ".join([_PURPOSES.get(name, ""), *said.split()]).strip(),
        raises=tuple(re.findall(r"\b[A-Z]\w+", re.sub(r"\(.*?\)", "", found[1]))) if found else (),
    )


METHODS: dict[str, Method] = {
    method.name: method for method in (*_read_off(Connection, "connection"), *_read_off(HubApi, "hub"))
}
NOTIFICATIONS: dict[str, Notification] = {
    notification.name: notification
    for notification in (
        Notification(
            name="view.events", params=ViewEvents, sender="hub", summary="The next events of a view, in a batch."
        ),
        Notification(name="view.ended", params=ViewEnded, sender="hub", summary="Nothing more comes for a view."),
        Notification(name="hub.ending", params=HubEnding, sender="hub", summary="The hub was told to end, and does."),
        Notification(
            name="$/cancel",
            params=Cancel,
            sender="both",
            summary="Stop working on a request. It is answered nevertheless, as a rule with code -32800.",
        ),
    )
}


# --- encoding and decoding ----------------------------------------------------------------------------------------


def decode_result(name: str, raw: msgspec.Raw) -> msgspec.Struct:
    """The result of a method of the table.

    Raises:
        MalformedData: it has not that method's shape.
    """
    kind = METHODS[name].result
    try:
        return _decoder(kind).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedData(f"the answer to {name} is not a {kind.__name__}: {error}") from error


def _decoder(kind: type[ResultT]) -> msgspec.json.Decoder[ResultT]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}


async def call(
    peer: Peer,
    name: str,
    params: msgspec.Struct,
    result: type[ResultT],
    *,
    deadline_s: float | None,
    received: Callable[[ResultT], None] | None = None,
) -> ResultT:
    """Ask the hub at the other end. `result` is what the table says; `received` is as `Peer.request` has it.

    Raises:
        EnginehouseError: as `Peer.request` raises it, and what the hub raised.
    """

    def decoded(raw: msgspec.Raw) -> ResultT:
        value = decode_result(name, raw)
        if not isinstance(value, result):
            raise TypeError(f"{name} gives {type(value).__name__}, not {result.__name__}")
        return value

    early: list[ResultT] = []

    def take(raw: msgspec.Raw) -> None:
        early.append(decoded(raw))
        if received is not None:
            received(early[0])

    raw = await peer.request(name, params, deadline_s=deadline_s, received=take if received else None)
    return early[0] if early else decoded(raw)


def dispatch(
    hub: HubApi,
    connection: Connection,
    admit: Callable[[str, msgspec.Struct], msgspec.Struct] = lambda _, params: params,
) -> Handler:
    """The handler of one connection: decodes the parameters and calls the hub or the connection.

    `admit` sees every call first, by name: it returns the parameters to go on with, or raises.
    """
    calls: dict[str, tuple[msgspec.json.Decoder[msgspec.Struct], Callable[[Any], Awaitable[msgspec.Struct | Reply]]]]
    calls = {
        name: (_decoder(method.params), getattr(hub if method.owner == "hub" else connection, method.attribute))
        for name, method in METHODS.items()
    }

    async def handle(name: str, raw: msgspec.Raw) -> msgspec.Struct | Reply:
        if name not in calls:
            raise Refused(METHOD_NOT_FOUND, errors.UsageError.code, f"no method {name[:100]!r}")
        decoder, function = calls[name]
        try:
            params = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(INVALID_PARAMS, MalformedData.code, f"{name}: {error}") from error
        return await function(admit(name, params))

    return handle


def error_codes() -> dict[str, type[EnginehouseError]]:
    """Every class of the error tree by its stable code."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, EnginehouseError)]
    return {kind.code: kind for kind in kinds}
