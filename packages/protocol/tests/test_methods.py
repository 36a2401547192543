"""The method table is the Protocol, nothing more and nothing less, and what it says is what happens on the wire."""

import inspect
import types
import typing
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin

import anyio
import msgspec
import pytest

from enginehouse_protocol import errors
from enginehouse_protocol.codec import decode_event, decode_recorded
from enginehouse_protocol.errors import EnginehouseError, MalformedData, SessionNotFound, UsageError
from enginehouse_protocol.events import Unknown
from enginehouse_protocol.hub import Attach, EventsAfter, EventsPage, HubApi, Nothing, QueueState, SessionRef
from enginehouse_protocol.ids import SessionId
from enginehouse_protocol.methods import (
    METHODS,
    NOTIFICATIONS,
    Attached,
    Connection,
    HostInfo,
    HubInfo,
    Initialize,
    Initialized,
    Method,
    ViewEnded,
    ViewEvents,
    ViewId,
    ViewRef,
    call,
    decode_result,
    dispatch,
    error_codes,
)
from enginehouse_protocol.rpc import Peer, Reply, from_wire, memory_pair, to_wire

pytestmark = pytest.mark.anyio
EVERY_METHOD = pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
GOLDEN = Path(__file__).parent / "golden" / "v1"


def public(contract: type) -> dict[str, Any]:
    return {name: value for name, value in vars(contract).items() if not name.startswith("_") and callable(value)}


def test_the_table_and_the_hub_s_protocol_agree_exactly() -> None:
    wanted: dict[str, tuple[object, object]] = {}
    for name, function in public(HubApi).items():
        hints = typing.get_type_hints(function)
        given = hints.pop("return")
        wanted[name.replace("_", ".")] = (*hints.values(), given)
    wanted["sessions.attach"] = (Attach, Attached)
    wanted["sessions.detach"] = (ViewRef, Nothing)
    wanted["initialize"] = (Initialize, Initialized)
    assert {name: (method.params, method.result) for name, method in METHODS.items()} == wanted


def test_who_answers_what() -> None:
    assert {method.attribute for method in METHODS.values() if method.owner == "connection"} == set(public(Connection))
    assert [name for name, method in METHODS.items() if method.attribute != name.replace(".", "_")] == []


@EVERY_METHOD
def test_a_method_says_what_it_is_for_and_which_errors_to_expect(method: Method) -> None:
    assert method.summary.endswith(".")
    assert "Raises" not in method.summary
    for name in method.raises:
        assert issubclass(getattr(errors, name), EnginehouseError)


def test_the_errors_are_those_the_protocol_names() -> None:
    named = {name: method.raises for name, method in METHODS.items()}
    assert named["sessions.create"] == ("EngineUnavailable", "FileUnusable")
    assert named["queue.withdraw"] == ("MessageNotQueued",)
    assert named["sessions.list"] == ()


def test_every_error_has_its_code_in_the_list() -> None:
    assert error_codes()["session.not_found"] is SessionNotFound
    assert len(error_codes()) == len([kind for kind in vars(errors).values() if inspect.isclass(kind)])


# --- over a connection --------------------------------------------------------------------------------------------


def sample(kind: Any) -> Any:
    """Some value of this type, the first choice wherever there is one, with every field set."""
    kind = getattr(kind, "__supertype__", kind)
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{field.name: sample(field.type) for field in msgspec.structs.fields(kind)})
    if kind is msgspec.Raw:
        return msgspec.Raw(GOLDEN.joinpath("tool.use.jsonl").read_bytes().splitlines()[0])
    if origin is Literal:
        return parts[0]
    if origin is tuple:
        return (sample(parts[0]),)
    if origin is dict:
        return {"name": "value"}
    if origin in (typing.Union, types.UnionType):
        return sample(parts[0])
    return {str: "text ä", int: 3, bool: True, float: 1.5}[kind]


