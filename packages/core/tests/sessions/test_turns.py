"""A conversation from message to end of turn, on a scripted engine and a real record."""

import contextlib
from pathlib import Path

import anyio
import pytest
from sessions.house import PATIENCE_S, House, house

from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import Fresh, Secret
from enginehouse_protocol.errors import EngineError, SessionClosed
from enginehouse_protocol.events import (
    HistoryChanged,
    HistoryReplaced,
    MessageAssistant,
    MessageDelta,
    MessageReset,
    MessageUser,
    MessageWithdrawn,
    Notice,
    QuestionAnswered,
    QuestionAsked,
    SessionChanged,
    SessionCreated,
    SessionStateChanged,
    StepStarted,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.events import (
    SessionClosed as SessionClosedBody,
)
from enginehouse_protocol.hookspecs import AddContext, BlockMessage, SessionFacts, hookimpl
from enginehouse_protocol.hub import (
    AnswerQuestion,
    EditQueued,
    EventsAfter,
    Launch,
    ListSessions,
    ResumeQueue,
    SendMessage,
    SessionRef,
    SetSession,
    WithdrawQueued,
)
from enginehouse_protocol.ids import SessionId
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import (
    AskPerson,
    Crash,
    Emit,
    Fail,
    Gate,
    Hang,
    NativeStore,
    RequestTurn,
    Say,
    ScriptedEngine,
    UseTool,
    Wait,
)

pytestmark = pytest.mark.anyio


async def interrupt(home: House, session_id: SessionId) -> None:
    with anyio.fail_after(2):
        await home.hub.sessions_interrupt(SessionRef(session_id=session_id))


async def state_of(home: House, session_id: SessionId) -> str:
    listed = await home.hub.sessions_list(ListSessions())
    return next(info.state for info in listed.sessions if info.id == session_id)


async def test_a_turn_is_recorded_from_its_receipt_to_its_end(tmp_path: Path) -> None:
    engine = ScriptedEngine([[Say("hello"), UseTool("x", {"n": 1}, kind="read", result="1"), Say("done")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        bodies = await home.say(session_id, "hi")
        kinds = [type(body).__struct_config__.tag for body in bodies]
        assert kinds == [
            "message.queued",
            "turn.started",
            "message.user",
            "message.assistant",
            "tool.use",
            "permission.decided",
            "tool.result",
            "message.assistant",
            "turn.completed",
        ]
        page = await home.hub.sessions_events(EventsAfter(session_id=session_id))
        assert [event.seq for event in page.events] == list(range(1, page.last_seq + 1))
        assert isinstance(page.events[0].body, SessionCreated)
        turns = {event.turn_id for event in page.events if event.body in bodies[1:]}
        assert len(turns) == 1
        assert None not in turns


async def test_streamed_text_and_its_message_have_one_id_and_one_text(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[Say("one two three", pieces=("one ", "two ", "three"))]])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "hi")
            message = await ear.hear(MessageAssistant)
            deltas = ear.bodies(MessageDelta)
            assert "".join(delta.text for delta in deltas) == message.text == "one two three"
            assert {delta.message_id for delta in deltas} == {message.message_id}


async def test_a_busy_session_queues_and_drains_in_receipt_order(tmp_path: Path) -> None:
    gate = Gate()
    engine = ScriptedEngine(lambda turn: [Wait(gate)])
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "first")
            await gate.reached()
            for n in range(5):
                await home.send(session_id, str(n))
            queue = await home.hub.queue_list(SessionRef(session_id=session_id))
            assert [message.content for message in queue.messages] == [(Text(text=str(n)),) for n in range(5)]
            gate.open()
            for _ in range(6):
                await ear.hear(TurnCompleted)
        users = list(ear.bodies(MessageUser))
        assert [user.content[0] for user in users] == [Text(text=text) for text in ("first", "0", "1", "2", "3", "4")]
        assert [user.source for user in users] == ["human", *["queue"] * 5]


async def test_of_two_hundred_messages_at_once_each_runs_once_in_receipt_order(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")])) as home:
        session_id = await home.session()
        receipts: list[tuple[int, str]] = []

        async def send(text: str) -> None:
            receipt = await home.hub.sessions_send(SendMessage(session_id=session_id, content=(Text(text=text),)))
            receipts.append((receipt.seq, receipt.message_id))

        async with home.watching(session_id) as ear:
            async with anyio.create_task_group() as tasks:
                for n in range(200):
                    tasks.start_soon(send, str(n))
            for _ in range(200):
                await ear.hear(TurnCompleted)
        started = [body.message_ids[0] for body in ear.bodies(TurnStarted)]
        assert started == [message_id for _, message_id in sorted(receipts)]


async def test_a_queued_message_can_be_edited_and_withdrawn_and_its_text_comes_back(tmp_path: Path) -> None:
    gate = Gate()
    engine = ScriptedEngine(lambda turn: [Wait(gate)])
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "first")
            await gate.reached()
            await home.send(session_id, "second")
            await home.send(session_id, "third")
            second, third = (await home.hub.queue_list(SessionRef(session_id=session_id))).messages
            await home.hub.queue_edit(
                EditQueued(session_id=session_id, message_id=third.message_id, content=(Text(text="3rd"),))
            )
            back = await home.hub.queue_withdraw(WithdrawQueued(session_id=session_id, message_id=second.message_id))
            assert back.content == (Text(text="second"),)
            gate.open()
            await ear.hear(TurnCompleted)
            await ear.hear(TurnCompleted)
        assert [user.content[0] for user in ear.bodies(MessageUser)] == [Text(text="first"), Text(text="3rd")]


@pytest.mark.parametrize(
    "steps",
    [
        [Say("begin ", pieces=("begin ",), hold=None), Hang()],
        [UseTool("bash", {"command": "sleep 60"}, kind="execute")],
        [Hang(deaf=True)],
    ],
    ids=["streaming", "a command", "a deaf engine"],
)
async def test_an_interrupt_returns_to_idle_within_two_seconds_and_the_next_turn_is_told(
    tmp_path: Path, steps: list[object]
) -> None:
    engine = ScriptedEngine([steps, [Say("again")]])  # pyright: ignore[reportArgumentType]
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "go")
            await ear.hear(TurnStarted)
            with anyio.move_on_after(0.3):
                await ear.hear(ToolUse, MessageDelta)
            await interrupt(home, session_id)
            assert await state_of(home, session_id) == "idle"
            assert (await ear.hear(TurnCompleted)).stop == "interrupted"
            uses = {use.call_id for use in ear.bodies(ToolUse)}
            assert {result.call_id for result in ear.bodies(ToolResult) if result.status == "interrupted"} == uses
        bodies = await home.say(session_id, "and now?")
        told = [body for body in bodies if isinstance(body, MessageUser)]
        assert [message.source for message in told] == ["interruption", "human"]
        assert isinstance(bodies[-1], TurnCompleted)
        assert bodies[-1].stop == "end"


