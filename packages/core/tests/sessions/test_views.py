"""Many views of one session: late, slow, gone and back; and sessions nobody looks at."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import anyio.lowlevel
import pytest
from sessions.house import PATIENCE_S, SCRIPTED, House, house

from enginehouse_core.sessions.archive import Archive
from enginehouse_core.sessions.showing import Showing, Shown
from enginehouse_core.transcript.live import TAIL_CHARACTERS
from enginehouse_core.transcript.log import RING_ENTRIES
from enginehouse_protocol.content import Text, plain
from enginehouse_protocol.engine import Opening, Secret, Turn
from enginehouse_protocol.errors import AlreadyDecided, RequestNotFound, UsageError
from enginehouse_protocol.events import (
    LiveState,
    MessageAssistant,
    MessageDelta,
    MessageQueued,
    MessageReset,
    MessageUser,
    Notice,
    PermissionRequested,
    SessionCreated,
    ToolOutput,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnStarted,
)
from enginehouse_protocol.hub import (
    AnswerPermission,
    AnswerQuestion,
    Attach,
    CreateSession,
    EventsAfter,
    Launch,
    ListSessions,
    Nothing,
    Receipt,
    SendMessage,
    SessionRef,
)
from enginehouse_protocol.ids import MessageId, SessionId, new_call_id, new_message_id, new_request_id, new_session_id
from enginehouse_protocol.permissions import Allow, Answer
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import AskPerson, Do, Emit, Gate, Say, ScriptedEngine, UseTool, Wait

pytestmark = pytest.mark.anyio


def open_transcripts(profile: Path) -> list[str]:
    """The descriptors of this process that lead into the profile's transcripts."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    found = (os.readlink(link) for link in links if os.path.lexists(link))
    return [path for path in found if path.startswith(str(profile / "transcripts"))]


async def until_forgotten(profile: Path) -> None:
    with anyio.fail_after(PATIENCE_S):
        while open_transcripts(profile):
            await anyio.lowlevel.checkpoint()


# --- joining ------------------------------------------------------------------------------------------------------


