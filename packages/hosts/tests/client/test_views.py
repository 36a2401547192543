"""A view goes on, whatever becomes of the connection, the hub and the one who listens."""

import random
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from client.ear import Ear, listening
from gateway.ledger import LedgerHub, S, delta, note, send
from gateway.premises import HOST, MakePair, Premises, in_memory, premises

from enginehouse_hosts.client import RemoteHub
from enginehouse_hosts.client.link import DEATHS
from enginehouse_hosts.client.remote_view import WAITING_BYTES, WAITING_ENTRIES
from enginehouse_protocol.errors import (
    ConnectionLost,
    MalformedData,
    ServiceUnavailable,
    SessionNotFound,
    TranscriptUnavailable,
)
from enginehouse_protocol.events import AnyBody, Notice, Unknown
from enginehouse_protocol.hub import Attach, ListSessions
from enginehouse_protocol.ids import SessionId
from enginehouse_protocol.methods import ViewEvents, ViewId
from enginehouse_protocol.rpc import Peer
from enginehouse_protocol.testing import Gate

pytestmark = pytest.mark.anyio
S2 = SessionId("s_0000000000000000000000000b")


def remote(place: Premises[LedgerHub]) -> RemoteHub:
    return RemoteHub(place.dial, HOST, can_answer=True)


async def settle() -> None:
    for _ in range(200):
        await anyio.lowlevel.checkpoint()


def upto(last: int) -> list[int]:
    return list(range(1, last + 1))


# --- ordinary days ------------------------------------------------------------------------------------------------


async def test_a_view_shows_what_was_missed_the_present_and_what_happens(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, remote(place) as hub:
        ledger = place.hub.ledger()
        ledger.happens(note(1), delta(1), note(2))
        async with listening(hub, S, 1) as ear:
            await ear.until(lambda: bool(ear.states))
            ledger.happens(delta(2), note(3))
            await ear.until_seq(3)
        assert ear.seqs == [2, 3] and ear.texts == ["2 "]
        assert [each.line for each in ear.deliveries if each.event.body != ear.states[0]] == [
            ledger.entries[number].line for number in (2, 3, 4)
        ]
        assert ear.deliveries[-1] == ledger.entries[-1]


async def test_what_refuses_a_view_is_raised_on_entering() -> None:
    async with premises() as place, remote(place) as hub:
        with pytest.raises(SessionNotFound):
            async with hub.sessions_attach(Attach(session_id=SessionId("s_nowhere"))):
                raise AssertionError
        await hub.sessions_list(ListSessions())


async def test_a_view_ends_when_the_hub_says_so_after_everything_was_delivered() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S) as ear:
        place.hub.ledger().happens(note(1))
        place.hub.ledger().closed = True
        place.hub.ledger().tell()
        await ear.until_over()
        assert (ear.seqs, ear.error) == ([1], None)


async def test_a_view_raises_what_broke_it_after_everything_was_delivered() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S) as ear:
        place.hub.ledger().happens(note(1))
        place.hub.ledger().breaks = TranscriptUnavailable("the disk is gone")
        place.hub.ledger().tell()
        await ear.until_over()
        assert ear.seqs == [1] and isinstance(ear.error, TranscriptUnavailable)


async def test_leaving_a_view_detaches_it_also_when_it_is_called_off_or_fails(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, remote(place) as hub:
        async with listening(hub, S):
            await place.hub.until_views(1)
        assert place.hub.views == 0
        with pytest.raises(ValueError, match="mine"):
            async with hub.sessions_attach(Attach(session_id=S)):
                raise ValueError("mine")
        assert place.hub.views == 0
        with anyio.CancelScope() as scope:
            async with hub.sessions_attach(Attach(session_id=S)):
                scope.cancel()
                await anyio.sleep_forever()
        assert place.hub.views == 0


async def test_leaving_a_view_does_not_wait_for_a_hub_that_does_not_answer() -> None:
    async with premises() as place, remote(place) as hub:
        gate = Gate()
        async with hub.sessions_attach(Attach(session_id=S)):
            place.hub.while_leaving = gate
        place.hub.while_leaving = None
        gate.open()
        await place.hub.until_views(0)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_view_that_is_called_off_while_it_is_attached_leaves_nothing_in_the_hub(moment: str) -> None:
    async with premises() as place, remote(place) as hub:
        gate = Gate()
        getattr(place.hub, moment)["attach"] = gate

        async def attach() -> None:
            async with hub.sessions_attach(Attach(session_id=S)):
                raise AssertionError

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attach)
            await gate.reached()
            tasks.cancel_scope.cancel()
        gate.open()
        await hub.sessions_list(ListSessions())
        await place.hub.until_views(0)


