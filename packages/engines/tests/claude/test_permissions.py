"""Every use is asked about, whatever the person's own Claude settings say, and answers arrive as they were given."""

from pathlib import Path
from typing import Any

import pytest

from enginehouse_engines.claude.invocation import TOOLS_OFF
from enginehouse_protocol.content import content_text
from enginehouse_protocol.events import PermissionRequested, QuestionAnswered, QuestionAsked, ToolResult, ToolUse
from enginehouse_protocol.permissions import Decision
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import RecordingPort
from enginehouse_protocol.testing.answers import deny, edit, no_answer
from model_server import Answer, ChatRequest, call, reply

from .conftest import MODEL, Live, Opener, Setup

pytestmark = pytest.mark.anyio

REASON = "plums only,\nsays «Ada»"
WANTED_TOOLS = {
    "AskUserQuestion", "Bash", "Edit", "ExitPlanMode", "NotebookEdit", "Read", "ReportFindings", "Skill", "Task",
    "TaskCreate", "TaskGet", "TaskList", "TaskStop", "TaskUpdate", "ToolSearch", "WebFetch", "WebSearch", "Write",
}  # fmt: skip
"""What the CLI of this version offers besides what we switched off. A new name here is a new tool to think about."""
QUESTION = {
    "questions": [
        {
            "question": "Which fruit?",
            "header": "Fruit",
            "options": [{"label": "plum", "description": "blue"}, {"label": "pear", "description": "green"}],
            "multiSelect": False,
        }
    ]
}


def using(*steps: tuple[str, dict[str, Any]], after: str = "done") -> list[Answer]:
    """One use a reply, then a last word."""
    return [*(reply(calls=[call(name, given)]) for name, given in steps), reply(after)]


def results(it: Live) -> list[tuple[str, str]]:
    return [(result.status, content_text(result.content)) for result in it.port.all(ToolResult)]


