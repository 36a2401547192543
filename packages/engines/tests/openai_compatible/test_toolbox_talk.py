"""The tools that speak to the person, and what becomes of calls that are not understood: through a whole session."""

from pathlib import Path

import pytest

from enginehouse_engines.openai_compatible.toolbox.talk import AskUser
from enginehouse_protocol.content import FileChange, content_text
from enginehouse_protocol.events import PlanEntry, PlanUpdated, QuestionAsked, QuestionOption, ToolResult, ToolUse
from enginehouse_protocol.testing import RecordingPort, TempWorkspace
from enginehouse_protocol.testing.answers import deny
from model_server import ChatRequest, call, reply
from model_server.script import Answer

from .conftest import Live, Start
from .listening import Listener, run

pytestmark = pytest.mark.anyio

NOBODY_ALLOWS = deny("nothing is allowed here")


async def one_call(it: Live, port: RecordingPort) -> tuple[str, str]:
    """Status and text of the only result of one turn."""
    assert (await port.run(it.session, "go")).stop == "end"
    (result,) = port.all(ToolResult)
    return result.status, content_text(result.content)


async def test_a_plan_is_shown_and_nobody_has_to_allow_it(live: Start) -> None:
    entries = [{"text": "look", "status": "completed"}, {"text": "change", "status": "in_progress"}]
    async with live([reply(calls=[call("todo", {"entries": entries})]), reply("ok")]) as it:
        it.port.policy = NOBODY_ALLOWS
        assert await one_call(it, it.port) == ("ok", "Noted.")
        (shown,) = it.port.all(PlanUpdated)
        assert shown.entries == (
            PlanEntry(text="look", status="completed"),
            PlanEntry(text="change", status="in_progress"),
        )
        (use,) = it.port.all(ToolUse)
        assert (use.kind, use.title, use.paths, use.preview) == ("other", "plan: 1 of 2 done", (), ())
        assert it.port.asked == []


async def test_a_question_reaches_the_person_and_the_answer_the_model(live: Start) -> None:
    question = {
        "question": "Which database?",
        "options": [{"label": "SQLite", "description": "one file"}, {"label": "PostgreSQL"}],
        "multiple": True,
        "free_text": False,
    }
    async with live([reply(calls=[call("ask_user", question)]), reply("ok")]) as it:
        it.port.policy = NOBODY_ALLOWS

        async def both(_question: QuestionAsked) -> tuple[str, ...]:
            return ("SQLite", "PostgreSQL")

        it.port.answers = both
        assert await one_call(it, it.port) == ("ok", "The person answered:\n- SQLite\n- PostgreSQL")
        (asked,) = it.port.all(QuestionAsked)
        (use,) = it.port.all(ToolUse)
        assert (asked.text, asked.kind, asked.multiple, asked.free_text) == ("Which database?", "choice", True, False)
        assert asked.options == (
            QuestionOption(label="SQLite", description="one file"),
            QuestionOption(label="PostgreSQL"),
        )
        assert asked.call_id == use.call_id
        assert use.title == "ask: Which database?"
        assert "PostgreSQL" in it.sent()[-1]["content"]


async def test_a_question_nobody_answers_says_how_to_go_on(live: Start) -> None:
    async with live([reply(calls=[call("ask_user", {"question": "Really?"})]), reply("ok")]) as it:

        async def nobody(_question: QuestionAsked) -> None:
            return None

        it.port.answers = nobody
        status, text = await one_call(it, it.port)
        assert (status, text.startswith("Nobody answered.")) == ("error", True)


async def test_an_interrupted_question_ends_the_turn(live: Start) -> None:
    async with live([reply(calls=[call("ask_user", {"question": "Really?"})]), reply("never")]) as it:

        async def interrupting(_question: QuestionAsked) -> None:
            await it.port.interrupt(it.session)

        it.port.answers = interrupting
        assert (await it.port.run(it.session, "go")).stop == "interrupted"
        assert [result.status for result in it.port.all(ToolResult)] == ["interrupted"]


async def test_one_answer_is_one_line_of_free_text(tmp_path: Path) -> None:
    listener = Listener(answers=("call it plum",))
    outcome = await AskUser().plan({"question": "A name?"}).run(TempWorkspace(tmp_path / "project"), listener)
    assert outcome.text == "The person answered: call it plum"
    assert listener.questions == [("A name?", (), False, True)]