async def test_a_view_nobody_has_any_more_is_given_back() -> None:
    """The answer to an attach crossed its calling off: the hub has a view this side knows nothing of."""
    asked: list[tuple[str, Any]] = []

    async def answer(method: str, params: msgspec.Raw) -> bytes:
        asked.append((method, msgspec.json.decode(params)))
        return b'{"protocol_version":1,"hub":{"version":"0.1","pid":12}}' if method == "initialize" else b"{}"

    ours, theirs = await in_memory()

    async def dial() -> Any:
        return ours

    with anyio.fail_after(5):
        async with Peer(theirs, answer) as peer, RemoteHub(dial, HOST):
            for _ in range(3):
                await peer.notify("view.events", ViewEvents(view_id=ViewId("v9"), lines=()))
            while len(asked) < 2:
                await anyio.lowlevel.checkpoint()
            await settle()
    assert [method for method, _ in asked] == ["initialize", "sessions.detach"]
    assert asked[1][1] == {"view_id": "v9"}


# --- a hub that dies ----------------------------------------------------------------------------------------------


async def test_a_view_goes_on_after_a_death_with_what_it_missed(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, remote(place) as hub, listening(hub, S) as ear:
        ledger = place.hub.ledger()
        ledger.happens(note(1), note(2))
        await ear.until_seq(2)
        await place.kill()
        ledger.happens(note(3))
        await ear.until_seq(3)
        ledger.happens(note(4))
        await ear.until_seq(4)
        assert ear.seqs == upto(4)
        assert [attach.after for attach in place.hub.attached] == [0, 2]
        assert len(ear.states) == 2 and ear.states[1].seq >= 2


async def test_a_view_is_attached_again_though_nobody_asks_for_its_next_batch() -> None:
    """Else the hub would think that nobody is there to be asked."""
    attach = Attach(session_id=S, can_answer=True)
    async with premises() as place, remote(place) as hub, hub.sessions_attach(attach):
        await place.kill()
        await place.hub.until_views(1)
        assert place.hub.attached == [attach, attach]


async def test_what_was_received_and_not_delivered_when_the_hub_died_is_delivered_once() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S) as ear:
        ledger = place.hub.ledger()
        await ear.until(lambda: bool(ear.states))
        busy = ear.busy = Gate()
        ledger.happens(note(1))
        await busy.reached()
        ledger.happens(note(2))
        await settle()
        again = place.hub.before["attach"] = Gate()
        await place.kill()
        await again.reached()  # asked to be attached after what it delivered, and not yet answered
        busy.open()
        await ear.until_seq(2)
        ledger.happens(note(3))
        again.open()
        await ear.until_seq(3)
        assert ear.seqs == upto(3)
        assert place.hub.attached[1].after == 1


