"""What is asked of a hub that may die at any moment."""

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest
from gateway.ledger import CREATE, LedgerHub, S, send
from gateway.premises import HOST, MakePair, Premises, in_memory, premises

from enginehouse_hosts.client import RemoteHub
from enginehouse_hosts.client.link import DEATHS, DEATHS_WITHIN_S, Deaths
from enginehouse_hosts.client.remote_hub import START_S
from enginehouse_protocol.errors import (
    AccessRefused,
    ConnectionLost,
    EnginehouseError,
    ServiceUnavailable,
    SessionNotFound,
    UsageError,
    VersionMismatch,
)
from enginehouse_protocol.hub import (
    Attach,
    EventsAfter,
    HubApi,
    ListSessions,
    Nothing,
    PendingQuestions,
    PendingRequests,
    SessionList,
    SessionRef,
    SetSession,
)
from enginehouse_protocol.ids import SessionId, is_id, new_message_id
from enginehouse_protocol.methods import HostInfo, HubEnding
from enginehouse_protocol.rpc import Peer
from enginehouse_protocol.testing import Gate

pytestmark = pytest.mark.anyio
ENDED = "the hub was told to end"


def remote(place: Premises[LedgerHub], *, hint: str = "") -> RemoteHub:
    return RemoteHub(place.dial, HOST, can_answer=True, hint=hint)


