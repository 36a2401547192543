"""A connection to the hub: who may ask what, and what becomes of its views."""

import os
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from gateway.ledger import CREATE, S, delta, note, send
from gateway.premises import HOST, MakePair, guest, premises

from enginehouse_hosts.gateway.connection import HOST_ID_CHARACTERS
from enginehouse_protocol.codec import decode_event
from enginehouse_protocol.errors import (
    ConnectionLost,
    EnginehouseError,
    SessionNotFound,
    TranscriptUnavailable,
    UsageError,
)
from enginehouse_protocol.events import Event, LiveState, MessageDelta
from enginehouse_protocol.hub import (
    AnswerPermission,
    AnswerQuestion,
    Attach,
    Nothing,
    PendingRequests,
    Receipt,
    ResumeQueue,
    SessionInfo,
)
from enginehouse_protocol.ids import QuestionId, RequestId, SessionId
from enginehouse_protocol.methods import HostInfo, HubEnding, HubInfo, Initialize, Initialized, ViewId, call
from enginehouse_protocol.permissions import Answer, Deny
from enginehouse_protocol.rpc import from_wire
from enginehouse_protocol.testing import Gate

pytestmark = pytest.mark.anyio
LATE = 3600.0
"""A pause no test lives to see the end of."""


def seqs(lines: list[bytes]) -> list[int]:
    return [event.seq for event in map(decode_event, lines) if isinstance(event, Event)]


async def settle() -> None:
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


# --- who is there -------------------------------------------------------------------------------------------------


