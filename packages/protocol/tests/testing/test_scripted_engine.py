"""The scripted engine keeps the engine contract, so that what it is used to test is what fails."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from enginehouse_protocol.engine import Access, EngineSession, Fresh, Opening, Resume, Start, Turn
from enginehouse_protocol.errors import EngineError, EngineExited, NativeSessionLost, SettingRefused
from enginehouse_protocol.events import (
    MessageAssistant,
    MessageDelta,
    NativeUpdated,
    PermissionRequested,
    PlanUpdated,
    ToolDetached,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import (
    AskPerson,
    Crash,
    Do,
    End,
    Fail,
    Gate,
    Hang,
    NativeStore,
    Plan,
    RecordingPort,
    RequestTurn,
    Say,
    ScriptedEngine,
    TempWorkspace,
    Together,
    Usage,
    UseTool,
    deny,
    edit,
    last_text,
    never,
    no_answer,
)

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(
    engine: ScriptedEngine, port: RecordingPort, folder: Path, start: Start | None = None
) -> AsyncGenerator[EngineSession]:
    workspace = TempWorkspace(folder / "project")
    opening = Opening(
        session_id=port.history.session_id,
        roots=workspace.roots,
        start=start or Fresh(),
        settings=SessionSettings(),
        instructions="",
        access=Access(),
        port=port,
        workspace=workspace,
        history=port.history,
    )
    with anyio.fail_after(20):
        async with engine, engine.open(opening) as session:
            yield session
    assert port.violations == []


def status_of(port: RecordingPort, at: int = 0) -> str:
    return port.all(ToolResult)[at].status


async def test_a_turn_streams_its_words_and_then_says_them_durably(tmp_path: Path) -> None:
    port = RecordingPort()
    async with opened(ScriptedEngine([[Say("hello there", reasoning="hm")]]), port, tmp_path) as session:
        end = await port.run(session, "hi")
    message = port.all(MessageAssistant)[0]
    assert end.stop == "end"
    assert [delta.text for delta in port.all(MessageDelta)] == ["hello ", "there"]
    assert {delta.message_id for delta in port.all(MessageDelta)} == {message.message_id}
    assert message.text == "hello there"


async def test_commands_files_and_edits_of_a_script_are_real(tmp_path: Path) -> None:
    port = RecordingPort()
    engine = ScriptedEngine(
        [
            [
                UseTool("write_file", {"path": "a.txt", "content": "one"}, kind="edit"),
                UseTool("bash", {"command": "cat a.txt; echo two; exit 3"}, kind="execute"),
                UseTool("read_file", {"path": "missing"}, kind="read"),
            ]
        ]
    )
    async with opened(engine, port, tmp_path) as session:
        await port.run(session, "go")
    assert (tmp_path / "project/a.txt").read_text() == "one"
    assert [result.status for result in port.all(ToolResult)] == ["ok", "error", "error"]
    assert "".join(output.text for output in port.all(ToolOutput)) == "onetwo\n"


async def test_a_denied_use_does_not_run_and_an_edited_one_runs_as_edited(tmp_path: Path) -> None:
    port = RecordingPort(policy=deny("not today"))
    steps = [UseTool("bash", {"command": "touch ran"}, kind="execute")]
    async with opened(ScriptedEngine([steps, steps]), port, tmp_path) as session:
        await port.run(session, "go")
        assert (status_of(port), (tmp_path / "project/ran").exists()) == ("denied", False)
        port.policy = edit(command="touch other")
        await port.run(session, "again")
    assert sorted(path.name for path in (tmp_path / "project").iterdir()) == ["other"]


async def test_uses_of_one_reply_are_asked_at_the_same_time(tmp_path: Path) -> None:
    port = RecordingPort(policy=never)
    engine = ScriptedEngine([[Together(UseTool("a"), UseTool("b"), UseTool("c"))]])
    async with opened(engine, port, tmp_path) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(port.run, session, "go")
        await port.heard(PermissionRequested, count=3)
        port.expire_pending()
        await port.heard(ToolResult, count=3)
    assert [use.name for use in port.all(ToolUse)] == ["a", "b", "c"]


@pytest.mark.parametrize("when", ["speaking", "asking", "running"])
async def test_an_interrupt_ends_the_turn_wherever_it_is(tmp_path: Path, when: str) -> None:
    gate = Gate()
    port = RecordingPort()
    if when == "asking":
        port.policy = never
    step = {
        "speaking": Say("one two three", hold=gate),
        "asking": UseTool("bash", {"command": "true"}, kind="execute"),
        "running": UseTool("bash", {"command": "echo up; sleep 60"}, kind="execute"),
    }[when]
    engine = ScriptedEngine([[step], [Say("back")]])
    ends: list[str] = []
    async with opened(engine, port, tmp_path) as session:
        async with anyio.create_task_group() as tasks:

            async def turn() -> None:
                ends.append((await port.run(session, "go")).stop)

            tasks.start_soon(turn)
            await port.heard({"speaking": MessageDelta, "asking": PermissionRequested}.get(when, ToolOutput))
            await port.interrupt(session)
        assert (await port.run(session, "and now?")).stop == "end"
    assert ends == ["interrupted"]
    if when == "speaking":
        assert [(cut.text, cut.complete) for cut in port.all(MessageAssistant)][:1] == [("one ", False)]
    else:
        assert status_of(port) in ("interrupted", "denied")


async def test_an_interrupt_before_the_first_step_counts(tmp_path: Path) -> None:
    port = RecordingPort()
    engine = ScriptedEngine(lambda turn: [Say(last_text(turn))])
    async with opened(engine, port, tmp_path) as session:

        class Early:
            async def run(self, turn: Turn) -> object:
                await session.interrupt(turn.id)
                return await session.run(turn)

        assert (await port.run(Early(), "hi")).stop == "interrupted"  # pyright: ignore[reportArgumentType]
    assert port.texts() == []


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_hanging_engine_ends_only_when_its_run_is_cancelled(tmp_path: Path, deaf: bool) -> None:
    hang = Hang(deaf=deaf)
    port = RecordingPort()
    async with (
        opened(ScriptedEngine([[hang]]), port, tmp_path) as session,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(port.run, session, "go")
        await hang.gate.reached()
        turn_id = port.turn_id
        assert turn_id is not None
        with anyio.move_on_after(0.05) as patience:
            await session.interrupt(turn_id)
        assert patience.cancelled_caught is deaf
        assert port.turn_id == turn_id
        tasks.cancel_scope.cancel()


async def test_failures_leave_the_session_usable(tmp_path: Path) -> None:
    port = RecordingPort()
    engine = ScriptedEngine(
        [[Fail(EngineError("busy", code="overloaded", http_status=529))], [Crash("half a")], [Say("fine")]]
    )
    async with opened(engine, port, tmp_path) as session:
        with pytest.raises(EngineError, match="busy"):
            await port.run(session, "one")
        with pytest.raises(EngineExited):
            await port.run(session, "two")
        await port.run(session, "three")
    assert port.texts() == ["fine"]


async def test_a_detached_use_gets_its_result_after_the_turn_and_asks_for_another(tmp_path: Path) -> None:
    gate = Gate()
    port = RecordingPort()
    engine = ScriptedEngine(
        [
            [UseTool("watch", detached=gate, result="it is built"), RequestTurn("background", gate)],
            [Say("built")],
        ]
    )
    async with opened(engine, port, tmp_path) as session:
        await port.run(session, "watch it")
        await gate.reached()
        assert (len(port.all(ToolDetached)), len(port.all(ToolResult))) == (1, 0)
        gate.open()
        await port.heard(ToolResult)
        assert await port.heard_request() == "background"
        await port.run(session, origin="background")
    assert port.texts() == ["built"]


async def test_leaving_the_session_pays_what_detached_uses_owe(tmp_path: Path) -> None:
    port = RecordingPort()
    async with opened(ScriptedEngine([[UseTool("watch", detached=Gate())]]), port, tmp_path) as session:
        await port.run(session, "watch it")
    assert status_of(port) == "interrupted"


async def test_what_was_said_is_known_natively_in_a_new_engine(tmp_path: Path) -> None:
    store = NativeStore(tmp_path / "store")
    recite = Say(" | ".join)
    first = RecordingPort()
    async with opened(ScriptedEngine([[Say("noted")]], native_store=store), first, tmp_path) as session:
        await first.run(session, "the word is plum")
    native_id = first.all(NativeUpdated)[0].native_id
    second = RecordingPort()
    engine = ScriptedEngine([[recite]], native_store=NativeStore(tmp_path / "store"))
    async with opened(engine, second, tmp_path, Resume(native_id=native_id)) as session:
        await second.run(session, "what is it?")
    assert second.texts() == ["human: the word is plum | assistant: noted | human: what is it?"]


async def test_an_id_seen_before_a_turn_ended_is_lost(tmp_path: Path) -> None:
    hang = Hang()
    port = RecordingPort()
    engine = ScriptedEngine([[hang]], native_store=NativeStore(tmp_path / "store"))
    async with opened(engine, port, tmp_path) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(port.run, session, "go")
        await hang.gate.reached()
        tasks.cancel_scope.cancel()
    start = Resume(native_id=port.all(NativeUpdated)[0].native_id)
    with pytest.raises(NativeSessionLost):
        async with opened(engine, RecordingPort(), tmp_path, start):
            pass


async def test_without_a_store_it_knows_the_history_alone(tmp_path: Path) -> None:
    first = RecordingPort()
    async with opened(ScriptedEngine([[Say("noted")]]), first, tmp_path) as session:
        await first.run(session, "plum")
    second = RecordingPort(first.history)
    async with opened(ScriptedEngine([[Say(" | ".join)]]), second, tmp_path) as session:
        await second.run(session, "what?")
    assert second.texts() == ["human: plum | assistant: noted | human: what?"]


async def test_plans_usage_questions_and_stop_reasons(tmp_path: Path) -> None:
    port = RecordingPort()
    question = AskPerson("go on?", plan=True, then=lambda answers: [Say(f"you said {answers}")])
    engine = ScriptedEngine([[Plan(("a", "b"), done=1), Usage(3, None), question, End("max_tokens")], [question]])
    async with opened(engine, port, tmp_path) as session:
        assert (await port.run(session, "go")).stop == "max_tokens"
        port.answers = no_answer
        await port.run(session, "go")
    assert port.texts() == ["you said ('yes',)", "you said None"]
    assert [entry.status for entry in port.all(PlanUpdated)[0].entries] == ["completed", "in_progress"]
    assert port.all(UsageUpdated)[0].output_tokens is None


async def test_a_slow_setting_and_a_refused_one(tmp_path: Path) -> None:
    gate = Gate()
    port = RecordingPort()
    engine = ScriptedEngine(apply_gate=gate, applied=SettingRefused("no such model"))
    refused: list[SettingRefused] = []
    async with opened(engine, port, tmp_path) as session, anyio.create_task_group() as tasks:

        async def change() -> None:
            try:
                await session.apply(SessionSettings(model="x"))
            except SettingRefused as error:
                refused.append(error)

        tasks.start_soon(change)
        await gate.reached()
        gate.open()
    assert (len(refused), engine.changes) == (1, [])


async def test_a_step_may_be_any_function_of_the_test(tmp_path: Path) -> None:
    port = RecordingPort()
    seen: list[str] = []

    async def look(_opening: Opening, turn: Turn) -> None:
        seen.append(turn.origin)

    async with opened(ScriptedEngine([[Do(look)]]), port, tmp_path) as session:
        await port.run(session, "go")
    assert seen == ["message"]


async def test_an_error_of_the_sessions_owner_leaves_the_session_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with opened(ScriptedEngine(), RecordingPort(), tmp_path):
            raise ZeroDivisionError