@pytest.mark.parametrize(
    "name, arguments, why",
    [
        ("read_file", '{"path": 3}', "Expected `str`, got `int` - at `$.path`"),
        ("read_file", "{}", "missing required field `path`"),
        ("read_file", '{"path": "a", "lines": 3}', "unknown field `lines`"),
        ("read_file", '{"path": "a"', "not valid JSON"),
        ("read_file", "[]", "must be a JSON object"),
        ("edit_file", '{"path": "a", "old_string": "x", "new_string": "y"}', "unknown field `old_string`"),
        ("edit_file", '{"path": "a", "edits": [{"old": "x"}]}', "missing required field `new` - at `$.edits[0]`"),
        ("bash", '{"command": ["ls"]}', "Expected `str`, got `array` - at `$.command`"),
        ("todo", '{"entries": "look, change"}', "Expected `array`, got `str` - at `$.entries`"),
    ],
)
async def test_a_call_that_is_not_understood_is_answered_with_what_is_wrong_and_what_is_wanted(
    live: Start, name: str, arguments: str, why: str
) -> None:
    async with live([reply(calls=[call(name, arguments)]), reply("ok")]) as it:
        status, text = await one_call(it, it.port)
        assert status == "error"
        assert text.startswith("This call was not run: ")
        assert why in text
        assert f". {name} takes {{" in text
        assert it.port.asked == []


async def test_moves_and_deletions_are_asked_as_edits_with_all_their_paths_and_a_preview(live: Start) -> None:
    script = [
        reply(calls=[call("move_file", {"path": "a.txt", "to": "b.txt"}), call("delete_file", {"path": "c.txt"})]),
        reply("ok"),
    ]
    async with live(script) as it:
        (it.workspace.directory / "a.txt").write_text("a\n")
        (it.workspace.directory / "c.txt").write_text("c\n")
        assert (await it.port.run(it.session, "go")).stop == "end"
        move, delete = it.port.asked
        assert (move.kind, move.title, move.paths) == ("edit", "move a.txt → b.txt", ("a.txt", "b.txt"))
        assert [change.change for change in move.preview] == ["deleted", "created"]
        assert (delete.kind, delete.title, delete.paths) == ("edit", "delete c.txt", ("c.txt",))
        assert delete.preview == (FileChange(path="c.txt", change="deleted", diff="@@ -1 +0,0 @@\n-c\n"),)
        assert [path.name for path in it.workspace.directory.iterdir()] == ["b.txt"]


async def test_a_background_command_is_asked_as_any_other_and_its_looks_are_not(live: Start) -> None:
    def script(request: ChatRequest) -> Answer:
        match request.tool_results:
            case []:
                return reply(calls=[call("bash", {"command": "echo up; sleep 60", "background": True})])
            case [(_, text)]:
                return reply(calls=[call("bash_stop", {"id": text.split()[5].rstrip(".")})])
            case _:
                return reply("ok")

    async with live(script) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        (asked,) = it.port.asked
        assert (asked.kind, asked.title) == ("execute", "$ echo up; sleep 60 (in the background)")
        assert asked.input == {"command": "echo up; sleep 60", "background": True}
        texts = [content_text(result.content) for result in it.port.all(ToolResult)]
        assert texts[0].endswith("\nup\n[still running]")
        assert texts[1].endswith("[stopped]")


async def test_a_background_command_that_is_not_allowed_does_not_start(live: Start) -> None:
    script = [reply(calls=[call("bash", {"command": "touch ran", "background": True})]), reply("ok")]
    async with live(script) as it:
        it.port.policy = NOBODY_ALLOWS
        assert (await one_call(it, it.port))[0] == "denied"
        assert it.workspace.background == ()
        assert (await run(it.workspace, "list_dir")).text == "[the folder is empty]"


async def test_the_first_request_is_no_larger_than_it_has_to_be(live: Start) -> None:
    """Every byte of it is sent again with every request; the smallest peer sends 5,700 in its first."""
    async with live(reply("hi")) as it:
        await it.port.run(it.session, "hello")
        assert len(it.server.chats[0].body) <= 7_700
