"""Every use gets one result: from the CLI, or made up where the CLI leaves it open."""

import base64
from typing import Any

import pytest

from enginehouse_engines.claude.saying import NotUnderstood
from enginehouse_protocol.content import MAX_IMAGE_BYTES, FileChange, Image, Text
from enginehouse_protocol.events import PlanEntry, PlanUpdated, ToolDetached, ToolResult, ToolUse
from enginehouse_protocol.permissions import Allow, Deny, Expired

from .replaying import Replay, lines_of, outline, replay, result_texts

DECIDED = {"toolu_0005_1": Deny(reason="no «because»\nreally"), "toolu_0006_0": Allow(input={"command": "echo EDITED"})}


def test_uses_and_their_results_ok_denied_edited_failed_and_never_run() -> None:
    assert [line for line in outline(replay("tools", DECIDED)) if not line.startswith(("delta", "message"))] == [
        "use c1 read 'read a.txt'",
        "result c1 ok",
        "use c2 edit 'edit a.txt'",
        "result c2 ok",
        "use c3 edit 'write b.txt'",
        "use c4 execute '$ rm a.txt'",
        "result c3 ok",
        "result c4 denied",
        "use c5 execute '$ echo orig'",
        "result c5 ok",
        "use c6 other 'Nope'",
        "result c6 error",
        "use c7 execute 'Bash'",
        "result c7 error",
        "use c8 edit 'write b.txt'",
        "result c8 ok",
        "use c9 execute '$ echo out; echo err >&2; exit 3'",
        "result c9 error",
        "use c10 fetch 'fetch http://127.0.0.1:1/'",
        "result c10 error",
        "use c11 other 'plan: do a'",
        "use c12 other 'plan: do b'",
        "result c11 ok",
        "plan do a pending",
        "result c12 ok",
        "plan do a pending, do b pending",
        "use c13 other 'TaskUpdate'",
        "result c13 ok",
        "plan do a in_progress, do b pending",
        "use c14 other 'TaskUpdate'",
        "result c14 ok",
        "plan do a in_progress",
        "use c15 other 'TaskList'",
        "result c15 ok",
        "use c16 other 'Which?'",
        "result c16 ok",
        "end end",
    ]


def test_a_denial_reaches_the_result_letter_for_letter() -> None:
    played = replay("tools", DECIDED)
    (denied,) = [result for result in played.all(ToolResult) if result.status == "denied"]
    assert denied.content == (Text(text="no «because»\nreally"),)


def test_an_edited_use_shows_what_was_asked_for_and_gives_what_ran() -> None:
    played = replay("tools", DECIDED)
    (use,) = [use for use in played.all(ToolUse) if use.provider_call_id == "toolu_0006_0"]
    (result,) = [result for result in played.all(ToolResult) if result.call_id == use.call_id]
    assert (use.input, result.content) == ({"command": "echo orig"}, (Text(text="EDITED"),))


def test_the_argument_text_is_kept_as_it_was_received() -> None:
    """Also where the CLI could not read it, and where it added what was not said."""
    uses = {use.provider_call_id: use for use in replay("tools").all(ToolUse)}
    assert uses["toolu_0008_0"].arguments == '{"command": "ls'
    assert uses["toolu_0008_0"].input == {"__unparsedToolInput": {"raw": '{"command": "ls', "len": 15}}
    assert "replace_all" in uses["toolu_0004_0"].input
    assert "replace_all" not in str(uses["toolu_0004_0"].arguments)


def test_a_use_carries_its_reply_the_providers_id_and_the_paths_as_they_stand_in_the_input() -> None:
    use = replay("tools").all(ToolUse)[0]
    assert use.reply_id is not None
    assert (use.provider_call_id, use.paths) == ("toolu_0003_1", ("/ws/a.txt",))


def test_what_a_tool_changed_is_told_by_its_result() -> None:
    played = replay("tools")
    changes = [result.changes for result in played.all(ToolResult) if result.changes]
    assert changes == [
        (FileChange(path="/ws/a.txt", change="modified", diff="@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"),),
        (FileChange(path="/ws/b.txt", change="created", diff="@@ -0,0 +1,2 @@\n+x\n+y\n"),),
        (FileChange(path="/ws/b.txt", change="modified", diff="@@ -1,2 +1,1 @@\n-x\n-y\n+z\n"),),
    ]