class Asking:
    """One call on its own task, and what came of it."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self._done = anyio.Event()

    async def ask(self, call: Callable[[Any], Any], params: Any) -> None:
        try:
            self.result = await call(params)
        except Exception as error:  # noqa: BLE001 a test looks at it
            self.error = error
        self._done.set()

    async def done(self) -> "Asking":
        await self._done.wait()
        return self


# --- ordinary days ------------------------------------------------------------------------------------------------


async def test_it_is_a_hub_and_answers_like_the_one_behind_it(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, remote(place) as hub:
        same: HubApi = hub
        created = await same.sessions_create(CREATE)
        receipt = await hub.sessions_send(send("hello", created.id))
        page = await hub.sessions_events(EventsAfter(session_id=created.id))
        listed = await hub.sessions_list(ListSessions())
        assert [event.seq for event in page.events] == [receipt.seq] == [1]
        assert [each.id for each in listed.sessions] == [S, created.id]
        assert await hub.permissions_pending(Nothing()) == PendingRequests(requests=())
        assert await hub.questions_pending(Nothing()) == PendingQuestions(questions=())
        with pytest.raises(SessionNotFound):
            await hub.sessions_interrupt(SessionRef(session_id=SessionId("s_nowhere")))
    assert place.dials == 1


async def test_what_makes_something_new_gets_its_id_here_unless_the_caller_made_one() -> None:
    async with premises() as place, remote(place) as hub:
        mine = SessionId("s_0000000000000000000000000b")
        message = new_message_id()
        await hub.sessions_create(msgspec.structs.replace(CREATE, session_id=mine))
        created = await hub.sessions_create(CREATE)
        await hub.sessions_send(send(message_id=message))
        await hub.sessions_send(send())
        first, second = place.hub.of("create")
        assert (first.session_id, second.session_id) == (mine, created.id) and is_id(created.id)
        assert place.hub.of("send")[0].message_id == message and is_id(place.hub.of("send")[1].message_id)


async def test_two_hosts_are_told_apart() -> None:
    async with premises() as place:
        other = HostInfo(id="h_2", name="another", version="0.1")
        async with remote(place) as one, RemoteHub(place.dial, other) as two:
            await one.sessions_send(send())
            await two.sessions_send(send())
            await two.sessions_send(msgspec.structs.replace(send(), host="h_1"))
        assert [params.host for params in place.hub.of("send")] == ["h_1", "h_2", "h_2"]


async def test_an_error_raised_inside_leaves_as_it_is() -> None:
    async with premises() as place:
        with pytest.raises(SessionNotFound):
            async with remote(place):
                raise SessionNotFound("s_1")
        await place.until_connections(0)


async def test_an_answer_that_does_not_come_in_time_is_an_error_with_that_code() -> None:
    async with premises() as place, remote(place) as hub:
        place.hub.before["list"] = Gate()
        with pytest.raises(EnginehouseError, match=r"no answer to sessions\.list within 0\.05 s") as late:
            await hub._ask("sessions.list", ListSessions(), SessionList, 0.05)
        assert late.value.code == "deadline"
        await hub.sessions_list(ListSessions())  # the connection is as good as before


def test_what_may_start_an_engine_has_time_for_that() -> None:
    assert START_S >= 60


# --- a hub that dies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_send_cut_off_by_a_death_is_sent_once(moment: str, make_pair: MakePair) -> None:
    async with premises(make_pair) as place, remote(place) as hub, anyio.create_task_group() as tasks:
        asking, gate = Asking(), Gate()
        getattr(place.hub, moment)["send"] = gate
        tasks.start_soon(asking.ask, hub.sessions_send, send())
        await gate.reached()
        assert len(place.hub.ledger().entries) == (1 if moment == "after" else 0)
        await place.kill()
        await asking.done()
        first, second = place.hub.of("send")
        assert first == second and asking.result.message_id == first.message_id
        assert len(place.hub.ledger().entries) == 1
    assert place.dials == 2


async def test_a_session_is_made_once_though_the_hub_died_before_it_said_so() -> None:
    async with premises() as place, remote(place) as hub, anyio.create_task_group() as tasks:
        asking, gate = Asking(), Gate()
        place.hub.after["create"] = gate
        tasks.start_soon(asking.ask, hub.sessions_create, CREATE)
        await gate.reached()
        await place.kill()
        await asking.done()
        assert set(place.hub.ledgers) == {S, asking.result.id}


async def test_what_a_dying_hub_deleted_is_deleted() -> None:
    async with premises() as place, remote(place) as hub, anyio.create_task_group() as tasks:
        asking, gate = Asking(), Gate()
        place.hub.after["delete"] = gate
        tasks.start_soon(asking.ask, hub.sessions_delete, SessionRef(session_id=S))
        await gate.reached()
        await place.kill()
        await asking.done()
        assert (asking.result, asking.error) == (Nothing(), None)
        with pytest.raises(SessionNotFound):  # asked once, that is an answer
            await hub.sessions_delete(SessionRef(session_id=S))


async def test_another_call_that_is_repeated_is_told_what_the_hub_says() -> None:
    async with premises() as place, remote(place) as hub, anyio.create_task_group() as tasks:
        asking, gate = Asking(), Gate()
        place.hub.before["set"] = gate
        tasks.start_soon(asking.ask, hub.sessions_set, SetSession(session_id=S, title="t"))
        await gate.reached()
        place.hub.refuses["set"] = SessionNotFound(S)
        await place.kill()
        await asking.done()
        assert isinstance(asking.error, SessionNotFound)


async def test_a_connection_lost_somewhere_behind_the_hub_is_the_hub_s_answer() -> None:
    async with premises() as place, remote(place) as hub:
        place.hub.refuses["send"] = ConnectionLost("the engine's, not ours")
        with pytest.raises(ConnectionLost, match="the engine's"):
            await hub.sessions_send(send())
        with pytest.raises(ConnectionLost, match="the engine's"):
            async with hub.sessions_attach(Attach(session_id=S)):
                place.hub.refuses["attach"] = ConnectionLost("the engine's, not ours")
                async with hub.sessions_attach(Attach(session_id=S)):
                    pass
    assert place.dials == 1


async def test_everybody_waits_for_the_one_who_reaches_the_hub_again() -> None:
    async with premises() as place, remote(place) as hub, anyio.create_task_group() as tasks:
        door = Gate()
        place.on_dial = door.passed
        await place.kill()
        await door.reached()
        asking = [Asking() for _ in range(20)]
        for each in asking:
            tasks.start_soon(each.ask, hub.sessions_list, ListSessions())
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert place.hub.asked == []
        place.on_dial = None
        door.open()
        for each in asking:
            assert (await each.done()).error is None
    assert place.dials == 2


async def test_a_death_is_noticed_while_nobody_asks_anything(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, remote(place):
        await place.kill()
        await place.until_dials(2)
        await place.until_connections(1)


async def test_a_hub_that_dies_before_it_answered_the_first_word_is_reached_again() -> None:
    async with premises() as place:
        died = 0

        async def die() -> None:
            nonlocal died
            if died < 2:
                died += 1
                await place.kill()

        place.on_dial = die
        async with remote(place) as hub:
            await hub.sessions_list(ListSessions())
    assert (died, place.dials) == (2, 3)


async def test_a_hub_that_ends_before_it_answered_the_first_word_is_reached_again() -> None:
    """Whoever comes wants a hub; only who was there when it ended does not start another."""
    async with premises() as place:

        async def end() -> None:
            place.on_dial = None
            place.end()

        place.on_dial = end
        async with remote(place) as hub:
            await hub.sessions_list(ListSessions())
    assert place.dials == 2


# --- the end of trying --------------------------------------------------------------------------------------------


async def test_after_five_deaths_in_a_minute_everybody_is_told_and_nobody_tries_again() -> None:
    async with premises() as place, remote(place, hint="see /var/log/hub.log") as hub:
        async with anyio.create_task_group() as tasks:
            asking = [Asking(), Asking()]
            for count in range(1, DEATHS + 1):
                await place.until_dials(count)
                gates = place.hub.before["send"], place.hub.before["list"] = Gate(), Gate()
                if count == 1:
                    tasks.start_soon(asking[0].ask, hub.sessions_send, send())
                    tasks.start_soon(asking[1].ask, hub.sessions_list, ListSessions())
                for gate in gates:
                    await gate.reached()
                await place.kill()
            for each in asking:
                await each.done()
                assert isinstance(each.error, ServiceUnavailable)
                assert "lost 5 times within 60 s" in str(each.error)
                assert str(each.error).endswith("see /var/log/hub.log")
        with pytest.raises(ServiceUnavailable, match="lost 5 times"):
            await hub.sessions_send(send())
        with pytest.raises(ServiceUnavailable, match="lost 5 times"):
            async with hub.sessions_attach(Attach(session_id=S)):
                pass
    assert place.dials == DEATHS
    assert place.hub.ledger().entries == []


async def test_a_hub_that_never_lives_long_enough_to_say_a_word_is_an_error_on_entering() -> None:
    async with premises() as place:
        place.on_dial = place.kill
        with pytest.raises(ServiceUnavailable, match="lost 5 times"):
            async with remote(place):
                raise AssertionError
    assert place.dials == DEATHS


def test_deaths_long_past_do_not_count() -> None:
    deaths = Deaths()
    assert not any(deaths.too_many(now_s) for now_s in (0, 15, 30, 45, DEATHS_WITHIN_S, 75, 90, 105))
    assert deaths.too_many(105.1)


async def test_a_hub_that_was_told_to_end_is_not_started_again(make_pair: MakePair) -> None:
    async with premises(make_pair) as place, remote(place) as hub:
        async with anyio.create_task_group() as tasks:
            asking, gate = Asking(), Gate()
            place.hub.before["send"] = gate
            tasks.start_soon(asking.ask, hub.sessions_send, send())
            await gate.reached()
            place.end()
            await asking.done()
            assert isinstance(asking.error, ConnectionLost) and asking.error.reason == ENDED
        with pytest.raises(ConnectionLost, match=ENDED):
            await hub.sessions_list(ListSessions())
        await place.until_connections(0)
    assert place.dials == 1


async def test_what_waits_for_a_hub_that_ends_slowly_is_not_kept_waiting() -> None:
    async def answer(method: str, params: msgspec.Raw) -> bytes:
        if method != "initialize":
            await anyio.sleep_forever()
        return b'{"protocol_version":1,"hub":{"version":"0.1","pid":12}}'

    ours, theirs = await in_memory()

    async def dial() -> Any:
        return ours

    with anyio.fail_after(5):
        async with Peer(theirs, answer) as peer, RemoteHub(dial, HOST) as hub, anyio.create_task_group() as tasks:
            asking = Asking()
            tasks.start_soon(asking.ask, hub.sessions_list, ListSessions())
            await peer.notify("hub.ending", HubEnding(reason=ENDED))
            await asking.done()
            assert isinstance(asking.error, ConnectionLost) and asking.error.reason == ENDED


FAILURES = [
    ServiceUnavailable("it did not come up"),
    VersionMismatch("another version runs", running="2", ours="1", pid=7),
    AccessRefused("/run/hub", "is not yours", "remove it"),
]


@pytest.mark.parametrize("problem", FAILURES, ids=lambda problem: type(problem).__name__)
async def test_a_hub_that_cannot_be_reached_is_an_error_on_entering(problem: EnginehouseError) -> None:
    async with premises() as place:
        place.closed = problem
        with pytest.raises(type(problem)) as found:
            async with remote(place):
                raise AssertionError
        assert found.value is problem


@pytest.mark.parametrize("problem", FAILURES, ids=lambda problem: type(problem).__name__)
async def test_a_hub_that_cannot_be_reached_again_is_an_error_for_everybody(problem: EnginehouseError) -> None:
    async with premises() as place, remote(place) as hub:
        async with anyio.create_task_group() as tasks:
            asking, gate = Asking(), Gate()
            place.hub.before["send"] = gate
            tasks.start_soon(asking.ask, hub.sessions_send, send())
            await gate.reached()
            place.closed = problem
            await place.kill()
            await asking.done()
            assert isinstance(asking.error, type(problem)) and vars(asking.error) == vars(problem)
        with pytest.raises(type(problem), match=str(problem)):
            await hub.sessions_list(ListSessions())
    assert place.dials == 2


async def test_a_mistake_in_reaching_the_hub_again_is_said_and_takes_nobody_along() -> None:
    async with premises() as place, remote(place) as hub:
        place.closed = RuntimeError("a mistake")
        await place.kill()
        with pytest.raises(ServiceUnavailable, match="RuntimeError: a mistake"):
            await hub.sessions_list(ListSessions())


async def test_a_hub_that_refuses_the_host_is_an_error_on_entering() -> None:
    async with premises() as place:
        with pytest.raises(UsageError, match="a host's id"):
            async with RemoteHub(place.dial, HostInfo(id="", name="", version="")):
                raise AssertionError
        await place.until_connections(0)


async def test_a_hub_of_another_protocol_is_an_error_on_entering() -> None:
    async def answer(method: str, params: msgspec.Raw) -> bytes:
        return b'{"protocol_version":9,"hub":{"version":"9.0","pid":12}}'

    with anyio.fail_after(5):
        ours, theirs = await in_memory()

        async def dial() -> Any:
            return ours

        async with Peer(theirs, answer):
            with pytest.raises(VersionMismatch, match=r"\(version 9\.0, process 12\) speaks protocol 9"):
                async with RemoteHub(dial, HOST):
                    raise AssertionError


# --- called off ---------------------------------------------------------------------------------------------------


async def test_a_call_that_is_called_off_is_called_off_in_the_hub() -> None:
    async with premises() as place, remote(place) as hub:
        gate = place.hub.before["send"] = Gate()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hub.sessions_send, send())
            await gate.reached()
            tasks.cancel_scope.cancel()
        await hub.sessions_list(ListSessions())
        assert place.hub.ledger().entries == []


async def test_entering_can_be_called_off_at_the_door_and_before_the_first_answer() -> None:
    async with premises() as place:
        door = Gate()
        place.on_dial = door.passed

        async def enter() -> None:
            async with remote(place):
                raise AssertionError

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(enter)
            await door.reached()
            tasks.cancel_scope.cancel()
        await place.until_connections(0)
        place.on_dial = None
        silent, other = await in_memory()

        async def dial() -> Any:
            return silent

        async def enter_a_hub_that_says_nothing() -> None:
            async with RemoteHub(dial, HOST):
                raise AssertionError

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(enter_a_hub_that_says_nothing)
            assert b"initialize" in await other.receive()
            tasks.cancel_scope.cancel()
        assert b"$/cancel" in await other.receive()
        with pytest.raises(anyio.EndOfStream):
            await other.receive()
        await other.aclose()


async def test_leaving_while_the_hub_is_being_reached_again_is_quick() -> None:
    async with premises() as place:
        async with remote(place):
            door = Gate()
            place.on_dial = door.passed
            await place.kill()
            await door.reached()
        await place.until_connections(0)


async def test_who_still_waits_when_it_is_left_hears_so() -> None:
    async with premises() as place, anyio.create_task_group() as tasks:
        asking, gate = Asking(), Gate()
        place.hub.before["send"] = gate
        async with remote(place) as hub:
            tasks.start_soon(asking.ask, hub.sessions_send, send())
            await gate.reached()
        await asking.done()
        assert isinstance(asking.error, ConnectionLost)
        with pytest.raises(ConnectionLost, match="closed here"):
            await hub.sessions_list(ListSessions())
        with pytest.raises(ConnectionLost, match="closed here"):
            async with hub.sessions_attach(Attach(session_id=S)):
                raise AssertionError