async def test_views_are_attached_again_before_anything_else_is_asked_again() -> None:
    """Who sends a message must find its view attached, or its questions find nobody to answer."""
    asked: list[str] = []
    connections: list[Any] = []

    async def answer(method: str, params: msgspec.Raw) -> bytes:
        asked.append(method)
        if method == "initialize":
            return b'{"protocol_version":1,"hub":{"version":"0.1","pid":12}}'
        if method == "sessions.attach":
            return b'{"view_id":"v1"}'
        if len(asked) == 6:
            done.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def dial() -> Any:
        ours, theirs = await in_memory()
        connections.append(theirs)
        tasks.start_soon(serve, theirs)
        return ours

    async def serve(stream: Any) -> None:
        async with Peer(stream, answer) as peer:
            await peer.ended()

    done = anyio.Event()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks, RemoteHub(dial, HOST) as hub, listening(hub, S):
            tasks.start_soon(hub.sessions_send, send())
            while len(asked) < 3:
                await anyio.lowlevel.checkpoint()
            await connections[0].send_eof()
            await done.wait()
            tasks.cancel_scope.cancel()
    assert asked == ["initialize", "sessions.attach", "sessions.send"] * 2


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_death_in_the_middle_of_attaching_is_attached_again(moment: str) -> None:
    ear = Ear()
    async with premises() as place, remote(place) as hub, anyio.create_task_group() as tasks:
        gate = Gate()
        getattr(place.hub, moment)["attach"] = gate
        place.hub.ledger().happens(note(1))

        async def attach() -> None:
            async with hub.sessions_attach(Attach(session_id=S)) as view:
                await ear.listen(view)

        tasks.start_soon(attach)
        await gate.reached()
        await place.kill()
        await ear.until_seq(1)
        tasks.cancel_scope.cancel()
    assert ear.seqs == [1]


@pytest.mark.parametrize("seed", range(6))
async def test_deaths_at_random_moments_lose_nothing_and_repeat_nothing(seed: int, make_pair: MakePair) -> None:
    """Four deaths, the most a minute may have, under a stream of both kinds of events and two views."""
    chance = random.Random(seed)
    async with premises(make_pair) as place, remote(place) as hub:
        ledger = place.hub.ledger()
        async with listening(hub, S) as one, listening(hub, S) as two:
            deaths = sorted(chance.sample(range(100), DEATHS - 1))
            for number in range(100):
                happening: list[AnyBody] = [chance.choice((note, delta))(number) for _ in range(chance.randint(1, 40))]
                ledger.happens(*happening)
                for _ in range(chance.randint(0, 30)):
                    await anyio.lowlevel.checkpoint()
                if number in deaths:
                    await place.kill()
            ledger.happens(note(0))
            for ear in (one, two):
                await ear.until_seq(ledger.last_seq)
                assert ear.seqs == upto(ledger.last_seq)
                assert ear.states and ear.error is None


async def test_a_live_state_follows_the_missed_events_before_anything_passing() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S) as ear:
        ledger = place.hub.ledger()
        ledger.happens(delta(1))
        await ear.until(lambda: ear.texts == ["1 "])
        await place.kill()
        ledger.happens(delta(2), note(1))
        await ear.until(lambda: len(ear.states) == 2)
        ledger.happens(delta(3))
        await ear.until(lambda: "3 " in ear.texts)
        assert ear.states[1].messages[0].text.startswith("1 2 ")
        assert ear.texts == ["1 ", "3 "]


async def test_a_session_that_was_deleted_meanwhile_is_said_to_be_gone() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S) as ear:
        await ear.until(lambda: bool(ear.states))
        del place.hub.ledgers[S]
        await place.kill()
        await ear.until_over()
        assert isinstance(ear.error, SessionNotFound)


async def test_a_record_that_lost_its_end_with_a_disk_is_followed_from_where_it_is() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S) as ear:
        ledger = place.hub.ledger()
        ledger.happens(note(1), note(2), note(3))
        await ear.until_seq(3)
        ledger.cut_back(1)
        await place.kill()
        await ear.until(lambda: len(ear.states) == 2)
        ledger.happens(Notice(level="info", code="test", text="another two"))
        await ear.until(lambda: len(ear.seqs) == 4)
        assert ear.seqs == [1, 2, 3, 2]
        await place.kill()
        await ear.until(lambda: len(ear.states) == 3)
        assert place.hub.attached[-1].after == 2 and ear.seqs == [1, 2, 3, 2]