def test_what_a_tool_would_change_is_shown_before_it_runs() -> None:
    uses = {use.provider_call_id: use for use in replay("tools").all(ToolUse)}
    edit, write = uses["toolu_0004_0"].preview, uses["toolu_0005_0"].preview
    assert [(change.path, change.change) for change in (*edit, *write)] == [
        ("/ws/a.txt", "modified"),
        ("/ws/b.txt", "modified"),
    ]
    assert "-two" in edit[0].diff
    assert "+2" in edit[0].diff
    assert "+x\n+y\n" in write[0].diff


def test_a_refusal_of_the_clis_own_is_a_denial() -> None:
    played = _one_use("Bash", {"command": "rm x"})
    played.frame({"type": "system", "subtype": "permission_denied", "tool_use_id": "toolu_1"})
    played.frame(_result("toolu_1", "Permission to use Bash has been denied", is_error=True))
    assert [result.status for result in played.all(ToolResult)] == ["denied"]


def test_a_request_nobody_answered_is_a_denial_but_in_an_interrupt_it_is_interrupted() -> None:
    for interrupting, status in ((False, "denied"), (True, "interrupted")):
        played = _one_use("Bash", {"command": "rm x"})
        played.translator.decided("toolu_1", Expired(reason="nobody answered"))
        if interrupting:
            played.take(played.translator.interrupted())
        played.frame(_result("toolu_1", "nobody answered", is_error=True))
        assert [result.status for result in played.all(ToolResult)] == [status]


def test_the_cli_asks_about_another_input_than_it_showed() -> None:
    played = _one_use("Read", {"file_path": "rel.txt"})
    shown = played.all(ToolUse)[0]
    asked = played.translator.asked("toolu_1", "Read", {"file_path": "/ws/sub/rel.txt"})
    assert asked is not None
    assert (asked.call_id, asked.title, asked.paths) == (shown.call_id, "read sub/rel.txt", ("/ws/sub/rel.txt",))
    assert played.translator.asked("toolu_1", "Read", {"file_path": "rel.txt"}) == shown


def test_a_question_about_a_use_that_is_not_known_yet_or_no_longer_has_no_answer() -> None:
    played = _one_use("Read", {"file_path": "a"})
    assert played.translator.asked("toolu_2", "Read", {"file_path": "a"}) is None
    played.frame(_result("toolu_1", "text"))
    assert played.translator.asked("toolu_1", "Read", {"file_path": "a"}) is None


# --- interrupted, killed, closed ---


def test_an_interrupt_ends_the_running_tool_and_leaves_the_finished_one() -> None:
    played = replay("interrupted_while_a_tool_runs")
    assert outline(played) == [
        "use c1 execute '$ echo s; sleep 29'",
        "use c2 execute '$ echo second'",
        "result c2 ok",
        "result c1 interrupted",
        "end interrupted",
    ]


def test_an_interrupt_while_a_request_is_pending_gives_one_interrupted_result() -> None:
    assert outline(replay("interrupted_while_asking")) == [
        "use c1 execute '$ touch x'",
        "result c1 interrupted",
        "end interrupted",
    ]


def test_an_error_from_before_the_interrupt_stays_an_error() -> None:
    played = _one_use("Bash", {"command": "false"})
    played.frame(_result("toolu_1", "Exit code 1", is_error=True))
    played.take(played.translator.interrupted())
    assert [result.status for result in played.all(ToolResult)] == ["error"]


def test_the_open_tool_of_an_interrupted_subagent_gets_its_result_at_the_end_of_the_turn() -> None:
    """The CLI answers for the subagent and forgets what ran below it."""
    assert outline(replay("interrupted_subagent"))[:5] == [
        "use c1 delegate 'delegate to rev: d'",
        "use c2 execute '$ sleep 29' below c1",
        "result c1 interrupted",
        "result c2 interrupted below c1",
        "end interrupted",
    ]


