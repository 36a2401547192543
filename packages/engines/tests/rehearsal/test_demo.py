"""The demo's scenes, played on the demo's project with real files and real commands."""

import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from enginehouse_engines.rehearsal import RehearsalEngine, create
from enginehouse_engines.rehearsal.demo import AFTER_PROMPT, DEMO, FIX_PROMPT, LONG_PROMPT, PROJECT_FILES
from enginehouse_protocol.content import content_text
from enginehouse_protocol.engine import Access, EngineHome, EngineSession, Fresh, Opening, Provider, Resume
from enginehouse_protocol.errors import EngineError, NativeSessionLost, SettingRefused
from enginehouse_protocol.events import (
    MessageAssistant,
    PlanUpdated,
    QuestionAsked,
    ToolOutput,
    ToolResult,
    ToolUse,
)
from enginehouse_protocol.permissions import Allow, Decision, Deny
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import MemoryHistory, RecordingPort, TempWorkspace, no_answer

pytestmark = pytest.mark.anyio


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, text in PROJECT_FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


@asynccontextmanager
async def opened(folder: Path, port: RecordingPort) -> AsyncGenerator[EngineSession]:
    """A session of a new engine: all it knows of earlier ones is the port's history."""
    workspace = TempWorkspace(folder)
    opening = Opening(
        session_id=port.history.session_id,
        roots=workspace.roots,
        start=Fresh(),
        settings=SessionSettings(mode="plan"),
        instructions="",
        access=Access(),
        port=port,
        workspace=workspace,
        history=port.history,
    )
    with anyio.fail_after(30):
        async with RehearsalEngine(pace_s=0) as engine, engine.open(opening) as session:
            yield session
    assert port.violations == []


def suite_passes(folder: Path) -> bool:
    command = [sys.executable, "-B", "-m", "unittest", "-q", "test_basket"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


async def interrupt_the_long_check(port: RecordingPort, session: EngineSession) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(port.run, session, LONG_PROMPT)
        await port.heard(ToolOutput, lambda output: "check 1" in output.text)
        await port.interrupt(session)


async def test_the_bug_is_found_planned_fixed_and_the_tests_really_pass(project: Path) -> None:
    port = RecordingPort()
    assert not suite_passes(project)
    async with opened(project, port) as session:
        assert (await port.run(session, FIX_PROMPT)).stop == "end"
    assert suite_passes(project)
    assert [(use.kind, result.status) for use, result in zip(port.all(ToolUse), port.all(ToolResult), strict=True)] == [
        ("read", "ok"),
        ("read", "ok"),
        ("execute", "error"),
        ("edit", "ok"),
        ("execute", "ok"),
    ]
    assert [question.kind for question in port.all(QuestionAsked)] == ["plan"]
    assert [entry.status for entry in port.all(PlanUpdated)[-1].entries] == ["completed"] * 3
    assert port.all(MessageAssistant)[-1].phase == "final"


async def test_the_edit_is_shown_before_it_is_asked_about_and_is_what_is_written(project: Path) -> None:
    port = RecordingPort()
    async with opened(project, port) as session:
        await port.run(session, FIX_PROMPT)
    edit = next(use for use in port.asked if use.kind == "edit")
    result = next(result for result in port.all(ToolResult) if result.call_id == edit.call_id)
    assert [change.path for change in edit.preview] == ["basket/total.py"]
    assert "+    return round(full - full * discount_percent / 100)" in edit.preview[0].diff
    assert result.changes == edit.preview


async def test_a_plan_nobody_approves_changes_nothing(project: Path) -> None:
    port = RecordingPort(answers=no_answer)
    async with opened(project, port) as session:
        await port.run(session, FIX_PROMPT)
    assert [use.kind for use in port.asked] == ["read", "read"]
    assert "not approved" in port.texts()[-1]


async def test_a_denied_edit_ends_the_scene_and_is_not_told_as_done(project: Path) -> None:
    async def no_edits(use: ToolUse) -> Decision:
        return Deny(reason="no") if use.kind == "edit" else Allow()

    port = RecordingPort(policy=no_edits)
    async with opened(project, port) as session:
        await port.run(session, FIX_PROMPT)
    assert port.all(ToolResult)[-1].status == "denied"
    assert "did not happen" in port.texts()[-1]
    assert not suite_passes(project)


async def test_an_edit_of_a_file_that_changed_while_it_was_asked_about_is_not_made(project: Path) -> None:
    file = project / "basket/total.py"

    async def save_and_allow(use: ToolUse) -> Decision:
        if use.kind == "edit":
            file.write_text(f"# mine\n{file.read_text()}")
        return Allow()

    before = file.read_text()
    port = RecordingPort(policy=save_and_allow)
    async with opened(project, port) as session:
        await port.run(session, FIX_PROMPT)
    assert "changed since this was asked" in content_text(port.all(ToolResult)[-1].content)
    assert file.read_text() == f"# mine\n{before}"


async def test_a_file_in_another_encoding_is_an_error_of_the_tool(project: Path) -> None:
    (project / "basket/total.py").write_bytes(b"# \xff\n" + (project / "basket/total.py").read_bytes())
    port = RecordingPort()
    async with opened(project, port) as session:
        assert (await port.run(session, FIX_PROMPT)).stop == "end"
    assert "not written in UTF-8" in content_text(port.all(ToolResult)[-1].content)


async def test_after_an_interrupt_nothing_is_begun_also_when_the_answer_is_yes(project: Path) -> None:
    port = RecordingPort()
    async with opened(project, port) as session:

        async def yes_but_stop(use: ToolUse) -> Decision:
            if use.kind == "edit":
                assert port.turn_id is not None
                await session.interrupt(port.turn_id)
            return Allow()

        port.policy = yes_but_stop
        assert (await port.run(session, FIX_PROMPT)).stop == "interrupted"
    assert port.all(ToolResult)[-1].status == "interrupted"
    assert not suite_passes(project)


async def test_an_interrupted_scene_is_remembered_by_a_new_engine(project: Path) -> None:
    first = RecordingPort()
    async with opened(project, first) as session:
        await first.run(session, FIX_PROMPT)
        await interrupt_the_long_check(first, session)
    cut = first.all(ToolResult)[-1]
    assert cut.status == "interrupted"
    assert content_text(cut.content).startswith("check 1 of 12")
    second = RecordingPort(MemoryHistory(events=tuple(first.history.events)))
    async with opened(project, second) as session:
        await second.run(session, AFTER_PROMPT)
    assert "was interrupted while `$ python3 -B long_check.py` was running" in second.texts()[0]
    assert "“check 1 of 12”" in second.texts()[0]
    assert "the tests pass" in second.texts()[-1]


async def test_without_an_interrupt_none_is_made_up(project: Path) -> None:
    port = RecordingPort()
    async with opened(project, port) as session:
        await port.run(session, FIX_PROMPT)
        await port.run(session, AFTER_PROMPT)
    assert "nothing was interrupted" in str(port.all(MessageAssistant)[-2].text)


async def test_go_on_plays_the_rest_of_a_cut_scene_and_no_step_twice(project: Path) -> None:
    first = RecordingPort()
    async with opened(project, first) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run, session, FIX_PROMPT)
        await first.heard(ToolUse, lambda use: use.kind == "execute")
        tasks.cancel_scope.cancel()  # as when the process dies: no answer, no end
    second = RecordingPort(MemoryHistory(events=tuple(first.history.events)))
    async with opened(project, second) as session:
        await second.run(session, "Go on.")
        assert [use.kind for use in second.asked] == ["execute", "edit", "execute"]
        await second.run(session, "go on")
    assert suite_passes(project)
    assert "rehearsal engine" in second.texts()[-1], "the scene is over: there is nothing to go on with"