async def test_events_a_caller_knew_of_that_were_taken_back_hide_none_of_the_new_ones() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S, 5) as ear:
        await ear.until(lambda: bool(ear.states))
        place.hub.ledger().happens(note(1), note(2))
        await ear.until_seq(2)
        assert ear.seqs == [1, 2]


# --- the end of trying --------------------------------------------------------------------------------------------


async def test_a_view_of_a_hub_that_keeps_dying_says_so() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S) as ear:
        for count in range(1, DEATHS + 1):
            await place.until_dials(count)
            await place.hub.until_views(1)
            place.hub.ledger().happens(note(count))
            if count < DEATHS:
                await ear.until_seq(count)
            await place.kill()
        await ear.until_over()
        assert isinstance(ear.error, ServiceUnavailable) and "lost 5 times within 60 s" in str(ear.error)
        assert ear.seqs[: DEATHS - 1] == upto(DEATHS - 1)


async def test_a_view_of_a_hub_that_was_told_to_end_says_so_after_everything_was_delivered(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, remote(place) as hub, listening(hub, S) as ear:
        place.hub.ledger().happens(note(1))
        await ear.until_seq(1)
        busy = ear.busy = Gate()
        place.hub.ledger().happens(note(2))
        await busy.reached()
        place.hub.ledger().happens(note(3))
        await settle()
        place.end()
        await place.until_connections(0)
        busy.open()
        await ear.until_over()
        assert ear.seqs == upto(3)
        assert isinstance(ear.error, ConnectionLost) and ear.error.reason == "the hub was told to end"
    assert place.dials == 1


async def test_a_view_hears_when_its_hub_is_left() -> None:
    async with premises() as place:
        hub = remote(place)
        async with hub:
            view = hub.sessions_attach(Attach(session_id=S))
            entered = await view.__aenter__()
        batches: AsyncIterator[Any] = entered.batches()
        with pytest.raises(ConnectionLost, match="closed here"):
            async for _ in batches:
                pass
        await view.__aexit__(None, None, None)


# --- a slow consumer ----------------------------------------------------------------------------------------------


async def overflow(place: Premises[LedgerHub], session_id: SessionId, *, body: AnyBody | None = None) -> int:
    """Let more happen than waits for anybody; returns the last seq."""
    ledger = place.hub.ledger(session_id)
    for number in range(3 * WAITING_ENTRIES // 1_000):
        ledger.happens(*((body or note(number)) for _ in range(1_000)))
        await settle()
    return ledger.last_seq


async def test_a_consumer_that_is_too_slow_is_detached_and_goes_on_where_it_was(make_pair: MakePair) -> None:
    place_of = premises(make_pair)
    async with place_of as place, remote(place) as hub:
        place.hub.ledger(S2)
        async with listening(hub, S) as slow, listening(hub, S) as quick, listening(hub, S2) as other:
            await other.until(lambda: bool(other.states))
            await slow.until(lambda: bool(slow.states))
            busy = slow.busy = Gate()
            place.hub.ledger().happens(note(1))
            await busy.reached()
            last = await overflow(place, S)
            await quick.until_seq(last)  # the others are as quick as ever
            await place.hub.until_views(2)  # and the hub does nothing for the slow one
            place.hub.ledger(S2).happens(note(1))
            await other.until_seq(1)
            assert (quick.seqs, other.seqs, len(place.hub.attached)) == (upto(last), [1], 3)
            busy.open()
            await slow.until_seq(last)
            assert slow.seqs == upto(last)
            await slow.until(lambda: len(slow.states) == 2)
            assert place.hub.attached[3].after == 1
            place.hub.ledger().happens(note(0))
            await slow.until_seq(last + 1)


async def test_what_waits_for_a_slow_consumer_is_bounded_in_bytes() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S) as slow:
        busy = slow.busy = Gate()
        place.hub.ledger().happens(note(1))
        await busy.reached()
        body = Notice(level="info", code="test", text="x" * 500_000)
        for _ in range(2 * WAITING_BYTES // 500_000):
            place.hub.ledger().happens(body)
            await settle()
        await place.hub.until_views(0)
        busy.open()
        await slow.until_seq(place.hub.ledger().last_seq)
        assert slow.seqs == upto(place.hub.ledger().last_seq)


async def test_a_slow_consumer_of_a_hub_that_dies_goes_on_where_it_was() -> None:
    async with premises() as place, remote(place) as hub, listening(hub, S) as slow:
        busy = slow.busy = Gate()
        place.hub.ledger().happens(note(1))
        await busy.reached()
        last = await overflow(place, S)
        await place.hub.until_views(0)
        await place.kill()
        await place.until_dials(2)
        busy.open()
        await slow.until_seq(last)
        assert slow.seqs == upto(last)


async def test_a_consumer_that_never_comes_back_can_be_left() -> None:
    async with premises() as place, remote(place) as hub:
        async with hub.sessions_attach(Attach(session_id=S)):
            await overflow(place, S, body=delta(1))
            await place.hub.until_views(0)
        await hub.sessions_list(ListSessions())


# --- lines --------------------------------------------------------------------------------------------------------


async def test_lines_this_version_cannot_read_are_kept_as_the_transcript_keeps_them() -> None:
    lines = [
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":"from.the_future","x":[1]}}',
        b'{"session_id":"s","seq":2,"at_ms":1,"turn_id":null,"body":{"type":"notice","level":7}}',
    ]
    async with strange(b",".join(lines)) as (hub, _), listening(hub, S) as ear:
        await ear.until_seq(2)
        assert [delivery.line for delivery in ear.deliveries] == lines
        bodies = [delivery.event.body for delivery in ear.deliveries]
        assert [(type(body), body.reason) for body in bodies if isinstance(body, Unknown)] == [
            (Unknown, "unknown_tag"),
            (Unknown, "wrong_shape"),
        ]


async def test_a_line_that_is_no_event_breaks_the_view_and_nothing_else() -> None:
    async with strange(b'{"seq":"one"}') as (hub, _):
        async with listening(hub, S) as ear:
            await ear.until_over()
            assert isinstance(ear.error, MalformedData)
        await hub.sessions_list(ListSessions())


async def test_events_that_cannot_be_understood_end_the_connection_rather_than_be_skipped() -> None:
    async with strange(b"7", params=b'{"lines":[%s]}') as (hub, dials), listening(hub, S) as ear:
        await ear.until_over()
        assert isinstance(ear.error, ServiceUnavailable) and "could not be understood" in str(ear.error)
        assert len(dials) == DEATHS


class strange:  # noqa: N801 – reads as a function where it is used
    """A hub whose every view gets the same events, written by hand."""

    def __init__(self, lines: bytes, params: bytes = b'{"view_id":"v1","lines":[%s]}') -> None:
        self._params = params % lines
        self._dials: list[int] = []

    async def __aenter__(self) -> tuple[RemoteHub, list[int]]:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.cancel_scope.deadline = anyio.current_time() + 10
        self._hub = RemoteHub(self._dial, HOST)
        await self._hub.__aenter__()
        return self._hub, self._dials

    async def __aexit__(self, *_: object) -> None:
        await self._hub.__aexit__(None, None, None)
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def _dial(self) -> Any:
        self._dials.append(1)
        ours, theirs = await in_memory()
        self._tasks.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: Any) -> None:
        async def answer(method: str, params: msgspec.Raw) -> Any:
            match method:
                case "initialize":
                    return b'{"protocol_version":1,"hub":{"version":"0.1","pid":12}}'
                case "sessions.attach":
                    said.set()
                    return b'{"view_id":"v1"}'
                case "sessions.list":
                    return b'{"sessions":[]}'
                case _:
                    return b"{}"

        said = anyio.Event()
        async with Peer(stream, answer) as peer:
            await said.wait()
            await settle()
            await peer.notify("view.events", self._params)
            await peer.ended()
