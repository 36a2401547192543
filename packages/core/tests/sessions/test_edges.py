"""What must not bring a session, or its hub, down: engines that misbehave, people who are quick, disks that fill."""

import contextlib
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from sessions.house import PATIENCE_S, SCRIPTED, House, house

from enginehouse_core.hub import Hub
from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import EngineSession, Opening, Turn, TurnEnd
from enginehouse_protocol.errors import EngineError, EngineExited, EngineUnavailable, SessionClosed
from enginehouse_protocol.events import (
    MessageQueued,
    MessageUser,
    MessageWithdrawn,
    SessionStateChanged,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.hookspecs import SessionFacts, hookimpl
from enginehouse_protocol.hub import (
    CreateSession,
    EditQueued,
    EventsAfter,
    Launch,
    ResumeQueue,
    SessionRef,
    WithdrawQueued,
)
from enginehouse_protocol.ids import CallId, EngineName, SessionId, TurnId
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import Do, Fail, Gate, Hang, RequestTurn, Say, ScriptedEngine, UseTool

pytestmark = pytest.mark.anyio


class Thinking:
    """A hook that thinks as long as the test wants, once."""

    def __init__(self) -> None:
        self.begun, self.done = anyio.Event(), anyio.Event()

    @hookimpl
    async def session_before_send(self, session: SessionFacts, message: MessageUser) -> None:
        self.begun.set()
        await self.done.wait()


class WrappedSession:
    """A scripted session, one method of which a test replaces."""

    def __init__(self, inner: EngineSession) -> None:
        self.run, self.interrupt, self.apply = inner.run, inner.interrupt, inner.apply


class Wrapping(ScriptedEngine):
    """A scripted engine whose sessions the test changes as they open."""

    def __init__(self, turns: Any, change: Any) -> None:
        super().__init__(turns)
        self._change = change

    def open(self, opening: Opening) -> Any:
        return self._wrapped(opening)

    @asynccontextmanager
    async def _wrapped(self, opening: Opening) -> AsyncGenerator[EngineSession]:
        async with super().open(opening) as inner:
            session = WrappedSession(inner)
            self._change(session)
            yield session


async def interrupt(home: House, session_id: SessionId) -> None:
    with anyio.fail_after(2.5):
        await home.hub.sessions_interrupt(SessionRef(session_id=session_id))


async def works(home: House, session_id: SessionId) -> bool:
    return isinstance((await home.say(session_id, "still there?"))[-1], TurnCompleted)


async def test_a_message_withdrawn_while_a_hook_thinks_does_not_run(tmp_path: Path) -> None:
    hook = Thinking()
    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")]), plugins=[hook]) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "take me back")
            with anyio.fail_after(PATIENCE_S):
                await hook.begun.wait()
            (queued,) = (await home.hub.queue_list(SessionRef(session_id=session_id))).messages
            await home.hub.queue_withdraw(WithdrawQueued(session_id=session_id, message_id=queued.message_id))
            hook.done.set()
            await ear.hear(MessageWithdrawn)
            await home.send(session_id, "run me")
            await ear.hear(TurnCompleted)
        assert [user.content for user in ear.bodies(MessageUser)] == [(Text(text="run me"),)]


async def test_a_message_edited_while_a_hook_thinks_runs_as_edited(tmp_path: Path) -> None:
    hook = Thinking()
    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")]), plugins=[hook]) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "old")
            with anyio.fail_after(PATIENCE_S):
                await hook.begun.wait()
            (queued,) = (await home.hub.queue_list(SessionRef(session_id=session_id))).messages
            new = (Text(text="new"),)
            await home.hub.queue_edit(EditQueued(session_id=session_id, message_id=queued.message_id, content=new))
            hook.done.set()
            await ear.hear(TurnCompleted)
        assert [user.content for user in ear.bodies(MessageUser)] == [new]


def returns_nothing(session: WrappedSession) -> None:
    async def run(turn: Turn) -> TurnEnd:
        return cast(TurnEnd, None)

    session.run = run


def cannot_interrupt(session: WrappedSession) -> None:
    async def broken(turn_id: TurnId) -> None:
        raise BrokenPipeError("gone")

    session.interrupt = broken


def unwinds_slowly(session: WrappedSession) -> None:
    inner = session.run

    async def run(turn: Turn) -> TurnEnd:
        try:
            return await inner(turn)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(6)

    async def deaf(turn_id: TurnId) -> None:
        await anyio.sleep_forever()

    session.run, session.interrupt = run, deaf


async def test_a_run_that_returns_nonsense_fails_its_turn_only(tmp_path: Path) -> None:
    async with house(tmp_path, Wrapping([[Say("x")]], returns_nothing)) as home:
        bodies = await home.say(await home.session(), "go")
        assert isinstance(bodies[-1], TurnFailed)
        assert bodies[-1].code == "engine.broken"


async def test_a_providers_endless_error_text_is_cut_and_the_session_goes_on(tmp_path: Path) -> None:
    page = EngineError("<html>" + "x" * (2 << 20), code="provider.server_error")
    async with house(tmp_path, ScriptedEngine([[Fail(page)], [Say("ok")]])) as home:
        session_id = await home.session()
        failed = (await home.say(session_id, "go"))[-1]
        assert isinstance(failed, TurnFailed)
        assert len(failed.message) < 10_000
        assert await works(home, session_id)


async def test_a_hook_that_answers_a_book_is_a_bounded_notice(tmp_path: Path) -> None:
    class Book:
        @hookimpl
        async def session_before_send(self, session: SessionFacts, message: MessageUser) -> Any:
            return "b" * (2 << 20)

    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")]), plugins=[Book()]) as home:
        assert await works(home, await home.session())


@pytest.mark.parametrize("change", [cannot_interrupt, unwinds_slowly])
async def test_an_engine_that_interrupts_badly_costs_two_seconds_at_most(tmp_path: Path, change: Any) -> None:
    hang = Hang()
    async with house(tmp_path, Wrapping([[hang], [Say("ok")]], change)) as home:
        session_id = await home.session()
        await home.send(session_id, "go")
        await hang.gate.reached()
        await interrupt(home, session_id)
        page = await home.hub.sessions_events(EventsAfter(session_id=session_id))
        assert page.events[-1].body == TurnCompleted(stop="interrupted")
        assert await works(home, session_id)


async def test_an_interrupt_goes_on_when_whoever_asked_for_it_goes_away(tmp_path: Path) -> None:
    hang = Hang(deaf=True)
    async with house(tmp_path, ScriptedEngine([[hang], [Say("ok")]])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "go")
            await hang.gate.reached()
            with anyio.move_on_after(0.05):
                await home.hub.sessions_interrupt(SessionRef(session_id=session_id))
            assert (await ear.hear(TurnCompleted)).stop == "interrupted"
        assert await works(home, session_id)


async def test_what_is_asked_after_an_interrupt_is_not_allowed(tmp_path: Path) -> None:
    decided: list[object] = []

    async def ask_late(opening: Opening, turn: Turn) -> None:
        with anyio.CancelScope(shield=True), anyio.fail_after(PATIENCE_S):
            begun.set()
            await started.wait()
            command = {"command": "rm -rf build"}
            use = ToolUse(call_id=CallId("c_late"), name="bash", kind="execute", title="$ rm", input=command)
            decided.append(await opening.port.ask(use))

    begun, started = anyio.Event(), anyio.Event()
    async with house(tmp_path, ScriptedEngine([[Do(ask_late)], [Say("ok")]])) as home:
        session_id = await home.session("yolo")
        async with home.watching(session_id) as ear:
            await home.send(session_id, "go")
            with anyio.fail_after(PATIENCE_S):
                await begun.wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(home.hub.sessions_interrupt, SessionRef(session_id=session_id))
                await anyio.wait_all_tasks_blocked()
                started.set()
            await ear.hear(TurnCompleted)
        assert [type(decision).__name__ for decision in decided] == ["Expired"]


async def test_turns_an_engine_wants_wait_while_the_queue_is_held(tmp_path: Path) -> None:
    hang = Hang()
    engine = ScriptedEngine([[RequestTurn("background"), hang], [Say("mine")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "go")
            await hang.gate.reached()
            await interrupt(home, session_id)
            await ear.hear(SessionStateChanged, where=lambda body: body.state == "idle" and body.held)
            await home.hub.queue_resume(ResumeQueue(session_id=session_id))
            assert (await ear.hear(TurnStarted, where=lambda body: body.origin == "background")).origin == "background"


async def test_an_engine_that_dies_in_the_middle_of_a_turn_ends_it(tmp_path: Path) -> None:
    class Dying(ScriptedEngine):
        @asynccontextmanager
        async def _dying(self, opening: Opening) -> AsyncGenerator[EngineSession]:
            async with super().open(opening) as session, anyio.create_task_group() as reader:
                if opening.settings.model != "sound":
                    reader.start_soon(self._die)
                yield session

        async def _die(self) -> None:
            await hang.gate.reached()
            raise EngineExited("its process ended with signal 9")

        def open(self, opening: Opening) -> Any:
            return self._dying(opening)

    hang = Hang(deaf=True)
    async with house(tmp_path, Dying([[hang], [Say("ok")]])) as home:
        session_id = await home.session()
        failed = (await home.say(session_id, "go"))[-1]
        assert isinstance(failed, TurnFailed)
        assert failed.code in ("engine.exited", "engine.broken")


async def test_an_engine_may_keep_a_task_group_and_a_broken_one_is_only_unavailable(tmp_path: Path) -> None:
    class Grouped(ScriptedEngine):
        async def __aenter__(self) -> Any:
            self._group = anyio.create_task_group()
            await self._group.__aenter__()
            self._group.start_soon(anyio.sleep_forever)
            return self

        async def __aexit__(self, *exc: object) -> None:
            self._group.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)

    def broken(home: object) -> Any:
        raise OSError("no such binary")

    project = tmp_path / "project"
    project.mkdir()
    folders = Folders(tmp_path / "profile")

    def grouped(home: object) -> Any:
        return Grouped(lambda turn: [Say("ok")])

    factories: dict[EngineName, Any] = {SCRIPTED: grouped, EngineName("broken"): broken}
    async with Hub(folders=folders, factories=factories, what="a test") as hub:
        home = House(hub, project)
        create = CreateSession(
            engine=EngineName("broken"), directory=str(project), settings=SessionSettings(), launch=Launch()
        )
        with pytest.raises(EngineUnavailable, match="no such binary"):
            await hub.sessions_create(create)
        assert await works(home, await home.session())


async def test_a_result_is_recorded_once_however_many_say_it_at_once(tmp_path: Path) -> None:
    async def twice(opening: Opening, turn: Turn) -> None:
        use = ToolUse(call_id=CallId("c_1"), name="x", kind="read", title="x", input={})
        await opening.port.emit(use)
        big = ToolResult(call_id=use.call_id, status="ok", content=(Text(text="y" * (2 << 20)),))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opening.port.emit, big)
            tasks.start_soon(opening.port.emit, ToolResult(call_id=use.call_id, status="interrupted"))

    async with house(tmp_path, ScriptedEngine([[Do(twice)]])) as home:
        bodies = await home.say(await home.session(), "go")
        assert len([body for body in bodies if isinstance(body, ToolResult)]) == 1


def cancelled_from_inside(session: WrappedSession) -> None:
    async def run(turn: Turn) -> TurnEnd:
        raise anyio.get_cancelled_exc_class()

    session.run = run


def interrupts_behind_a_shield(session: WrappedSession) -> None:
    async def slow(turn_id: TurnId) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(6)

    session.interrupt = slow


async def test_an_adapter_cancelled_by_something_of_its_own_fails_its_turn_and_not_the_hub(tmp_path: Path) -> None:
    async with house(tmp_path, Wrapping([[Say("x")]], cancelled_from_inside)) as home:
        session_id = await home.session()
        failed = (await home.say(session_id, "go"))[-1]
        assert isinstance(failed, TurnFailed)
        assert failed.code == "engine.broken"
        assert isinstance((await home.say(session_id, "again"))[-1], TurnFailed)


async def test_a_hook_cancelled_by_something_of_its_own_is_a_notice(tmp_path: Path) -> None:
    class Cancelled:
        @hookimpl
        async def session_before_send(self, session: SessionFacts, message: MessageUser) -> None:
            raise anyio.get_cancelled_exc_class()

    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")]), plugins=[Cancelled()]) as home:
        assert await works(home, await home.session())


async def test_an_interrupt_that_shields_itself_does_not_hold_up_the_deadline(tmp_path: Path) -> None:
    hang = Hang(deaf=True)
    async with house(tmp_path, Wrapping([[hang], [Say("ok")]], interrupts_behind_a_shield)) as home:
        session_id = await home.session()
        await home.send(session_id, "go")
        await hang.gate.reached()
        await interrupt(home, session_id)
        assert await works(home, session_id)


async def test_a_hook_that_blocks_a_thread_does_not_hold_up_an_interrupt(tmp_path: Path) -> None:
    released, blocked = threading.Event(), anyio.Event()

    class Blocking:
        @hookimpl
        async def session_before_send(self, session: SessionFacts, message: MessageUser) -> None:
            if not released.is_set():
                blocked.set()
                await anyio.to_thread.run_sync(released.wait, 20)

    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")]), plugins=[Blocking()]) as home:
        session_id = await home.session()
        await home.send(session_id, "go")
        with anyio.fail_after(PATIENCE_S):
            await blocked.wait()
        await interrupt(home, session_id)
        released.set()
        async with home.watching(session_id) as ear:
            await home.hub.queue_resume(ResumeQueue(session_id=session_id))
            await ear.hear(MessageUser, where=lambda body: body.content == (Text(text="go"),))
            await ear.hear(TurnCompleted, where=lambda body: body.stop == "end")


async def test_a_message_whose_sender_went_away_runs_all_the_same(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(home.send, session_id, "go")
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            queued = await home.hub.queue_list(SessionRef(session_id=session_id))
            if queued.messages or ear.bodies(MessageUser):
                await ear.hear(TurnCompleted)
        assert await works(home, session_id)


async def test_what_a_dead_engine_still_owed_is_closed_as_unknown(tmp_path: Path) -> None:
    gate = Gate()
    use = UseTool("bash", {"command": "sleep 9"}, kind="execute", result="late", detached=gate)
    async with house(tmp_path, ScriptedEngine([[use, Say("ok")]])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "go")
            await ear.hear(TurnCompleted)
            assert ear.bodies(ToolResult) == []
    async with house(tmp_path, ScriptedEngine([])) as home:
        page = await home.hub.sessions_events(EventsAfter(session_id=session_id))
        assert [event.body.status for event in page.events if isinstance(event.body, ToolResult)] == ["unknown"]


async def test_a_message_still_on_its_way_into_a_closing_session_is_withdrawn(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")])) as home:
        session_id = await home.session()

        async def send() -> None:
            with contextlib.suppress(SessionClosed):
                await home.send(session_id, "x" * (3 << 20))  # spilled in a worker before it is recorded

        async with home.watching(session_id) as ear, anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await anyio.lowlevel.checkpoint()
            with anyio.fail_after(PATIENCE_S):
                await home.hub.sessions_close(SessionRef(session_id=session_id))
        queued = {body.message_id for body in ear.bodies(MessageQueued)}
        settled = {body.message_id for body in ear.bodies(MessageUser, MessageWithdrawn)}
        assert queued <= settled