def test_what_ran_when_the_process_died_is_unknown() -> None:
    assert outline(replay("killed_while_a_tool_runs"))[:5] == [
        "use c1 execute '$ sleep 20'",
        "use c2 execute '$ echo second'",
        "result c2 ok",
        "result c1 unknown",
        "failed engine.exited",
    ]


def test_a_process_that_had_to_be_killed_for_an_interrupt_leaves_an_interrupted_turn() -> None:
    played = _one_use("Bash", {"command": "sleep 9"})
    played.take(played.translator.interrupted())
    played.take(played.translator.died("killed"))
    assert outline(played)[-2:] == ["result c1 interrupted", "end interrupted"]


def test_a_turn_that_ends_with_an_open_use_closes_it() -> None:
    played = _one_use("Bash", {"command": "true"})
    played.frame({"type": "result", "subtype": "success", "user_message_uuid": "p"})
    assert outline(played)[-2:] == ["result c1 unknown", "end end"]


def test_a_result_that_comes_after_a_made_up_one_is_dropped() -> None:
    played = _one_use("Bash", {"command": "true"})
    played.frame({"type": "result", "subtype": "success", "user_message_uuid": "p"})
    late = _result("toolu_1", "done after all")
    assert played.frame(late) == [NotUnderstood(what="a result nobody waits for", data=late["message"]["content"][0])]


# --- the background ---


def test_a_background_command_is_detached_and_its_result_is_owed() -> None:
    played = replay("background_command")
    assert outline(played) == [
        "use c1 execute '$ sleep 2; echo BG (in the background)'",
        "detached c1",
        "delta m1 'started'",
        "message m1 'started'",
        "end end",
        "result c1 ok",
        "wants task-notification",
        "delta m2 'reac'",
        "delta m2 'ting'",
        "message m2 'reacting'",
        "end end of its own turn",
    ]
    assert result_texts(played) == ['Background command "sleep 2; echo BG" completed (exit code 0)']


@pytest.mark.parametrize(
    "name, status",
    [("background_command_fails", "error"), ("background_command_stopped", "interrupted")],
)
def test_how_a_background_command_ended_is_its_result(name: str, status: str) -> None:
    assert [result.status for result in replay(name).all(ToolResult)] == [status]


def test_a_command_the_cli_moved_to_the_background_is_detached_too() -> None:
    played = replay("command_moved_to_the_background")
    assert len(played.all(ToolDetached)) == 1
    assert [result.status for result in played.all(ToolResult)] == ["ok"]


def test_what_the_cli_still_runs_when_the_session_closes_is_unknown() -> None:
    played = Replay()
    for line in lines_of("background_command"):
        played.line(line)
        if played.ends:
            break
    assert [use.name for use in played.open_uses] == ["Bash"]
    played.take(played.translator.closing())
    assert [result.status for result in played.all(ToolResult)] == ["unknown"]


def test_tools_of_a_background_subagent_are_not_answered_at_the_end_of_its_parents_turn() -> None:
    played = replay("background_subagent")
    assert [line for line in outline(played) if not line.startswith(("delta", "message"))] == [
        "use c1 delegate 'delegate to rev: d'",
        "detached c1",
        "use c2 execute '$ sleep 2; echo sub' below c1",
        "end end",
        "result c2 ok below c1",
        "result c1 ok",
        "wants task-notification",
        "end end of its own turn",
    ]
    assert result_texts(played) == ["sub", "sub done"]


def test_an_interrupt_ends_a_background_subagent_with_its_tool_and_each_has_one_result() -> None:
    """The tool's own result may still come: then it is too late."""
    played = replay("interrupted_background_subagent")
    results = [line for line in outline(played) if line.startswith("result")]
    assert results == ["result c2 interrupted below c1", "result c1 interrupted"]
    assert [each.what for each in played.said if isinstance(each, NotUnderstood)] == ["a result nobody waits for"]


def test_a_task_in_the_foreground_is_answered_by_its_result_alone() -> None:
    played = replay("subagent")
    assert played.all(ToolDetached) == []
    assert [result.status for result in played.all(ToolResult)] == ["ok", "ok"]


# --- plans ---