async def test_an_interrupt_while_a_hook_thinks_leaves_the_message_in_the_held_queue(tmp_path: Path) -> None:
    thinking = anyio.Event()

    class Slow:
        @hookimpl
        async def session_before_send(self, session: SessionFacts, message: MessageUser) -> None:
            if message.content == (Text(text="slow"),):
                thinking.set()
                await anyio.sleep_forever()

    async with house(tmp_path, ScriptedEngine([[Say("ok")]]), plugins=[Slow()]) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "slow")
            with anyio.fail_after(PATIENCE_S):
                await thinking.wait()
            await interrupt(home, session_id)
            assert (await ear.hear(TurnCompleted)).stop == "interrupted"
            assert ear.bodies(MessageUser) == []
        queue = await home.hub.queue_list(SessionRef(session_id=session_id))
        assert queue.held
        (waiting,) = queue.messages
        await home.hub.queue_withdraw(WithdrawQueued(session_id=session_id, message_id=waiting.message_id))
        bodies = await home.say(session_id, "next")
        told = [body.source for body in bodies if isinstance(body, MessageUser)]
        assert told == ["interruption", "human"]
        assert isinstance(bodies[-1], TurnCompleted)


async def test_an_interrupt_holds_the_queue_visibly_until_a_person_sends_or_resumes(tmp_path: Path) -> None:
    hang = Hang()
    engine = ScriptedEngine([[hang], [Say("one")], [Say("two")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "hang")
            await hang.gate.reached()
            await home.send(session_id, "waiting")
            await interrupt(home, session_id)
            await ear.hear(SessionStateChanged, where=lambda body: body.state == "idle" and body.held)
            assert (await home.hub.queue_list(SessionRef(session_id=session_id))).held
            await home.hub.queue_resume(ResumeQueue(session_id=session_id))
            assert (await ear.hear(TurnCompleted, where=lambda body: body.stop == "end")).stop == "end"


async def test_hooks_add_context_block_and_fail_visibly(tmp_path: Path) -> None:
    class Plugin:
        @hookimpl
        async def session_before_send(self, session: SessionFacts, message: MessageUser) -> AddContext | BlockMessage:
            match message.content:
                case (Text(text="block"),):
                    return BlockMessage(reason="not today")
                case (Text(text="break"),):
                    raise RuntimeError("oops")
                case _:
                    return AddContext(text=f"mode is {session.mode}")

    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")]), plugins=[Plugin()]) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "block")
            withdrawn = await ear.hear(MessageWithdrawn)
            assert (withdrawn.by, withdrawn.reason) == ("hook", "not today")
            await home.send(session_id, "go")
            await ear.hear(TurnCompleted)
            first, second = ear.bodies(MessageUser)
            assert (first.source, first.content) == ("hook", (Text(text="mode is yolo"),))
            assert second.content == (Text(text="go"),)
            await home.send(session_id, "break")
            assert "oops" in (await ear.hear(Notice)).text
            await ear.hear(TurnCompleted)


@pytest.mark.parametrize(
    "step, code",
    [
        (Fail(EngineError("no credit", code="provider.payment", http_status=402)), "provider.payment"),
        (Fail(RuntimeError("a bug")), "engine.broken"),
        (Crash("half a sen"), "engine.exited"),
    ],
)
async def test_a_failing_engine_fails_the_turn_and_the_session_stays_usable(
    tmp_path: Path, step: object, code: str
) -> None:
    async with house(tmp_path, ScriptedEngine([[step], [Say("fine")]])) as home:  # pyright: ignore[reportArgumentType]
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "go")
            failed = await ear.hear(TurnFailed)
            assert failed.code == code
            streamed = {delta.message_id for delta in ear.bodies(MessageDelta)}
            settled = {reset.message_id for reset in ear.bodies(MessageReset)}
            settled |= {message.message_id for message in ear.bodies(MessageAssistant)}
            assert streamed <= settled
            await home.send(session_id, "again")
            assert (await ear.hear(TurnCompleted)).stop == "end"


async def test_work_an_engine_starts_by_itself_gets_a_turn_of_its_own(tmp_path: Path) -> None:
    engine = ScriptedEngine([[Say("started"), RequestTurn("background")], [Say("by myself")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "go")
            await ear.hear(TurnCompleted)
            assert (await ear.hear(TurnStarted)).origin == "background"
            assert (await ear.hear(MessageAssistant)).text == "by myself"
            await ear.hear(TurnCompleted)


async def test_a_session_goes_on_in_another_hub(tmp_path: Path) -> None:
    store = NativeStore(tmp_path / "native")
    async with house(tmp_path, ScriptedEngine([[Say("one")]], native_store=store)) as home:
        session_id = await home.session(mode="accept_edits")
        await home.say(session_id, "first")
    again = ScriptedEngine([[Say(" | ".join)]], native_store=store)
    async with house(tmp_path, again) as home:
        bodies = await home.say(session_id, "second")
        said = next(body for body in bodies if isinstance(body, MessageAssistant))
        assert "first" in str(said.text)
        listed = (await home.hub.sessions_list(ListSessions())).sessions[0]
        assert (listed.settings.mode, listed.turns, listed.title) == ("accept_edits", 2, "first")


async def test_a_lost_native_id_goes_on_fresh_with_a_recap_and_says_so(tmp_path: Path) -> None:
    store = NativeStore(tmp_path / "native")
    async with house(tmp_path, ScriptedEngine([[Say("the answer is 42")]], native_store=store)) as home:
        session_id = await home.session()
        await home.say(session_id, "remember")
    for name in list((tmp_path / "native").iterdir()):
        name.unlink()
    again = ScriptedEngine([[Say(" | ".join)]], native_store=store)
    async with house(tmp_path, again) as home:
        bodies = await home.say(session_id, "what was it?")
        assert [body.code for body in bodies if isinstance(body, Notice)] == ["session.native_lost"]
        start = again.openings[-1].start
        assert isinstance(start, Fresh)
        assert "the answer is 42" in start.recap
        assert isinstance(bodies[-1], TurnCompleted)


async def test_a_plan_that_is_approved_leaves_plan_mode(tmp_path: Path) -> None:
    engine = ScriptedEngine([[AskPerson("1. do it", options=("Go ahead", "No"), plan=True), Say("ok")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session(mode="plan")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "plan")
            asked = await ear.hear(SessionStateChanged, where=lambda body: body.state == "awaiting_permission")
            assert asked.state == "awaiting_permission"
            (question,) = ear.bodies(QuestionAsked)
            await home.hub.questions_answer(
                AnswerQuestion(
                    session_id=session_id,
                    question_id=question.question_id,
                    answers=("Go ahead",),
                    host="test",
                )
            )
            assert (await ear.hear(QuestionAnswered)).answers == ("Go ahead",)
            changed = await ear.hear(SessionChanged)
            assert (changed.reason, changed.settings) == ("plan_approved", SessionSettings(mode="default"))
            await ear.hear(TurnCompleted)


async def test_a_question_with_nobody_there_is_answered_with_nothing(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[AskPerson("which?", options=("a",)), Say("ok")]])) as home:
        bodies = await home.say(await home.session(), "go")
        assert [body.answers for body in bodies if isinstance(body, QuestionAnswered)] == [None]


async def test_settings_merge_and_what_was_not_said_stays_unsaid(tmp_path: Path) -> None:
    engine = ScriptedEngine([[Say("a")], [Say("b")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session(mode=None)
        await home.say(session_id, "one")
        assert engine.openings[-1].settings == SessionSettings()
        await home.hub.sessions_set(SetSession(session_id=session_id, title="T", settings=SessionSettings(model="m")))
        assert engine.changes[-1] == SessionSettings(model="m")
        info = (await home.hub.sessions_list(ListSessions())).sessions[0]
        assert (info.title, info.settings) == ("T", SessionSettings(model="m"))


async def test_a_shortened_native_history_is_answered_with_what_it_replaces(tmp_path: Path) -> None:
    engine = ScriptedEngine([[Say("a"), Emit(HistoryChanged(reason="compaction", summary="short"))]])
    async with house(tmp_path, engine) as home:
        bodies = await home.say(await home.session(), "go")
        replaced = next(body for body in bodies if isinstance(body, HistoryReplaced))
        assert (replaced.first_seq, replaced.summary) == (1, "short")
        assert replaced.last_seq == replaced.by - 1


async def test_a_closed_session_can_be_read_and_not_continued(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[Say("a")]])) as home:
        session_id = await home.session()
        await home.say(session_id, "one")
        await home.hub.sessions_close(SessionRef(session_id=session_id))
        assert await state_of(home, session_id) == "closed"
        with pytest.raises(SessionClosed):
            await home.send(session_id, "two")
        await home.hub.sessions_delete(SessionRef(session_id=session_id))
        assert (await home.hub.sessions_list(ListSessions())).sessions == ()


async def test_the_step_limit_holds_for_an_engine_that_does_not_count(tmp_path: Path) -> None:
    steps = [Emit(StepStarted(step=n, history_seq=1, request_sha256="")) for n in range(1, 5)]
    async with house(tmp_path, ScriptedEngine([[*steps, Hang()]]), settings="[turns]\nmax_steps = 3\n") as home:
        bodies = await home.say(await home.session(), "go")
        assert isinstance(bodies[-1], TurnCompleted)
        assert bodies[-1].stop == "max_steps"


async def test_queued_messages_of_a_dead_hub_are_held(tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, ScriptedEngine([[Wait(gate)]])) as home:
        session_id = await home.session()
        await home.send(session_id, "first")
        await gate.reached()
        await home.send(session_id, "second")
    async with house(tmp_path, ScriptedEngine([[Say("a")], [Say("b")]])) as home:
        queue = await home.hub.queue_list(SessionRef(session_id=session_id))
        assert queue.held
        assert [message.content for message in queue.messages] == [(Text(text="second"),)]
        async with home.watching(session_id) as ear:
            await home.send(session_id, "third")
            await ear.hear(MessageUser, where=lambda body: body.content == (Text(text="third"),))
        assert [u.content[0] for u in ear.bodies(MessageUser) if u.source != "interruption"] == [
            Text(text=text) for text in ("first", "second", "third")
        ]


async def test_a_changed_key_opens_the_engine_again_and_the_same_one_does_not(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda turn: [Say("ok")])
    launches = [
        Launch(environment={"PATH": "/bin"}, secrets={"K": key}, key="K")
        for key in ("first-key-1", "first-key-1", "second-key-2")
    ]
    async with house(tmp_path, engine) as home:
        session_id = await home.session(launch=launches[0])
        async with home.watching(session_id) as ear:
            for launch in launches:
                await home.hub.sessions_send(
                    SendMessage(session_id=session_id, content=(Text(text="go"),), launch=launch)
                )
                await ear.hear(TurnCompleted)
        secrets = [opening.access.secret for opening in engine.openings]
        assert secrets == [Secret("K", "first-key-1"), Secret("K", "second-key-2")]


async def test_closing_and_sending_at_once_ends_closed_with_the_whole_history(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine(lambda turn: [Say("ok")])) as home:
        for _ in range(20):
            session_id = await home.session()
            await home.say(session_id, "one")

            async def send(to: SessionId) -> None:
                with contextlib.suppress(SessionClosed):
                    await home.send(to, "two")

            with anyio.fail_after(PATIENCE_S):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(home.hub.sessions_close, SessionRef(session_id=session_id))
                    tasks.start_soon(send, session_id)
            page = await home.hub.sessions_events(EventsAfter(session_id=session_id))
            assert isinstance(page.events[-1].body, SessionClosedBody)
            users = [event.body for event in page.events if isinstance(event.body, MessageUser)]
            assert users[0].content == (Text(text="one"),)


async def test_a_turn_that_failed_is_told_to_the_next_one(tmp_path: Path) -> None:
    engine = ScriptedEngine([[Fail(EngineError("no credit", code="provider.payment"))], [Say("ok")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        await home.say(session_id, "one")
        told = [body for body in await home.say(session_id, "two") if isinstance(body, MessageUser)]
        assert [message.source for message in told] == ["interruption", "human"]
        assert "no credit" in str(told[0].content)