async def test_the_persons_allow_rules_modes_hooks_and_disable_all_hooks_change_nothing(
    live: Opener, tmp_path: Path
) -> None:
    """Trap: a hook that answers nothing lets allow rules run everything unasked."""
    hook = tmp_path / "allow.sh"
    hook.write_text(
        '#!/bin/sh\necho \'{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"allow"}}\'\n'
    )
    hook.chmod(0o700)
    generous = {
        "permissions": {"allow": ["Bash", "Write", "Read", "Bash(*)"], "defaultMode": "acceptEdits"},
        "hooks": {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": str(hook)}]}]},
    }
    steps = (
        ("Bash", {"command": "ls"}),
        ("Write", {"file_path": "a.txt", "content": "x"}),
        ("Read", {"file_path": "a.txt"}),
        ("Bash", {"command": "touch b"}),
    )
    for settings in (generous, generous | {"disableAllHooks": True}):
        port = RecordingPort(policy=deny(REASON))
        async with live(using(*steps), Setup(user_settings=settings, port=port)) as it:
            assert (await port.run(it.session, "go")).stop == "end"
            assert [use.name for use in port.asked] == [name for name, _ in steps]
            assert results(it) == [("denied", REASON)] * len(steps)
            assert list(it.workspace.directory.iterdir()) == []


async def test_a_deny_reaches_the_model_word_for_word(live: Opener) -> None:
    """Trap: the API request appends a reminder to every result, so the wire begins with the words."""
    port = RecordingPort(policy=deny(REASON))
    async with live(using(("Bash", {"command": "ls"})), Setup(port=port)) as it:
        await port.run(it.session, "go")
        told = [
            block for block in (it.server.chats[-1].json or {})["messages"][-1]["content"] if "tool_use_id" in block
        ]
    assert str(told[0]["content"]).startswith(REASON)
    assert results(it) == [("denied", REASON)]


async def test_what_is_asked_about_is_what_runs_with_its_path_made_absolute(live: Opener) -> None:
    """Trap: the input the CLI asks about differs from the one it showed."""
    async with live(using(("Write", {"file_path": "a.txt", "content": "x"}))) as it:
        await it.port.run(it.session, "go")
        assert it.port.all(ToolUse)[0].input["file_path"] == "a.txt"
        assert it.port.asked[0].input["file_path"] == str(it.workspace.directory / "a.txt")
        assert it.port.asked[0].call_id == it.port.all(ToolUse)[0].call_id


async def test_an_edited_write_writes_what_the_person_wrote(live: Opener) -> None:
    port = RecordingPort(policy=edit(content="pear"))
    async with live(using(("Write", {"file_path": "a.txt", "content": "plum"})), Setup(port=port)) as it:
        await port.run(it.session, "go")
        assert (it.workspace.directory / "a.txt").read_text() == "pear"
    assert [status for status, _ in results(it)] == ["ok"]


async def test_the_models_question_is_a_question_and_its_answer_the_chosen_label(live: Opener) -> None:
    async def second(question: QuestionAsked) -> tuple[str, ...] | None:
        return (question.options[1].label,)

    port = RecordingPort(answers=second)
    async with live(using(("AskUserQuestion", QUESTION)), Setup(port=port)) as it:
        assert (await port.run(it.session, "go")).stop == "end"
        asked = port.all(QuestionAsked)[0]
        assert (asked.text, asked.kind, [option.label for option in asked.options]) == (
            "Which fruit?",
            "choice",
            ["plum", "pear"],
        )
        assert asked.call_id == port.all(ToolUse)[0].call_id
        assert port.all(PermissionRequested) == []
    assert [status for status, _ in results(it)] == ["ok"]
    assert "pear" in results(it)[0][1]


async def test_a_question_nobody_answers_is_denied(live: Opener) -> None:
    port = RecordingPort(answers=no_answer)
    async with live(using(("AskUserQuestion", QUESTION)), Setup(port=port)) as it:
        assert (await port.run(it.session, "go")).stop == "end"
    assert [status for status, _ in results(it)] == ["denied"]
    assert [answered.answers for answered in port.all(QuestionAnswered)] == [None]


PLAN = {"plan": "1. pick plums\n2. eat them"}


async def test_an_approved_plan_leaves_plan_mode_and_a_refused_one_stays_in_it(live: Opener) -> None:
    """Traps: the plan is only in the use as it was written, and an approved one switches the CLI's mode by itself."""
    answers: list[tuple[str, ...]] = [("Keep planning", "more pears, please"), ("Approve the plan",)]

    async def in_turn(_question: QuestionAsked) -> tuple[str, ...] | None:
        return answers.pop(0)

    port = RecordingPort(answers=in_turn)
    planning = SessionSettings(model=MODEL, mode="plan")
    write = ("Write", {"file_path": "a.txt", "content": "x"})
    script = using(("ExitPlanMode", PLAN), ("ExitPlanMode", PLAN), write)
    async with live(script, Setup(settings=planning, port=port)) as it:
        assert (await port.run(it.session, "go")).stop == "end"
        assert [(asked.kind, asked.text) for asked in port.all(QuestionAsked)] == [("plan", PLAN["plan"])] * 2
        assert [status for status, _ in results(it)] == ["denied", "ok", "ok"]
        assert "more pears, please" in results(it)[0][1]
        assert [use.name for use in port.asked] == ["Write"]
        assert (it.workspace.directory / "a.txt").exists()


async def test_plan_mode_is_switched_with_ours_while_the_session_lives(live: Opener) -> None:
    """Trap: outside its own plan mode the CLI refuses a plan, and in it everything is still asked about."""
    script = using(("ExitPlanMode", PLAN), ("Bash", {"command": "ls"}))
    async with live(script) as it:
        assert await it.session.apply(SessionSettings(model=MODEL, mode="plan")) == "now"
        await it.port.run(it.session, "go")
        assert [status for status, _ in results(it)] == ["ok", "ok"]
        assert await it.session.apply(SessionSettings(model=MODEL, mode="default")) == "now"
    assert [use.name for use in it.port.asked] == ["Bash"]


async def test_a_subagents_use_is_asked_about_below_the_use_that_started_it(live: Opener) -> None:
    def answer(request: ChatRequest) -> Answer:
        if "look at it" in request.first_user_text or "look at it" in str(request.messages[0]):
            return reply("looked") if request.tool_results else reply(calls=[call("Bash", {"command": "echo sub"})])
        if request.steps_taken:
            return reply("done")
        task = {"description": "look", "prompt": "look at it", "subagent_type": "general-purpose"}
        return reply(calls=[call("Agent", task | {"run_in_background": False})])

    async with live(answer) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        agent, bash = it.port.all(ToolUse)
        assert (agent.kind, bash.parent_call_id) == ("delegate", agent.call_id)
        assert [use.name for use in it.port.asked] == [agent.name, "Bash"]
        assert {status for status, _ in results(it)} == {"ok"}


async def test_tools_that_start_work_or_change_modes_are_not_offered_and_no_new_one_is(live: Opener) -> None:
    """The drift test: a CLI that offers another tool fails here before it surprises anybody."""
    offered: list[set[str]] = []

    async with live(reply("hi")) as it:
        session: Any = it.session
        heard = session._translator.feed

        def feed(frame: bytes) -> Any:
            said = heard(frame)
            offered.extend(set(each.tools) for each in said if type(each).__name__ == "ToolsOffered")
            return said

        session._translator.feed = feed
        await it.port.run(it.session, "go")
    assert offered[0] & set(TOOLS_OFF) == set()
    assert offered[0] == WANTED_TOOLS


async def test_a_slash_and_an_at_in_a_prompt_are_text(live: Opener) -> None:
    """Trap: without `client_composed`, /clear changes the session and @file reads it unasked."""
    async with live(reply("fine")) as it:
        (it.workspace.directory / "secret.txt").write_text("the plum is blue")
        for words in ("/clear", "@secret.txt what is in it?", "/cost"):
            assert (await it.port.run(it.session, words)).stop == "end"
            assert words in it.said()
        assert "the plum is blue" not in it.said()
        assert "/clear" in it.said()
    assert it.port.asked == []


async def test_a_decision_that_fails_runs_nothing(live: Opener) -> None:
    async def broken(_use: ToolUse) -> Decision:
        raise ValueError("a policy with a bug")

    port = RecordingPort(policy=broken)
    async with live(using(("Bash", {"command": "touch ran"})), Setup(port=port)) as it:
        assert (await port.run(it.session, "go")).stop == "end"
        assert not (it.workspace.directory / "ran").exists()
    assert [status for status, _ in results(it)] in (["error"], ["denied"])