async def test_words_that_are_not_in_the_script_get_an_honest_answer(project: Path) -> None:
    port = RecordingPort()
    async with opened(project, port) as session:
        await port.run(session, "Write me a poem\nabout plums")
    text = port.texts()[0]
    assert "I cannot answer “Write me a poem about plums”" in text
    assert "no model" in text
    assert "OPENAI_API_KEY" in text
    assert all(prompt in text for prompt in DEMO.prompts)
    assert port.asked == []


async def test_without_its_project_it_says_so(tmp_path: Path) -> None:
    port = RecordingPort()
    async with opened(tmp_path / "elsewhere", port) as session:
        await port.run(session, FIX_PROMPT)
    assert "enginehouse demo" in port.texts()[-1]
    assert [use.kind for use in port.asked] == ["read"]


async def test_there_is_no_model_to_choose(project: Path) -> None:
    async with opened(project, RecordingPort()) as session:
        assert await session.apply(SessionSettings(mode="default")) == "now"
        with pytest.raises(SettingRefused, match="no model"):
            await session.apply(SessionSettings(model="gpt"))


async def test_it_is_made_from_a_home_and_has_no_sessions_of_its_own(project: Path, tmp_path: Path) -> None:
    engine = create(EngineHome(state=tmp_path / "state", kept=list, log=logging.getLogger("test")))
    description = await engine.describe(Access())
    assert description.problem is None
    assert "no model" in description.title
    assert not (tmp_path / "state").exists()
    port = RecordingPort()
    workspace = TempWorkspace(project)
    opening = Opening(
        session_id=port.history.session_id,
        roots=workspace.roots,
        start=Resume(native_id="x"),
        settings=SessionSettings(),
        instructions="",
        access=Access(),
        port=port,
        workspace=workspace,
        history=port.history,
    )
    with pytest.raises(NativeSessionLost):
        async with engine.open(opening):
            pytest.fail("it opened")


async def test_options_follow_their_published_schema() -> None:
    engine = RehearsalEngine()
    wrong = Access(provider=Provider(name="mine", options={"pace_s": 99}))
    description = await engine.describe(wrong)
    assert "pace_s" in str(description.problem)
    assert "pace_s" in msgspec.json.encode(description.options_schema).decode()
    with pytest.raises(EngineError, match="mine"):
        engine._pace(wrong)