def test_a_todo_list_is_the_plan_once_the_cli_took_it() -> None:
    todos = [{"content": "a", "status": "completed", "activeForm": "doing a"}, {"content": "b", "status": "pending"}]
    played = _one_use("TodoWrite", {"todos": todos})
    assert played.all(PlanUpdated) == []
    played.frame(_result("toolu_1", "Todos have been modified"))
    assert played.all(PlanUpdated) == [
        PlanUpdated(entries=(PlanEntry(text="a", status="completed"), PlanEntry(text="b", status="pending")))
    ]
    assert played.all(ToolUse)[0].title == "plan: 1 of 2 done"


def test_a_todo_list_the_cli_refused_changes_no_plan() -> None:
    played = _one_use("TodoWrite", {"todos": [{"content": "a", "status": "pending"}]})
    played.frame(_result("toolu_1", "No such tool available: TodoWrite", is_error=True))
    assert played.all(PlanUpdated) == []


# --- what a result is made of ---


def test_an_image_in_a_result_is_handed_in_and_other_parts_are_named() -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(16)
    played = _one_use("mcp__web__shot", {})
    content = [{"type": "text", "text": "here"}, _image(png, "image/jpeg"), {"type": "hologram"}]
    played.frame(_result("toolu_1", content))
    assert played.all(ToolUse)[0].title == "shot (web)"
    assert played.all(ToolResult)[0].content == (
        Text(text="here"),
        Image(media_type="image/png", data=png),  # what its bytes say, not what the tool says
        Text(text="[hologram]"),
    )


@pytest.mark.parametrize(
    "data", [b"no image at all", b"\x89PNG\r\n\x1a\n" + bytes(MAX_IMAGE_BYTES)], ids=["no image", "too large"]
)
def test_an_image_core_would_refuse_is_only_named(data: bytes) -> None:
    """A refused result would leave its use open for ever."""
    played = _one_use("mcp__web__shot", {})
    played.frame(_result("toolu_1", [_image(data, "image/png")]))
    assert played.all(ToolResult)[0].content == (Text(text="[image]"),)


@pytest.mark.parametrize(
    "name, given, kind, title",
    [
        ("Grep", {"pattern": "x y", "glob": "*.py"}, "search", "search 'x y' (*.py)"),
        ("Grep", {"pattern": "x", "path": "/ws/src"}, "search", "search 'x' in src"),
        ("Glob", {"pattern": "**/*.md"}, "search", "find **/*.md"),
        ("Read", {"file_path": "/ws/../etc/passwd"}, "read", "read /ws/../etc/passwd"),
        ("Write", {"file_path": "/wsx/a"}, "edit", "write /wsx/a"),
        ("Bash", {"command": "make\nmake test"}, "execute", "$ make…"),
        ("Bash", {"command": 7}, "execute", "Bash"),
        ("WebSearch", {"query": "news"}, "fetch", "search the web for 'news'"),
        ("Agent", {"prompt": "look"}, "delegate", "delegate to a subagent: look"),
        ("Workflow", {}, "other", "Workflow"),
    ],
)
def test_tools_in_our_words(name: str, given: dict[str, Any], kind: str, title: str) -> None:
    use = _one_use(name, given).all(ToolUse)[0]
    assert (use.kind, use.title) == (kind, title)


def test_a_search_without_a_path_is_one_of_the_working_directory() -> None:
    assert _one_use("Grep", {"pattern": "x"}).all(ToolUse)[0].paths == (".",)


def _image(data: bytes, media_type: str) -> dict[str, Any]:
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def _one_use(name: str, given: dict[str, Any]) -> Replay:
    played = Replay()
    played.prompt("p")
    block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": given}
    message = {"id": "msg_1", "model": "claude-sonnet-4-5", "content": [block], "stop_reason": "tool_use"}
    played.frame({"type": "assistant", "message": message, "parent_tool_use_id": None, "uuid": "u"})
    return played


def _result(use_id: str, content: Any, *, is_error: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": use_id, "content": content, "is_error": is_error}
    return {"type": "user", "message": {"role": "user", "content": [block]}, "parent_tool_use_id": None}