class House:
    """Stands for a hub and a connection: keeps what it was asked, answers with a sample, or raises."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, msgspec.Struct]] = []
        self.problem: EnginehouseError | None = None

    def __getattr__(self, name: str) -> Any:
        method = METHODS[name.replace("_", ".")]

        async def answer(params: msgspec.Struct) -> msgspec.Struct | Reply:
            self.asked.append((method.name, params))
            if self.problem is not None:
                raise self.problem
            result = sample(method.result)
            return Reply(result, then=lambda: None) if name == "sessions_attach" else result

        return answer

    def connected(self) -> "tuple[Peer, Peer]":
        first, second = memory_pair()
        return Peer(first, unasked), Peer(second, dispatch(cast(HubApi, self), cast(Connection, self)))


async def unasked(method: str, params: msgspec.Raw) -> msgspec.Raw:
    raise AssertionError(method)


@EVERY_METHOD
async def test_parameters_and_results_arrive_as_they_were_given(method: Method) -> None:
    house = House()
    params, result = sample(method.params), sample(method.result)
    with anyio.fail_after(5):
        mine, theirs = house.connected()
        async with mine, theirs:
            received = await call(mine, method.name, params, method.result, deadline_s=5)
    assert house.asked == [(method.name, params)]
    assert type(received) is method.result
    assert msgspec.json.encode(received) == msgspec.json.encode(result)


async def test_an_error_of_the_hub_is_raised_at_the_other_end() -> None:
    house = House()
    house.problem = SessionNotFound("s_1")
    with anyio.fail_after(5):
        mine, theirs = house.connected()
        async with mine, theirs:
            with pytest.raises(SessionNotFound) as found:
                await call(mine, "sessions.close", SessionRef(session_id=SessionId("s_1")), Nothing, deadline_s=5)
    assert found.value.session_id == "s_1"


@pytest.mark.parametrize(
    "params", [b"[]", b"{}", b'{"session_id":7}', b'{"session_id":"\xff"}', b"[" * 50_000 + b"]" * 50_000]
)
async def test_parameters_of_another_shape_never_reach_the_hub(params: bytes) -> None:
    house = House()
    with anyio.fail_after(5):
        mine, theirs = house.connected()
        async with mine, theirs:
            with pytest.raises(MalformedData):
                await mine.request("sessions.close", params, deadline_s=5)
            with pytest.raises(UsageError, match=r"no method 'sessions\.dance'"):
                await mine.request("sessions.dance", b"{}", deadline_s=5)
    assert house.asked == []


async def test_a_field_of_a_newer_host_is_passed_over() -> None:
    house = House()
    with anyio.fail_after(5):
        mine, theirs = house.connected()
        async with mine, theirs:
            await mine.request("sessions.close", b'{"session_id":"s_1","gently":true}', deadline_s=5)
    assert house.asked == [("sessions.close", SessionRef(session_id=SessionId("s_1")))]


def test_a_result_of_another_shape_is_the_other_side_s_mistake() -> None:
    with pytest.raises(MalformedData, match=r"the answer to sessions\.send is not a Receipt"):
        decode_result("sessions.send", msgspec.Raw(b'{"seq":1}'))


async def test_a_view_s_id_is_known_before_its_first_event_is_read() -> None:
    known: list[ViewId] = []
    house = House()
    with anyio.fail_after(5):
        mine, theirs = house.connected()
        async with mine, theirs:
            attached = await call(
                mine,
                "sessions.attach",
                Attach(session_id=SessionId("s_1")),
                Attached,
                deadline_s=5,
                received=lambda result: known.append(result.view_id),
            )
    assert known == [attached.view_id]


GOLDEN_LINES = [line for file in sorted(GOLDEN.glob("*.jsonl")) for line in file.read_bytes().splitlines()]


async def test_events_travel_byte_for_byte_also_those_nobody_knows() -> None:
    """In one batch every line of every golden file, unknown and misshapen ones among them."""
    heard: list[ViewEvents] = []

    def hear(name: str, params: msgspec.Raw) -> None:
        heard.append(msgspec.json.decode(params, type=ViewEvents))

    first, second = memory_pair()
    batch = ViewEvents(view_id=ViewId("v_1"), lines=tuple(msgspec.Raw(line) for line in GOLDEN_LINES))
    with anyio.fail_after(5):
        async with Peer(first, unasked, notified=hear) as mine, Peer(second, unasked) as theirs:
            await theirs.notify("view.events", batch)
            with pytest.raises(EnginehouseError):
                await mine.request("a", b"{}", deadline_s=5)  # what came before it has been heard
    assert [bytes(line) for batch in heard for line in batch.lines] == GOLDEN_LINES
    assert any(isinstance(decode_recorded(line).body, Unknown) for line in GOLDEN_LINES)


async def test_a_page_s_events_travel_byte_for_byte() -> None:
    house = House()
    with anyio.fail_after(5):
        mine, theirs = house.connected()
        async with mine, theirs:
            params = EventsAfter(session_id=SessionId("s_1"))
            page = await call(mine, "sessions.events", params, EventsPage, deadline_s=5)
    assert [bytes(line) for line in page.lines] == [bytes(sample(msgspec.Raw))]
    assert page.events == (decode_event(bytes(sample(msgspec.Raw))),)


def test_why_a_view_ended_travels_as_any_error_does() -> None:
    ended = ViewEnded(view_id=ViewId("v_1"), error=to_wire(SessionNotFound("s_1")))
    back = msgspec.json.decode(msgspec.json.encode(ended), type=NOTIFICATIONS["view.ended"].params)
    assert isinstance(back, ViewEnded) and back.error is not None
    assert isinstance(from_wire(back.error), SessionNotFound)
    assert msgspec.json.encode(ViewEnded(view_id=ViewId("v_1"))) == b'{"view_id":"v_1"}'


def test_a_handshake_needs_no_more_than_who_and_which_version() -> None:
    said = b'{"protocol_version":1,"host":{"id":"h","name":"terminal","version":"0.1"}}'
    host = HostInfo(id="h", name="terminal", version="0.1")
    assert msgspec.json.decode(said, type=Initialize) == Initialize(protocol_version=1, host=host)
    answer = Initialized(protocol_version=1, hub=HubInfo(version="0.1", pid=12))
    assert msgspec.json.encode(answer) == b'{"protocol_version":1,"hub":{"version":"0.1","pid":12}}'


async def test_every_call_is_admitted_by_name_before_it_is_made() -> None:
    house = House()
    first, second = memory_pair()
    seen: list[str] = []

    def admit(name: str, params: msgspec.Struct) -> msgspec.Struct:
        seen.append(name)
        if name == "sessions.interrupt":
            raise UsageError("not now")
        return SessionRef(session_id=SessionId("another")) if isinstance(params, SessionRef) else params

    handler = dispatch(cast(HubApi, house), cast(Connection, house), admit)
    with anyio.fail_after(5):
        async with Peer(first, unasked) as asking, Peer(second, handler):
            await call(asking, "queue.list", SessionRef(session_id=SessionId("one")), QueueState, deadline_s=5)
            with pytest.raises(UsageError, match="not now"):
                await call(asking, "sessions.interrupt", SessionRef(session_id=SessionId("one")), Nothing, deadline_s=5)
    assert house.asked == [("queue.list", SessionRef(session_id=SessionId("another")))]
    assert seen == ["queue.list", "sessions.interrupt"]
