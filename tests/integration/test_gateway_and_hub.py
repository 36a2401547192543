"""The real hub behind a connection: a host far away sees and may do what one in the same process sees and may do."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.abc import ByteStream, TaskGroup, TaskStatus
from gateway.premises import HOST, Premises, over_a_socket
from sessions.house import SCRIPTED, Ear, House, house

from enginehouse_core.hub import Hub
from enginehouse_hosts.client import RemoteHub
from enginehouse_protocol.content import Text
from enginehouse_protocol.errors import AlreadyDecided, ConnectionLost, SessionNotFound
from enginehouse_protocol.events import (
    LiveState,
    MessageAssistant,
    MessageDelta,
    MessageQueued,
    PermissionDecided,
    PermissionRequested,
    SessionCreated,
    TurnCompleted,
)
from enginehouse_protocol.hub import (
    AnswerPermission,
    Attach,
    CreateSession,
    EventsAfter,
    HubApi,
    Launch,
    Nothing,
    SendMessage,
    SessionRef,
)
from enginehouse_protocol.ids import SessionId, new_message_id
from enginehouse_protocol.methods import HostInfo
from enginehouse_protocol.permissions import Allow, Answer, Deny
from enginehouse_protocol.settings import Mode, SessionSettings
from enginehouse_protocol.testing import Gate, Say, ScriptedEngine, UseTool

pytestmark = pytest.mark.anyio
PATIENCE_S = 20
OTHER = HostInfo(id="h_2", name="another", version="0.1")
LAUNCH = Launch(environment={"PATH": "/usr/bin:/bin"})


class Street:
    """A house whose hub is served over sockets."""

    def __init__(self, home: House, tasks: TaskGroup) -> None:
        self.home = home
        self.place: Premises[Hub] = Premises(home.hub, home.hub, tasks, over_a_socket)

    def remote(self, host: HostInfo = HOST) -> RemoteHub:
        return RemoteHub(self.place.dial, host, can_answer=True)

    async def session(self, hub: HubApi, mode: Mode = "yolo") -> SessionId:
        create = CreateSession(
            engine=SCRIPTED,
            directory=str(self.home.project),
            settings=SessionSettings(mode=mode),
            launch=LAUNCH,
        )
        return (await hub.sessions_create(create)).id


@asynccontextmanager
async def street(tmp_path: Path, engine: ScriptedEngine) -> AsyncGenerator[Street]:
    with anyio.fail_after(PATIENCE_S):
        async with house(tmp_path, engine) as home, anyio.create_task_group() as tasks:
            yield Street(home, tasks)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def watching(hub: HubApi, session_id: SessionId, after: int = 0) -> AsyncGenerator[Ear]:
    async with hub.sessions_attach(Attach(session_id=session_id, after=after, can_answer=True)) as view:
        ear = Ear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ear.listen, view.batches())
            yield ear
            tasks.cancel_scope.cancel()


def hello(session_id: SessionId, text: str = "hello") -> SendMessage:
    return SendMessage(session_id=session_id, content=(Text(text=text),), message_id=new_message_id())


async def test_a_turn_looks_the_same_from_here_and_from_there(tmp_path: Path) -> None:
    engine = ScriptedEngine([[Say("one two three"), UseTool("execute", {"command": "echo hi"}, kind="execute")]])
    async with street(tmp_path, engine) as here, here.remote() as far, here.remote(OTHER) as further:
        session = await here.session(far)
        async with (
            watching(here.home.hub, session) as near,
            watching(far, session) as one,
            watching(further, session) as two,
        ):
            await far.sessions_send(hello(session))
            for ear in (near, one, two):
                await ear.hear(TurnCompleted)
            lines = [[item.line for item in ear.deliveries if hasattr(item.event, "seq")] for ear in (near, one, two)]
            assert lines[0] == lines[1] == lines[2] and len(lines[0]) > 6
            assert "".join(body.text for body in one.bodies(MessageDelta)) == "one two three"
            assert one.bodies(SessionCreated)[0].host == "h_1"
        page = await far.sessions_events(EventsAfter(session_id=session))
        assert [bytes(line) for line in page.lines] == lines[1]


async def test_who_comes_in_the_middle_of_a_message_sees_all_of_it(tmp_path: Path) -> None:
    gate = Gate()
    async with street(tmp_path, ScriptedEngine([[Say("one two three", hold=gate)]])) as here, here.remote() as far:
        session = await here.session(far)
        async with watching(far, session) as first:
            await far.sessions_send(hello(session))
            await first.hear(MessageDelta)
            await gate.reached()
            async with here.remote(OTHER) as further, watching(further, session) as late:
                present = await late.hear(LiveState, where=lambda state: bool(state.messages))
                assert present.messages[0].text == "one "
                gate.open()
                await late.hear(TurnCompleted)
                await first.hear(TurnCompleted)
                assert late.events == first.events
                assert "one " + "".join(body.text for body in late.bodies(MessageDelta)) == "one two three"


async def test_the_first_host_to_answer_wins_and_the_second_is_told(tmp_path: Path) -> None:
    engine = ScriptedEngine([[UseTool("execute", {"command": "rm -rf build"}, kind="execute", result="gone")]])
    async with street(tmp_path, engine) as here, here.remote() as far, here.remote(OTHER) as further:
        session = await here.session(far, "default")
        async with watching(far, session) as one, watching(further, session) as two:
            await far.sessions_send(hello(session))
            await one.hear(PermissionRequested)
            await two.hear(PermissionRequested)
            (pending,) = (await further.permissions_pending(Nothing())).requests
            answers = [
                AnswerPermission(
                    session_id=session,
                    answer=Answer(request_id=pending.request_id, digest=pending.digest, decision=decision),
                    host="somebody else",
                )
                for decision in (Allow(), Deny(reason="no"))
            ]
            await further.permissions_answer(answers[0])
            with pytest.raises(AlreadyDecided):
                await far.permissions_answer(answers[1])
            decided = await one.hear(PermissionDecided)
            assert (decided.decision, decided.by) == (Allow(), "person")
            assert b"somebody else" not in msgspec.json.encode(decided)
            await one.hear(TurnCompleted)


async def test_a_connection_lost_in_the_middle_of_a_turn_loses_and_repeats_nothing(tmp_path: Path) -> None:
    gate = Gate()
    engine = ScriptedEngine([[Say("one two three", hold=gate), Say("four")]])
    async with street(tmp_path, engine) as here, here.remote() as far:
        session = await here.session(far)
        async with watching(far, session) as ear:
            message = hello(session)
            receipt = await far.sessions_send(message)
            await ear.hear(MessageDelta)
            await here.place.kill()
            assert await far.sessions_send(message) == receipt  # said again, not done again
            present = await ear.hear(LiveState, where=lambda state: bool(state.messages))
            assert present.messages[0].text == "one "
            gate.open()
            await ear.hear(TurnCompleted)
            assert [event.seq for event in ear.events] == list(range(1, len(ear.events) + 1))
            assert [body.text for body in ear.bodies(MessageAssistant)] == ["one two three", "four"]
            assert len(ear.bodies(MessageQueued)) == 1
        page = await far.sessions_events(EventsAfter(session_id=session))
        assert page.events == tuple(ear.events)


async def test_another_hub_on_the_same_profile_is_gone_on_with(tmp_path: Path) -> None:
    door, first_over, second_over = anyio.Event(), anyio.Event(), anyio.Event()

    async def hubs(*, task_status: TaskStatus[Street]) -> None:
        async with house(tmp_path, ScriptedEngine([[Say("one")]])) as home:
            here = Street(home, tasks)
            task_status.started(here)
            await first_over.wait()
        async with house(tmp_path, ScriptedEngine([[Say("two")]])) as home:
            here.place.reopen(home.hub, home.hub)
            door.set()
            await second_over.wait()

    async def dial() -> ByteStream:
        await door.wait()
        return await here.place.dial()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            here: Street = await tasks.start(hubs)
            door.set()
            async with RemoteHub(dial, HOST) as hub:
                session = await here.session(hub)
                async with watching(hub, session) as ear:
                    await hub.sessions_send(hello(session))
                    await ear.hear(TurnCompleted)
                    door = anyio.Event()
                    await here.place.kill()
                    first_over.set()
                    await hub.sessions_send(msgspec.structs.replace(hello(session, "again"), launch=LAUNCH))
                    await ear.hear(TurnCompleted)
                    assert [body.text for body in ear.bodies(MessageAssistant)] == ["one", "two"]
                    assert [event.seq for event in ear.events] == list(range(1, len(ear.events) + 1))
            second_over.set()


async def test_a_view_of_a_session_that_is_deleted_ends(tmp_path: Path) -> None:
    async with street(tmp_path, ScriptedEngine([])) as here, here.remote() as far, here.remote(OTHER) as further:
        session = await here.session(far)
        async with far.sessions_attach(Attach(session_id=session)) as view:
            await further.sessions_delete(SessionRef(session_id=session))
            assert [batch async for batch in view.batches()]
        with pytest.raises(SessionNotFound):
            async with far.sessions_attach(Attach(session_id=session)):
                raise AssertionError


async def test_a_hub_that_is_told_to_end_says_so_to_its_views(tmp_path: Path) -> None:
    async with street(tmp_path, ScriptedEngine([])) as here, here.remote() as far:
        session = await here.session(far)
        async with watching(far, session) as ear:
            await ear.hear(LiveState)
            here.place.end()
            await here.place.until_connections(0)
            with pytest.raises(ConnectionLost, match="the hub was told to end"):
                await far.sessions_send(hello(session))
            while ear.error is None:
                await anyio.lowlevel.checkpoint()
            assert isinstance(ear.error, ConnectionLost)