async def test_a_view_that_joins_in_mid_delta_ends_with_the_same_text(tmp_path: Path) -> None:
    gate = Gate()
    words = ("The ", "parser ", "is ", "fine.")
    async with house(tmp_path, ScriptedEngine([[Say("".join(words), pieces=words, hold=gate)]])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as first:
            await home.send(session_id, "look")
            await first.hear(MessageDelta)
            async with home.watching(session_id) as late:
                state = await late.hear(LiveState)
                assert [message.text for message in state.messages] == ["The "]
                assert state.state.state == "running"
                gate.open()
                for ear in (first, late):
                    await ear.hear(TurnCompleted)
            said = state.messages[0].text + "".join(delta.text for delta in late.bodies(MessageDelta))
            assert said == plain(late.bodies(MessageAssistant)[0].text) == "".join(words)
            assert late.events == first.events


async def test_the_present_tells_what_waits_for_a_person_and_in_the_queue(tmp_path: Path) -> None:
    engine = ScriptedEngine([[UseTool("rm", {"command": "rm -rf x"}, kind="execute", result="gone")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session(mode="default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "clean up")
            asked = await ear.hear(PermissionRequested)
            await home.send(session_id, "and then this")
            await ear.hear(MessageQueued)
            async with home.watching(session_id, after=ear.events[-1].seq) as late:
                state = await late.hear(LiveState)
                assert state.requests == (asked,)
                assert [entry.content for entry in state.queue] == [(Text(text="and then this"),)]
                assert state.seq == ear.events[-1].seq
            await home.hub.sessions_interrupt(SessionRef(session_id=session_id))
            async with home.watching(session_id, after=ear.events[-1].seq) as late:
                state = await late.hear(LiveState)
                assert state.requests == ()
                assert (state.state.state, state.state.held) == ("idle", True)


async def test_the_present_has_the_end_of_what_a_running_tool_printed_until_its_result(tmp_path: Path) -> None:
    gate, call_id = Gate(), new_call_id()
    use = ToolUse(call_id=call_id, name="sh", input={}, kind="execute", title="make")
    printed = [Emit(ToolOutput(call_id=call_id, text=f"{n:06}\n" * 100)) for n in range(40)]
    done = Emit(ToolResult(call_id=call_id, status="ok"))
    async with house(tmp_path, ScriptedEngine([[Emit(use), *printed, Wait(gate), done]])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "build it")
            await ear.hear(ToolOutput, where=lambda output: output.text.startswith("000039"))
        async with home.watching(session_id) as ear:
            (tool,) = (await ear.hear(LiveState)).tools
            assert (tool.call_id, tool.cut, len(tool.tail)) == (call_id, True, TAIL_CHARACTERS)
            assert tool.tail.endswith("000039\n000039\n")
            gate.open()
            await ear.hear(TurnCompleted)
        async with home.watching(session_id, after=ear.events[-1].seq) as ear:
            assert (await ear.hear(LiveState)).tools == ()


async def test_a_message_that_is_void_is_not_open_any_more(tmp_path: Path) -> None:
    gate, message_id = Gate(), new_message_id()
    steps = [
        Emit(MessageDelta(message_id=message_id, text="I beg")),
        Emit(MessageReset(message_id=message_id, reason="the connection broke")),
        Wait(gate),
    ]
    async with house(tmp_path, ScriptedEngine([steps])) as home:
        session_id = await home.session()
        async with home.watching(session_id) as ear:
            await home.send(session_id, "go")
            await ear.hear(MessageReset)
        async with home.watching(session_id) as ear:
            assert (await ear.hear(LiveState)).messages == ()
        gate.open()


async def test_a_view_that_fell_out_of_the_ring_ends_with_the_same_events_and_the_present(tmp_path: Path) -> None:
    words = tuple(f"{n} " for n in range(RING_ENTRIES + 2_000))
    gate = Gate()
    async with house(tmp_path, ScriptedEngine([[Say("".join(words), pieces=words, hold=gate)]])) as home:
        session_id = await home.session()
        async with home.hub.sessions_attach(Attach(session_id=session_id)) as view, home.watching(session_id) as ear:
            batches = view.batches()
            heard = [*await anext(batches), *await anext(batches)]  # what there is, and the present
            await home.send(session_id, "count")
            await gate.reached()
            gate.open()
            await ear.hear(TurnCompleted)
            with anyio.fail_after(PATIENCE_S):
                while sum(isinstance(item.event.body, LiveState) for item in heard) < 2:
                    heard += await anext(batches)
            durable = [item.line for item in heard if item.event in ear.events]
            assert durable == [item.line for item in ear.deliveries if item.event in ear.events]
            assert sum(isinstance(item.event.body, MessageDelta) for item in heard) < len(words)


# --- the same millisecond -----------------------------------------------------------------------------------------


async def test_of_two_messages_at_one_moment_one_runs_and_one_queues_in_the_order_of_their_receipts(
    tmp_path: Path,
) -> None:
    times = 200
    both = [anyio.Event()]

    async def until_both_are_sent(_: Opening, __: Turn) -> None:
        await both[0].wait()

    engine = ScriptedEngine([[Do(until_both_are_sent), Say("ok")], [Say("ok")]] * times)
    async with house(tmp_path, engine) as home:
        session_id = await home.session()
        for _ in range(times):
            both[0] = anyio.Event()
            receipts: list[Receipt] = []

            async def send(text: str, into: list[Receipt]) -> None:
                message = SendMessage(session_id=session_id, content=(Text(text=text),), host=text)
                into.append(await home.hub.sessions_send(message))

            known = await home.hub.sessions_events(EventsAfter(session_id=session_id))
            async with home.watching(session_id, after=known.last_seq) as ear:
                async with anyio.create_task_group() as tasks:
                    for name in ("left", "right"):
                        tasks.start_soon(send, name, receipts)
                both[0].set()
                for _ in range(2):
                    await ear.hear(TurnCompleted)
                ran = [body.message_ids for body in ear.bodies(TurnStarted)]
                in_order = sorted(receipts, key=lambda receipt: receipt.seq)
                assert ran == [(receipt.message_id,) for receipt in in_order]
                assert [body.source for body in ear.bodies(MessageQueued)] == ["human", "queue"]
                assert [body.message_id for body in ear.bodies(MessageUser)] == [one for (one,) in ran]


async def test_a_message_that_is_sent_again_is_sent_once(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[Say("once")], [Say("twice")]])) as home:
        session_id = await home.session()
        message = SendMessage(session_id=session_id, content=(Text(text="hello"),), message_id=new_message_id())
        receipts: list[Receipt] = []

        async def send() -> None:
            receipts.append(await home.hub.sessions_send(message))

        async with home.watching(session_id) as ear:
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(send)
            await ear.hear(TurnCompleted)
            await send()
            assert len({(receipt.message_id, receipt.seq) for receipt in receipts}) == 1
            assert len(ear.bodies(MessageQueued)) == 1
    async with house(tmp_path, ScriptedEngine([])) as home:  # the record remembers
        assert await home.hub.sessions_send(message) == receipts[0]


async def test_a_session_that_is_created_again_is_the_same_one(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([])) as home:
        create = CreateSession(
            engine=SCRIPTED,
            directory=str(home.project),
            settings=SessionSettings(),
            launch=Launch(),
            session_id=new_session_id(),
            host="editor",
        )
        first = await home.hub.sessions_create(create)
        assert first.id == create.session_id
        assert await home.hub.sessions_create(create) == first
        assert len((await home.hub.sessions_list(ListSessions())).sessions) == 1
        (created,) = (await home.hub.sessions_events(EventsAfter(session_id=first.id))).events
        assert isinstance(created.body, SessionCreated)
        assert created.body.host == "editor"


async def test_an_id_that_could_be_a_path_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([])) as home:
        session_id = await home.session()
        message = SendMessage(session_id=session_id, content=(Text(text="x"),), message_id=MessageId("../../x"))
        with pytest.raises(UsageError, match="no id"):
            await home.hub.sessions_send(message)
        create = CreateSession(
            engine=SCRIPTED,
            directory=str(home.project),
            settings=SessionSettings(),
            launch=Launch(),
            session_id=SessionId("../../x"),
        )
        with pytest.raises(UsageError, match="no id"):
            await home.hub.sessions_create(create)


# --- sessions nobody uses -----------------------------------------------------------------------------------------


async def test_a_session_nobody_uses_holds_no_descriptor_and_goes_on_where_it_was(tmp_path: Path) -> None:
    engine = ScriptedEngine([[Say("one")], [Say("two")]])
    launch = Launch(environment={"PATH": "/usr/bin:/bin"}, secrets={"KEY": "sk-0123456789abcdef"}, key="KEY")
    async with house(tmp_path, engine, kept_s=0.05) as home:
        session_id = await home.session(launch=launch)
        await home.say(session_id, "first")
        await until_forgotten(tmp_path / "profile")
        assert not home.hub.busy
        assert isinstance((await home.say(session_id, "second"))[-1], TurnCompleted)
        assert [opening.access.secret for opening in engine.openings] == [Secret("KEY", "sk-0123456789abcdef")] * 2


async def test_a_session_somebody_looks_at_or_that_works_is_kept(tmp_path: Path) -> None:
    gate = Gate()
    async with house(tmp_path, ScriptedEngine([[Say("a b", hold=gate)]]), kept_s=0.05) as home:
        watched, working = await home.session(), await home.session()
        await home.send(working, "go")
        await gate.reached()
        async with home.watching(watched):
            await anyio.sleep(0.5)
            names = {Path(path).parent.name for path in open_transcripts(tmp_path / "profile")}
            assert names == {watched, working}
            assert home.hub.busy
            gate.open()
        await until_forgotten(tmp_path / "profile")
        page = await home.hub.sessions_events(EventsAfter(session_id=working))
        assert isinstance(page.events[-1].body, TurnCompleted)


async def test_many_who_want_a_forgotten_session_at_once_get_the_same_one(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([]), kept_s=0.02) as home:
        session_id = await home.session()
        for _ in range(20):
            await until_forgotten(tmp_path / "profile")
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(home.hub.queue_list, SessionRef(session_id=session_id))
            assert len(open_transcripts(tmp_path / "profile")) <= 1


# --- the inbox ----------------------------------------------------------------------------------------------------


async def test_questions_of_all_sessions_are_listed_and_answered(tmp_path: Path) -> None:
    heard: list[tuple[str, ...] | None] = []

    def note(answers: tuple[str, ...] | None) -> tuple[()]:
        heard.append(answers)
        return ()

    async with house(tmp_path, ScriptedEngine([[AskPerson("Which one?", then=note)]])) as home:
        sessions = [await home.session() for _ in range(2)]
        async with home.watching(sessions[0], can_answer=True), home.watching(sessions[1], can_answer=True) as ear:
            for session_id in sessions:
                await home.send(session_id, "ask me")
            with anyio.fail_after(PATIENCE_S):
                while len(pending := (await home.hub.questions_pending(Nothing())).questions) < 2:
                    await anyio.lowlevel.checkpoint()
            assert {asked.session_id for asked in pending} == set(sessions)
            answers = [
                AnswerQuestion(
                    session_id=asked.session_id, question_id=asked.question.question_id, answers=("yes",), host="phone"
                )
                for asked in pending
            ]
            for answer in answers:
                await home.hub.questions_answer(answer)
            await ear.hear(TurnCompleted)
            assert heard[:1] == [("yes",)]
            with pytest.raises(AlreadyDecided, match="answered from phone"):
                await home.hub.questions_answer(answers[0])


@asynccontextmanager
async def asked_and_interrupted(tmp_path: Path) -> AsyncGenerator[tuple[House, AnswerPermission]]:
    """A permission request that has expired, and an answer to it."""
    engine = ScriptedEngine([[UseTool("rm", {"command": "rm -rf x"}, kind="execute", result="gone")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session(mode="default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "clean up")
            asked = await home.pending()
            await home.hub.sessions_interrupt(SessionRef(session_id=session_id))
            await ear.hear(TurnCompleted)
        answer = Answer(request_id=asked.request_id, digest=asked.digest, decision=Allow())
        yield home, AnswerPermission(session_id=session_id, answer=answer, host="test")


async def test_an_answer_that_comes_too_late_hears_what_became_of_the_request(tmp_path: Path) -> None:
    async with asked_and_interrupted(tmp_path) as (home, answer):
        with pytest.raises(AlreadyDecided, match="expired"):
            await home.hub.permissions_answer(answer)
    async with house(tmp_path, ScriptedEngine([])) as home:  # another hub knows it from the record
        with pytest.raises(AlreadyDecided, match=r"it expired \(the turn was interrupted"):
            await home.hub.permissions_answer(answer)
        unknown = Answer(request_id=new_request_id(), digest="", decision=Allow())
        with pytest.raises(RequestNotFound):
            await home.hub.permissions_answer(
                AnswerPermission(session_id=answer.session_id, answer=unknown, host="test")
            )


async def test_what_waits_is_refused_once_whoever_could_answer_has_been_gone_for_a_while() -> None:
    gone: list[str] = []
    async with anyio.create_task_group() as tasks:
        showing = Showing(cast(Shown, None), tasks, lambda: gone.append("nobody"), returning_s=0.2)
        with pytest.raises(AttributeError):  # there is no record here to look at; whoever looks is counted all the same
            async with showing.attach(0, can_answer=True):
                pass
    assert gone == ["nobody"]


# --- whose key ----------------------------------------------------------------------------------------------------


async def test_a_session_works_with_what_the_newest_host_brought_and_the_record_says_so(tmp_path: Path) -> None:
    def launch(key: str) -> Launch:
        return Launch(environment={"PATH": "/usr/bin:/bin"}, secrets={"OPENAI_API_KEY": key}, key="OPENAI_API_KEY")

    def message(key: str, host: str) -> SendMessage:
        return SendMessage(session_id=session_id, content=(Text(text="go"),), launch=launch(key), host=host)

    engine = ScriptedEngine([[Say("ok")] for _ in range(4)])
    async with house(tmp_path, engine) as home:
        session_id = await home.session(launch=launch("sk-of-the-first-shell"))
        async with home.watching(session_id) as ear:
            for key, host in (
                ("sk-of-the-first-shell", ""),
                ("sk-of-the-first-shell", "editor"),
                ("sk-of-the-other-shell", "editor"),
            ):
                await home.hub.sessions_send(message(key, host))
                await ear.hear(TurnCompleted)
        keys = [opening.access.secret.reveal() for opening in engine.openings if opening.access.secret]
        assert keys == ["sk-of-the-first-shell", "sk-of-the-other-shell"]
        (notice,) = [body for body in ear.bodies(Notice) if body.code == "session.supplied"]
        assert "editor supplied: OPENAI_API_KEY" in notice.text
        lines = b"".join(item.line for item in ear.deliveries)
        assert b"sk-of-the" not in lines


async def test_what_became_of_a_request_is_found_without_a_hub_and_whichever_session_asked(tmp_path: Path) -> None:
    async with asked_and_interrupted(tmp_path) as (home, answer):
        await home.session()
    archive = Archive(tmp_path / "profile" / "transcripts")
    assert archive.outcome_of(answer.answer.request_id) == "it expired (the turn was interrupted)"
    assert archive.outcome_of(new_request_id()) == ""