async def test_a_host_that_says_who_it_is_hears_who_answers(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, guest(place, known=False) as one:
        answer = await one.initialize()
    assert answer == Initialized(protocol_version=1, hub=HubInfo(version="0.1", pid=os.getpid()))


async def test_nothing_is_answered_before_initialize() -> None:
    async with premises() as place, guest(place, known=False) as one:
        with pytest.raises(UsageError, match=r"sessions\.send came before `initialize`"):
            await call(one.peer, "sessions.send", send(), Receipt, deadline_s=5)
        with pytest.raises(UsageError, match="before `initialize`"):
            await one.attach(S)
        assert place.hub.asked == []
        await one.initialize()
        await call(one.peer, "sessions.send", send(), Receipt, deadline_s=5)


async def test_initialize_counts_once() -> None:
    async with premises() as place, guest(place) as one:
        with pytest.raises(UsageError, match="initialized already, as host 'h_1'"):
            await one.initialize(HostInfo(id="somebody else", name="", version=""))
        await call(one.peer, "sessions.create", CREATE, SessionInfo, deadline_s=5)
        assert place.hub.of("create")[0].host == "h_1"


@pytest.mark.parametrize("version", [0, 2, 99])
async def test_without_a_common_version_nobody_is_let_in(version: int) -> None:
    async with premises() as place, guest(place, known=False) as one:
        with pytest.raises(UsageError, match=rf"no common protocol version: the host speaks {version}, .* speaks 1"):
            hello = Initialize(protocol_version=version, host=HOST)
            await call(one.peer, "initialize", hello, Initialized, deadline_s=5)
        with pytest.raises(UsageError, match="before `initialize`"):
            await call(one.peer, "sessions.send", send(), Receipt, deadline_s=5)


@pytest.mark.parametrize("name", ["", "x" * (HOST_ID_CHARACTERS + 1)])
async def test_a_host_has_a_name_that_can_be_written_down(name: str) -> None:
    async with premises() as place, guest(place, known=False) as one:
        with pytest.raises(UsageError, match="1 to 200 characters"):
            await one.initialize(HostInfo(id=name, name="", version=""))


async def test_a_host_cannot_act_in_another_s_name() -> None:
    answer = Answer(request_id=RequestId("p"), digest="d", decision=Deny(reason="no"))
    asked: list[tuple[str, Any, type[msgspec.Struct]]] = [
        ("sessions.create", msgspec.structs.replace(CREATE, host="root"), SessionInfo),
        ("sessions.send", msgspec.structs.replace(send(), host="root"), Receipt),
        ("queue.resume", ResumeQueue(session_id=S, host="root"), Nothing),
        ("permissions.answer", AnswerPermission(session_id=S, answer=answer, host="root"), Nothing),
        (
            "questions.answer",
            AnswerQuestion(session_id=S, question_id=QuestionId("q"), answers=None, host="root"),
            Nothing,
        ),
    ]
    async with premises() as place, guest(place) as one:
        for name, params, result in asked:
            await call(one.peer, name, params, result, deadline_s=5)
        assert [params.host for _, params in place.hub.asked] == ["h_1"] * 5
        assert [msgspec.structs.replace(params, host="root") for _, params in place.hub.asked] == [
            p for _, p, _ in asked
        ]


@pytest.mark.parametrize("host_can", [True, False])
@pytest.mark.parametrize("view_can", [True, False])
async def test_a_view_can_answer_where_its_host_can(*, host_can: bool, view_can: bool) -> None:
    async with premises() as place, guest(place, can_answer=host_can) as one:
        await one.attach(S, 7, can_answer=view_can)
        assert place.hub.attached == [Attach(session_id=S, after=7, can_answer=host_can and view_can)]


# --- views --------------------------------------------------------------------------------------------------------


async def test_a_view_gets_what_it_missed_the_present_and_what_happens_byte_for_byte(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, guest(place) as one:
        ledger = place.hub.ledger()
        ledger.happens(note(1), note(2), delta(1))
        view = await one.attach(S, 1)
        await one.until(lambda: len(one.lines(view)) == 2)
        ledger.happens(delta(2), note(3))
        await one.until(lambda: len(one.lines(view)) == 4)
        state = decode_event(one.lines(view)[1]).body
        assert isinstance(state, LiveState) and (state.seq, state.messages[0].text) == (2, "1 ")
        assert [one.lines(view)[place] for place in (0, 2, 3)] == [ledger.entries[place].line for place in (1, 3, 4)]


async def test_what_refuses_a_view_answers_the_request_and_leaves_nothing_behind() -> None:
    async with premises() as place, guest(place) as one:
        with pytest.raises(SessionNotFound) as found:
            await one.attach(SessionId("s_nowhere"))
        assert found.value.session_id == "s_nowhere"
        place.hub.refuses["attach"] = RuntimeError("a mistake")
        with pytest.raises(EnginehouseError, match="something went wrong inside") as internal:
            await one.attach(S)
        assert internal.value.code == "internal"
        place.hub.refuses.clear()
        await one.attach(S)
        await place.hub.until_views(1)
    assert place.hub.views == 0


async def test_a_view_that_ends_by_itself_says_so_after_its_last_event() -> None:
    async with premises() as place, guest(place) as one:
        view = await one.attach(S)
        place.hub.ledger().happens(note(1))
        place.hub.ledger().closed = True
        place.hub.ledger().tell()
        await one.until(lambda: "view.ended" in one.names())
        assert one.names()[-1] == "view.ended" and seqs(one.lines(view)) == [1]
        assert [(ended.view_id, ended.error) for ended in one.ended()] == [(view, None)]
        await place.hub.until_views(0)
        await one.detach(view)  # crossing its end is no mistake


@pytest.mark.parametrize("problem", [TranscriptUnavailable("the disk is gone"), RuntimeError("a mistake")])
async def test_a_view_that_breaks_says_why_and_the_connection_goes_on(problem: Exception) -> None:
    async with premises() as place, guest(place) as one:
        broken, other = await one.attach(S), await one.attach(SessionId(place.hub.ledger(SessionId("s_2")).session_id))
        place.hub.ledger().breaks = problem
        place.hub.ledger().tell()
        await one.until(lambda: "view.ended" in one.names())
        (ended,) = one.ended()
        assert ended.view_id == broken and ended.error is not None
        raised = from_wire(ended.error)
        if isinstance(problem, TranscriptUnavailable):
            assert isinstance(raised, TranscriptUnavailable) and str(raised) == "the disk is gone"
        else:
            assert raised.code == "internal" and "mistake" not in str(raised)
        place.hub.ledger(SessionId("s_2")).happens(note(1))
        await one.until(lambda: seqs(one.lines(other)) == [1])


async def test_after_detaching_nothing_comes_and_before_it_everything_came(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, guest(place) as one:
        for _ in range(20):
            view = await one.attach(S, place.hub.ledger().last_seq)
            place.hub.ledger().happens(note(0), delta(0))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.detach, view)
                place.hub.ledger().happens(note(1))
            heard = len(one.heard)
            place.hub.ledger().happens(note(2))
            await settle()
            await call(one.peer, "permissions.pending", Nothing(), PendingRequests, deadline_s=5)
            assert len(one.heard) == heard and place.hub.views == 0
        assert "view.ended" not in one.names()


async def test_a_batch_that_waits_for_room_when_its_view_is_detached_still_comes_before_the_answer() -> None:
    """The host reads nothing at first, so the pump stands in the middle of a batch it has taken."""
    async with premises() as place:
        ledger = place.hub.ledger()
        stream = await place.dial()
        script = [
            Initialize(protocol_version=1, host=HOST),
            Attach(session_id=S),
        ]
        for number, (name, params) in enumerate(zip(("initialize", "sessions.attach"), script, strict=True)):
            line = {"jsonrpc": "2.0", "id": number, "method": name, "params": msgspec.to_builtins(params)}
            await stream.send(msgspec.json.encode(line) + b"\n")
        await place.hub.until_views(1)
        ledger.happens(*(note(0) for _ in range(40_000)))  # several times what an outbox holds
        await settle()
        await stream.send(b'{"jsonrpc":"2.0","id":9,"method":"sessions.detach","params":{"view_id":"v1"}}\n')
        await settle()
        data = b""
        while b'"id":9' not in data:
            data += await stream.receive()
        *before, answer, _ = data.split(b"\n")
        events = [line for line in before if b"view.events" in line]
        shown = [line for batch in events for line in msgspec.json.decode(batch)["params"]["lines"] if "seq" in line]
        assert [line["seq"] for line in shown] == list(range(1, ledger.shown + 1))
        assert msgspec.json.decode(answer) == {"jsonrpc": "2.0", "id": 9, "result": {}}
        assert place.hub.views == 0
        await stream.aclose()
        await place.until_connections(0)


async def test_detaching_is_answered_once_the_hub_s_view_is_left() -> None:
    async with premises() as place, guest(place) as one:
        view = await one.attach(S)
        gate = place.hub.while_leaving = Gate()
        detached = False

        async def detach() -> None:
            nonlocal detached
            await one.detach(view)
            detached = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(detach)
            await gate.reached()
            await settle()
            assert not detached
            gate.open()
        assert place.hub.views == 0


async def test_detaching_a_view_that_is_not_there_is_done_already() -> None:
    async with premises() as place, guest(place) as one:
        await one.detach(ViewId("v77"))


async def test_a_host_that_reads_nothing_slows_nobody_else() -> None:
    async with premises() as place, guest(place) as quick:
        deaf = await place.dial()
        hello = b'{"protocol_version":1,"host":{"id":"deaf","name":"","version":""}}'
        await deaf.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":%s}\n' % hello)
        await deaf.send(
            b'{"jsonrpc":"2.0","id":2,"method":"sessions.attach","params":{"session_id":"%s"}}\n' % S.encode()
        )
        await place.hub.until_views(1)
        view = await quick.attach(S)
        for start in range(0, 20_000, 1_000):
            place.hub.ledger().happens(*(note(number) for number in range(start, start + 1_000)))
            await quick.until(lambda: len(seqs_of(quick.lines(view))) >= start + 1_000)  # noqa: B023
        assert place.hub.views == 2
        await deaf.aclose()
        await place.hub.until_views(1)


def seqs_of(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if b'"seq"' in line]


async def test_two_connections_have_views_of_their_own() -> None:
    async with premises() as place, guest(place) as one, guest(place) as two:
        first, second = await one.attach(S), await two.attach(S)
        place.hub.ledger().happens(note(1))
        await one.until(lambda: seqs(one.lines(first)) == [1])
        await two.until(lambda: seqs(two.lines(second)) == [1])
        await one.detach(first)
        place.hub.ledger().happens(note(2))
        await two.until(lambda: seqs(two.lines(second)) == [1, 2])
        assert seqs(one.lines(first)) == [1]


# --- gathering ----------------------------------------------------------------------------------------------------


async def test_pieces_that_come_one_by_one_travel_together() -> None:
    async with premises(gather_s=0.1) as place, guest(place) as one:
        view = await one.attach(S)
        await one.until(lambda: len(one.lines(view)) == 1)
        for number in range(1_000):
            place.hub.ledger().happens(delta(number))
            await anyio.lowlevel.checkpoint()
        await one.until(lambda: len(one.lines(view)) == 1_001)
        texts = [
            event.body.text for event in map(decode_event, one.lines(view)) if isinstance(event.body, MessageDelta)
        ]
        assert texts == [f"{number} " for number in range(1_000)]
        assert one.names().count("view.events") < 100


async def test_durable_events_make_nobody_wait() -> None:
    async with premises(gather_s=LATE) as place, guest(place) as one:
        place.hub.ledger().happens(note(1), note(2))
        view = await one.attach(S)  # a live.state comes now, and after it the pause
        await one.until(lambda: len(one.lines(view)) == 3)
        assert seqs(one.lines(view)) == [1, 2]

    async with premises(gather_s=LATE) as place, guest(place) as one:
        place.hub.ledger().live_state = lambda: place.hub.ledger()._stamped(note(1))  # begins with a durable one
        view = await one.attach(S)
        for number in range(1, 20):
            place.hub.ledger().happens(note(number))
            await one.until(lambda: len(seqs(one.lines(view))) == number)  # noqa: B023


async def test_a_view_can_be_left_while_its_pieces_gather() -> None:
    async with premises(gather_s=LATE) as place, guest(place) as one:
        view = await one.attach(S)
        await one.until(lambda: len(one.lines(view)) == 1)
        place.hub.ledger().happens(delta(1))
        await one.detach(view)
        assert len(one.lines(view)) == 1 and place.hub.views == 0


# --- ends ---------------------------------------------------------------------------------------------------------


async def test_a_hub_that_is_told_to_end_says_so_and_leaves_its_views(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, guest(place) as one:
        await one.attach(S)
        place.end()
        await one.peer.ended()
        assert one.names()[-1] == "hub.ending"
        assert msgspec.json.decode(one.heard[-1][1], type=HubEnding).reason == "the hub was told to end"
        await place.until_connections(0)
        assert place.hub.views == 0


async def test_a_host_that_reads_nothing_does_not_keep_the_hub_from_ending() -> None:
    async with premises() as place:
        deaf = await place.dial()
        hello = b'{"protocol_version":1,"host":{"id":"deaf","name":"","version":""}}'
        await deaf.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":%s}\n' % hello)
        await deaf.send(
            b'{"jsonrpc":"2.0","id":2,"method":"sessions.attach","params":{"session_id":"%s"}}\n' % S.encode()
        )
        await place.hub.until_views(1)
        place.hub.ledger().happens(*(note(0) for _ in range(40_000)))
        await settle()
        place.end()
        await place.until_connections(0)
        assert place.hub.views == 0
        await deaf.aclose()


async def test_a_request_under_way_when_the_hub_ends_is_cut_off() -> None:
    async with premises() as place, guest(place) as one:
        gate = place.hub.before["send"] = Gate()
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises((ConnectionLost, EnginehouseError)):
                    await call(one.peer, "sessions.send", send(), Receipt, deadline_s=5)

            tasks.start_soon(ask)
            await gate.reached()
            place.end()
        await place.until_connections(0)
        assert place.hub.ledger().entries == []


@pytest.mark.parametrize("verb", ["attach", "send"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_connection_that_dies_in_the_middle_leaves_nothing_behind(
    verb: str, moment: str, make_pair: MakePair
) -> None:
    async with premises(make_pair) as place, guest(place) as one:
        await one.attach(S)
        gate = Gate()
        getattr(place.hub, moment)[verb] = gate

        async def ask() -> None:
            with pytest.raises(ConnectionLost):
                if verb == "attach":
                    await one.attach(S)
                else:
                    await call(one.peer, "sessions.send", send(), Receipt, deadline_s=5)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await gate.reached()
            await place.kill()
        assert place.hub.views == 0


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_attach_that_is_called_off_leaves_nothing_behind(moment: str) -> None:
    async with premises() as place, guest(place) as one:
        gate = Gate()
        getattr(place.hub, moment)["attach"] = gate
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.attach, S)
            await gate.reached()
            tasks.cancel_scope.cancel()
        await call(one.peer, "permissions.pending", Nothing(), PendingRequests, deadline_s=5)
        await place.hub.until_views(0)
        view = await one.attach(S)
        await place.hub.until_views(1)
        assert {msgspec.json.decode(raw)["view_id"] for name, raw in one.heard if name == "view.events"} <= {view}


async def test_a_connection_that_dies_while_a_view_is_being_left_is_let_go() -> None:
    async with premises() as place, guest(place) as one:
        view = await one.attach(S)
        gate = place.hub.while_leaving = Gate()

        async def detach() -> None:
            with pytest.raises(ConnectionLost):
                await one.detach(view)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(detach)
            await gate.reached()
            place.hub.while_leaving = None
            await place.kill()


async def test_nonsense_ends_nobody_else_s_connection() -> None:
    async with premises() as place, guest(place) as one:
        other = await place.dial()
        await other.send(b'not json\n{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"host":7}}\n')
        await other.send(b'{"jsonrpc":"2.0","id":2,"method":"sessions.dance","params":[]}\n')
        data = b""
        while data.count(b"\n") < 3:
            data += await other.receive()
        assert [msgspec.json.decode(line)["error"]["code"] for line in data.splitlines()] == [-32700, -32602, -32601]
        await other.aclose()
        await place.until_connections(1)
        await call(one.peer, "sessions.send", send(), Receipt, deadline_s=5)


async def test_serving_raises_nothing_when_the_stream_is_broken_from_the_start() -> None:
    async with premises() as place:
        stream = await place.dial()
        await stream.aclose()
        await place.until_connections(0)
