"""The loop, over real HTTP, with real files and commands."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from enginehouse_protocol.content import content_text
from enginehouse_protocol.engine import EngineSession, TurnLimits
from enginehouse_protocol.errors import EngineError, SettingRefused, TranscriptUnavailable
from enginehouse_protocol.events import (
    Body,
    EngineBody,
    MessageAssistant,
    MessageDelta,
    PermissionDecided,
    PermissionRequested,
    Reasoning,
    ReasoningDelta,
    StepStarted,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.permissions import Allow, Decision, Deny
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import MemoryHistory, RecordingPort, TempWorkspace, allow, deny, edit, never
from enginehouse_protocol.workspace import CommandResult, FileContent
from model_server import (
    ModelServer,
    Usage,
    assert_prefix_chain,
    by_history,
    call,
    cut,
    end,
    error_event,
    fault,
    hold,
    in_order,
    raw,
    reply,
    stall,
    steps,
)

from . import rebuilding
from .conftest import Live, Start
from .rebuilding import rebuild

pytestmark = pytest.mark.anyio
NO_RETRY = {"max_retries": 0}


def results(port: RecordingPort) -> list[tuple[str, str]]:
    """Status and text of every result, in the order of the uses."""
    found = {result.call_id: result for result in port.all(ToolResult)}
    ordered = [found[use.call_id] for use in port.all(ToolUse)]
    return [(result.status, content_text(result.content)) for result in ordered]


def rebuilt(it: Live) -> None:
    """Every request the server got is the one announced, and the record alone gives it again."""
    rebuilding.rebuilt(it.port.history.events, [request.body for request in it.server.chats])


def order(port: RecordingPort, *kinds: type[Body]) -> list[type[Body]]:
    return [type(body) for body in port.bodies if isinstance(body, kinds)]


async def failure(it: Live, text: str = "go") -> EngineError:
    with pytest.raises(EngineError) as caught:
        await it.port.run(it.session, text)
    return caught.value


# --- a turn -----------------------------------------------------------------------------------------------------------


async def test_twenty_steps_are_one_growing_conversation_that_can_be_built_again(live: Start) -> None:
    async with live(steps(20, lambda k: f"echo step {k}", say=lambda k: f"Step {k}.")) as it:
        assert (await it.port.run(it.session, "do twenty things")).stop == "end"
        assert (await it.port.run(it.session, "and now?")).stop == "end"
        assert len(it.server.chats) == 22
        assert_prefix_chain(it.server.chats)
        assert [step.step for step in it.port.all(StepStarted)] == [*range(1, 22), 1]
        assert [step.header is not None for step in it.port.all(StepStarted)] == [True] + [False] * 21
        for earlier, later in itertools.pairwise(it.server.chats):
            assert later.body.startswith(earlier.body.removesuffix(b"]}")), "also what stands before the messages"
        rebuilt(it)


async def test_a_step_is_recorded_before_it_is_sent_and_its_words_before_its_tools(live: Start) -> None:
    answer = reply(
        "I look.", reasoning="hm", calls=[call("list_dir", {})], usage=Usage(prompt=9, completion=4, cached=3)
    )
    async with live([answer, reply("Seen.")]) as it:
        await it.port.run(it.session, "go")
        kinds = (
            StepStarted,
            MessageAssistant,
            UsageUpdated,
            ToolUse,
            PermissionRequested,
            PermissionDecided,
            ToolResult,
        )
        assert order(it.port, *kinds) == [
            *(StepStarted, MessageAssistant, UsageUpdated, ToolUse, PermissionRequested, PermissionDecided, ToolResult),
            *(StepStarted, MessageAssistant, UsageUpdated),
        ]
        first, last = it.port.all(MessageAssistant)
        assert (first.text, first.phase) == ("I look.", "commentary")
        assert first.reasoning == Reasoning(text="hm", opaque={"field": "reasoning_content"})
        assert (last.text, last.phase, last.complete) == ("Seen.", "final", True)
        assert {delta.message_id for delta in it.port.all(ReasoningDelta)} == {first.message_id}
        use = it.port.all(ToolUse)[0]
        assert (use.reply_id, use.kind, use.title, use.paths) == (first.reply_id, "read", "list .", (".",))
        usage = it.port.all(UsageUpdated)[0]
        assert (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens) == (9, 3, 4)


async def test_the_system_text_says_where_we_are_and_adds_the_instructions(live: Start) -> None:
    async with live(reply("hi"), instructions="Speak like a pirate.") as it:
        await it.port.run(it.session, "hello")
        system = it.sent()[0]["content"]
        assert f"Working directory: {it.workspace.directory}" in system
        assert f"Scratch folder: {it.workspace.scratch}" in system
        assert system.endswith("\n\nSpeak like a pirate.")


async def test_a_session_opened_again_goes_on_with_the_same_bytes(live: Start, tmp_path: Path) -> None:
    server = ModelServer(
        by_history(reply("one", calls=[call("bash", {"command": "echo 1"})]), reply("two"), reply("three"))
    )
    async with live(server) as first:
        await first.port.run(first.session, "begin")
    history = MemoryHistory(events=tuple(first.port.history.events))
    again = ModelServer(server.script)
    async with live(again, history=history) as second:
        await second.port.run(second.session, "go on")
        assert_prefix_chain([*server.chats, *again.chats])
        assert second.port.all(StepStarted)[0].header is None, "nothing it is made of has changed"
        announced = [event for event in history.events if isinstance(event.body, StepStarted)]
        assert [rebuild(history.events, step) for step in announced] == [r.body for r in [*server.chats, *again.chats]]


async def test_more_events_than_one_page_are_all_read(live: Start) -> None:
    history = MemoryHistory()
    for _ in range(2500):
        history.stamp(UsageUpdated(scope="request", input_tokens=1))
    async with live(reply("hi"), history=history) as it:
        await it.port.run(it.session, "hello")
        assert it.port.all(StepStarted)[0].history_seq == 2502
        assert [message["role"] for message in it.sent()] == ["system", "user"]


# --- tools ------------------------------------------------------------------------------------------------------------


class Meeting(TempWorkspace):
    """The first two reads wait for each other; how many commands ever ran at once is counted."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reads = 0
        self.running = 0
        self.most_running = 0
        self._met = anyio.Event()

    async def read(self, path: str, *, max_bytes: int) -> FileContent:
        self.reads += 1
        if self.reads == 2:
            self._met.set()
        with anyio.fail_after(5):
            await self._met.wait()
        return await super().read(path, max_bytes=max_bytes)

    async def run(self, command: str, **how: Any) -> CommandResult:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await super().run(command, **how)
        finally:
            self.running -= 1


async def test_calls_that_only_look_run_side_by_side_and_answer_in_order(live: Start) -> None:
    both = reply(calls=[call("read_file", {"path": "a"}), call("read_file", {"path": "b"})])
    async with live([both, reply("done")], workspace=Meeting) as it:
        (it.workspace.directory / "a").write_text("A")
        (it.workspace.directory / "b").write_text("B")
        await it.port.run(it.session, "read both")
        assert results(it.port) == [("ok", "A"), ("ok", "B")]
        assert [message["content"] for message in it.sent() if message["role"] == "tool"] == ["A", "B"]
        rebuilt(it)


async def test_commands_run_one_after_the_other_in_the_models_order(live: Start) -> None:
    calls = [call("bash", {"command": f"echo {n} >> log; echo {n}"}) for n in range(4)]
    calls += [call("grep", {"pattern": ".", "path": "log"}), call("bash", {"command": "echo 4 >> log"})]
    async with live([reply(calls=calls), reply("done")], workspace=Meeting) as it:
        await it.port.run(it.session, "go")
        assert results(it.port)[4] == ("ok", "log:1: 0\nlog:2: 1\nlog:3: 2\nlog:4: 3")
        assert isinstance(it.workspace, Meeting)
        assert it.workspace.most_running == 1


async def test_what_a_command_prints_is_heard_while_it_runs(live: Start) -> None:
    async with live([reply(calls=[call("bash", {"command": "echo early; cat gate"})]), reply("done")]) as it:
        gate = it.workspace.directory / "gate"
        os.mkfifo(gate)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.port.run, it.session, "go")
            await it.port.heard(ToolOutput, lambda output: "early" in output.text)
            assert it.port.all(ToolResult) == []
            await anyio.to_thread.run_sync(gate.write_text, "late\n")
        assert results(it.port) == [("ok", "early\nlate")]


async def test_an_edit_shows_its_diff_before_anybody_is_asked(live: Start) -> None:
    edits = [{"old": "one", "new": "two"}]
    async with live([reply(calls=[call("edit_file", {"path": "a.txt", "edits": edits})]), reply("done")]) as it:
        (it.workspace.directory / "a.txt").write_text("one\n")
        await it.port.run(it.session, "go")
        use = it.port.asked[0]
        assert (use.kind, use.title, use.paths) == ("edit", "edit a.txt", ("a.txt",))
        assert use.preview[0].diff == "@@ -1 +1 @@\n-one\n+two\n"
        assert it.port.all(ToolUse) == [use]
        assert it.port.all(ToolResult)[0].changes == use.preview


async def test_a_deny_reaches_the_model_with_its_reason_and_nothing_runs(live: Start) -> None:
    async with live([reply(calls=[call("bash", {"command": "touch ran"})]), reply("then not")]) as it:
        it.port.policy = deny("use the other folder")
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert results(it.port) == [("denied", "Not allowed: use the other folder")]
        assert it.sent()[-1]["content"] == "Not allowed: use the other folder"
        assert not (it.workspace.directory / "ran").exists()
        rebuilt(it)


async def test_an_edited_input_is_what_runs_and_the_model_is_told(live: Start) -> None:
    async with live([reply(calls=[call("bash", {"command": "echo asked"})]), reply("I see")]) as it:
        it.port.policy = edit(command="echo edited")
        await it.port.run(it.session, "go")
        told = 'The person changed the input before it ran. What ran: {"command":"echo edited"}\nedited'
        assert results(it.port) == [("ok", told)]
        assert it.sent()[-1]["content"] == told
        sent = it.sent()[-2]["tool_calls"][0]["function"]["arguments"]
        assert sent == '{"command":"echo asked"}', "what the model said stays what it said"


async def test_a_person_who_saves_while_being_asked_loses_nothing(live: Start) -> None:
    calls = [call("write_file", {"path": "a.txt", "content": "model\n"})]
    async with live([reply(calls=calls), reply("I see")]) as it:
        file = it.workspace.directory / "a.txt"
        file.write_text("old\n")

        async def save_and_allow(_use: ToolUse) -> Decision:
            file.write_text("old\nan hour of work\n")
            return Allow()

        it.port.policy = save_and_allow
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert file.read_text() == "old\nan hour of work\n"
        assert results(it.port) == [("error", "'a.txt' changed since this was asked; read it again")]
        assert it.sent()[-1]["content"] == "'a.txt' changed since this was asked; read it again"


async def test_an_edited_change_is_made_to_the_file_as_it_is(live: Start) -> None:
    calls = [call("edit_file", {"path": "a.txt", "edits": [{"old": "one", "new": "two"}]})]
    async with live([reply(calls=calls), reply("I see")]) as it:
        file = it.workspace.directory / "a.txt"
        file.write_text("one\n")

        async def save_and_edit(_use: ToolUse) -> Decision:
            file.write_text("one\nmore\n")
            return Allow(input={"path": "a.txt", "edits": [{"old": "one", "new": "three"}]})

        it.port.policy = save_and_edit
        await it.port.run(it.session, "go")
        assert file.read_text() == "three\nmore\n"
        assert it.port.all(ToolResult)[0].changes[0].diff == "@@ -1,2 +1,2 @@\n-one\n+three\n more\n"


async def test_a_second_change_is_shown_as_the_first_one_leaves_the_file(live: Start) -> None:
    calls = [
        call("write_file", {"path": "a.txt", "content": "one\n"}),
        call("write_file", {"path": "a.txt", "content": "two\n"}),
        call("bash", {"command": "echo three > a.txt"}),
        call("edit_file", {"path": "a.txt", "edits": [{"old": "three", "new": "four"}]}),
    ]
    async with live([reply(calls=calls), reply("done")]) as it:
        await it.port.run(it.session, "go")
        assert [change.diff for use in it.port.asked for change in use.preview] == [
            "@@ -0,0 +1 @@\n+one\n",
            "@@ -1 +1 @@\n-one\n+two\n",
            "@@ -1 +1 @@\n-three\n+four\n",
        ]
        assert [len(use.preview) for use in it.port.all(ToolUse)] == [1, 0, 0, 0], "never a preview of another file"
        assert [result.changes for result in it.port.all(ToolResult)] == [use.preview for use in it.port.asked]
        assert order(it.port, ToolUse, PermissionRequested)[:5] == [*[ToolUse] * 4, PermissionRequested]
        assert (it.workspace.directory / "a.txt").read_text() == "four\n"
        rebuilt(it)


@pytest.mark.parametrize(
    "name, given, words",
    [
        ("edit_file", {"path": "a.txt", "edits": [{"old": "nope", "new": "x"}]}, "old was not found"),
        ("edit_file", {"path": "missing", "edits": [{"old": "a", "new": "x"}]}, "No such file"),
        ("write_file", {"path": "/etc/passwd", "content": "x"}, "outside the workspace"),
    ],
)
@pytest.mark.parametrize("first", [call("list_dir", {}), call("bash", {"command": "echo ran"})], ids=["look", "run"])
async def test_nobody_is_asked_for_a_change_that_cannot_be_made(
    live: Start, first: Any, name: str, given: dict[str, Any], words: str
) -> None:
    async with live([reply(calls=[first, call(name, given)]), reply("I see")]) as it:
        (it.workspace.directory / "a.txt").write_text("old\n")
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert len(it.port.asked) == 1
        (ran, _), (status, text) = results(it.port)
        assert (ran, status) == ("ok", "error")
        assert words in text
        assert it.sent()[-1]["content"] == text
        rebuilt(it)


async def test_a_change_that_an_earlier_call_makes_possible_is_asked_for(live: Start) -> None:
    calls = [
        call("bash", {"command": "echo new > a.txt"}),
        call("edit_file", {"path": "a.txt", "edits": [{"old": "new", "new": "newer"}]}),
    ]
    async with live([reply(calls=calls), reply("done")]) as it:
        await it.port.run(it.session, "go")
        assert [use.name for use in it.port.asked] == ["bash", "edit_file"]
        assert (it.workspace.directory / "a.txt").read_text() == "newer\n"


async def test_a_preview_with_a_bug_does_not_end_the_turn(live: Start) -> None:
    class Buggy(TempWorkspace):
        async def read(self, path: str, *, max_bytes: int) -> FileContent:
            raise ZeroDivisionError(path)

    calls = [call("edit_file", {"path": "a.txt", "edits": [{"old": "a", "new": "b"}]})]
    async with live([reply(calls=calls), reply("I see")], workspace=Buggy) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert results(it.port) == [("error", "The tool itself failed: ZeroDivisionError: a.txt")]


async def test_a_malformed_call_does_not_poison_what_is_sent_later(live: Start) -> None:
    async with live([reply(calls=[call("bash", '{"command": "ls')]), reply("sorry")]) as it:
        await it.port.run(it.session, "go")
        sent = it.sent()[-2]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(sent) == {"not_json": '{"command": "ls'}
        assert it.port.all(ToolUse)[0].arguments == '{"command": "ls'
        rebuilt(it)


async def test_an_edit_of_the_input_that_makes_no_sense_runs_nothing(live: Start) -> None:
    async def nonsense(_use: ToolUse) -> Decision:
        return Allow(input={"cmd": "touch ran"})

    async with live([reply(calls=[call("bash", {"command": "touch ran"})]), reply("I see")]) as it:
        it.port.policy = nonsense
        await it.port.run(it.session, "go")
        assert results(it.port)[0][0] == "error"
        assert not (it.workspace.directory / "ran").exists()


@pytest.mark.parametrize(
    "name, arguments, words",
    [
        ("bash", '{"command": "touch ran', "not valid JSON"),
        ("bash", "[1]", "must be a JSON object"),
        ("bash", '{"command": 7}', "Expected `str`"),
        ("bash", "", "missing required field `command`"),
        ("run_shell", '{"command": "touch ran"}', "no tool 'run_shell'"),
    ],
)
async def test_a_call_we_do_not_understand_is_answered_without_asking(
    live: Start, name: str, arguments: str, words: str
) -> None:
    async with live([reply(calls=[call(name, arguments)]), reply("sorry")]) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert it.port.asked == []
        status, text = results(it.port)[0]
        assert status == "error"
        assert words in text
        use = it.port.all(ToolUse)[0]
        assert (use.arguments, len(use.title.splitlines())) == (arguments, 1)
        assert it.sent()[-1]["content"] == text
        rebuilt(it)


async def test_a_tool_that_cannot_do_it_says_why_and_the_turn_goes_on(live: Start) -> None:
    calls = [
        call("read_file", {"path": "missing"}),
        call("read_file", {"path": "/etc/passwd"}),
        call("grep", {"pattern": "("}),
    ]
    async with live([reply(calls=calls), reply("I see")]) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert [status for status, _ in results(it.port)] == ["error"] * 3
        assert "outside the workspace" in results(it.port)[1][1]


async def test_a_tool_with_a_bug_does_not_end_the_turn(live: Start) -> None:
    class Buggy(TempWorkspace):
        async def list(self, path: str, *, limit: int) -> Any:
            raise ZeroDivisionError(path)

    async with live([reply(calls=[call("list_dir", {})]), reply("I see")], workspace=Buggy) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert results(it.port) == [("error", "The tool itself failed: ZeroDivisionError: .")]


async def test_ids_a_provider_repeats_become_ours(live: Start) -> None:
    same = reply(calls=[call("bash", {"command": f"echo {n}"}, id="same") for n in (1, 2)])
    async with live([same, same, reply("done")]) as it:
        await it.port.run(it.session, "go")
        assert results(it.port) == [("ok", "1"), ("ok", "2")] * 2
        ids = [message["tool_call_id"] for message in it.sent() if message["role"] == "tool"]
        assert ids[0] == "same"
        assert len(set(ids)) == 4
        rebuilt(it)


# --- how a turn ends --------------------------------------------------------------------------------------------------


async def test_a_limit_of_steps_ends_the_turn_after_its_tools(live: Start) -> None:
    async with live(steps(9, lambda k: f"echo {k}")) as it:
        ended = await it.port.run(it.session, "go", limits=TurnLimits(max_steps=2))
        assert ended.stop == "max_steps"
        assert len(it.server.chats) == 2
        assert results(it.port) == [("ok", "1"), ("ok", "2")]


async def test_a_reply_that_is_too_long_ends_the_turn(live: Start) -> None:
    async with live(reply("and so", finish_reason="length")) as it:
        assert (await it.port.run(it.session, "go")).stop == "max_tokens"


async def test_arguments_cut_by_the_length_limit_are_not_run(live: Start) -> None:
    cut_call = call("bash", '{"command": "touch ran')
    async with live(reply(calls=[cut_call], finish_reason="length")) as it:
        assert (await it.port.run(it.session, "go")).stop == "max_tokens"
        assert results(it.port)[0][0] == "error"
        assert "length limit" in results(it.port)[0][1]
        assert it.port.asked == []


async def test_a_whole_call_runs_although_the_next_was_cut(live: Start) -> None:
    calls = [call("bash", {"command": "echo ran"}), call("bash", '{"command": "touch')]
    async with live([reply(calls=calls, finish_reason="length"), reply("done")]) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert [status for status, _ in results(it.port)] == ["ok", "error"]


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "length"])
async def test_calls_decide_and_not_the_reason_given(live: Start, finish: str) -> None:
    async with live([reply(calls=[call("list_dir", {})], finish_reason=finish), reply("done")]) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert len(it.server.chats) == 2


async def test_a_content_filter_is_a_refusal(live: Start) -> None:
    async with live(reply("I", finish_reason="content_filter")) as it:
        ended = await it.port.run(it.session, "go")
        assert (ended.stop, ended.detail) == ("refused", "content filter")


async def test_announced_calls_that_never_come_are_an_error_unless_something_was_said(live: Start) -> None:
    empty = reply(finish_reason="tool_calls")
    async with live(in_order(reply("words", finish_reason="tool_calls"), empty, empty)) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert (await failure(it)).code == "provider.bad_reply"


async def test_an_answer_with_nothing_in_it_is_an_end(live: Start) -> None:
    async with live(reply()) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert it.port.all(MessageAssistant) == []


# --- interrupts -------------------------------------------------------------------------------------------------------


async def interrupted(it: Live, kind: type[Body], where: Any = None) -> None:
    """Run a turn and interrupt it once a body of this kind was heard; it ends within two seconds."""
    ended: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def turn() -> None:
            ended.append((await it.port.run(it.session, "go")).stop)

        tasks.start_soon(turn)
        await it.port.heard(kind, where)
        tasks.cancel_scope.deadline = anyio.current_time() + 2
        await it.port.interrupt(it.session)
    assert ended == ["interrupted"]


async def test_after_an_interrupt_in_the_stream_what_was_said_stays_and_the_cost_is_unknown(live: Start) -> None:
    async with live(in_order(reply(deltas=["half ", stall()]), reply("yes"))) as it:
        await interrupted(it, MessageDelta)
        message = it.port.all(MessageAssistant)[0]
        assert (message.text, message.complete, message.phase) == ("half ", False, None)
        assert it.port.all(UsageUpdated) == [UsageUpdated(scope="request")]
        with anyio.fail_after(2):
            await it.server.quiet()
        assert it.server.chats[0].outcome == "client_left"
        await it.port.run(it.session, "are you there?")
        assert it.sent()[2:] == [
            {"role": "assistant", "content": "half "},
            {"role": "user", "content": "are you there?"},
        ]
        assert_prefix_chain(it.server.chats)
        rebuilt(it)


async def test_what_a_request_cost_that_was_interrupted_before_its_first_word_is_unknown(live: Start) -> None:
    async with live(reply("too late", before=[stall()])) as it:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.port.run, it.session, "go")
            await it.server.received(1)
            await it.port.interrupt(it.session)
        assert it.port.all(UsageUpdated) == [UsageUpdated(scope="request")]
        assert it.port.all(MessageAssistant) == []


async def test_an_interrupt_in_a_command_closes_every_call_of_the_reply(live: Start) -> None:
    calls = [call("bash", {"command": "echo begun; sleep 60"}), call("bash", {"command": "touch ran"})]
    async with live([reply(calls=calls), reply("yes")]) as it:
        await interrupted(it, ToolOutput)
        assert [status for status, _ in results(it.port)] == ["interrupted", "interrupted"]
        assert not (it.workspace.directory / "ran").exists()
        await it.port.run(it.session, "are you there?")
        assert [message["role"] for message in it.sent()[2:]] == ["assistant", "tool", "tool", "user"]
        rebuilt(it)


async def test_an_interrupt_while_somebody_is_asked_closes_the_call(live: Start) -> None:
    async with live([reply(calls=[call("list_dir", {}), call("list_dir", {})]), reply("yes")]) as it:
        it.port.policy = never
        await interrupted(it, PermissionRequested)
        assert {status for status, _ in results(it.port)} <= {"interrupted", "denied"}
        it.port.policy = allow
        assert (await it.port.run(it.session, "are you there?")).stop == "end"


async def test_an_interrupt_while_the_list_of_models_is_fetched_ends_the_turn(live: Start) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    asked = anyio.Event()

    async def silent(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            asked.set()
            await anyio.sleep_forever()

    address = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
    ended: list[str] = []
    async with (
        listener,
        live(reply("never"), settings=SessionSettings(), base_url=address) as it,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, silent)

        async def turn() -> None:
            ended.append((await it.port.run(it.session, "go")).stop)
            tasks.cancel_scope.cancel()

        tasks.start_soon(turn)
        await asked.wait()
        await it.port.interrupt(it.session)
    assert ended == ["interrupted"]


class Counting(TempWorkspace):
    """Knows what was begun, even when it was cancelled at once."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.begun: list[str] = []

    async def run(self, command: str, **how: Any) -> CommandResult:
        self.begun.append(command)
        return await super().run(command, **how)


async def test_after_an_interrupt_nothing_is_begun_also_when_the_answer_is_yes(live: Start) -> None:
    calls = [call("bash", {"command": f"echo {n}"}) for n in range(3)]
    async with live([reply(calls=calls), reply("yes")], workspace=Counting) as it:
        assert isinstance(it.workspace, Counting)

        async def yes_but_stop(use: ToolUse) -> Decision:
            if use.input["command"] == "echo 1":
                assert it.port.turn_id is not None
                await it.session.interrupt(it.port.turn_id)
            return Allow()

        it.port.policy = yes_but_stop
        assert (await it.port.run(it.session, "go")).stop == "interrupted"
        assert it.workspace.begun == ["echo 0"]
        assert [use.input["command"] for use in it.port.asked] == ["echo 0", "echo 1"]
        assert [status for status, _ in results(it.port)] == ["ok", "interrupted", "interrupted"]


async def test_after_a_failed_turn_the_next_request_still_alternates(live: Start) -> None:
    async with live(in_order(fault(400, "ill"), reply("ok"))) as it:
        await failure(it, "one")
        await it.port.run(it.session, "two")
        assert [message["role"] for message in it.sent()] == ["system", "user", "assistant", "user"]
        assert_prefix_chain(it.server.chats)
        rebuilt(it)


class InterruptingPort(RecordingPort):
    """Interrupts the turn the moment a message is recorded."""

    session: EngineSession | None = None

    async def emit(self, body: EngineBody) -> None:
        await super().emit(body)
        if isinstance(body, MessageAssistant) and self.session is not None:
            await self.interrupt(self.session)


async def test_an_interrupt_while_a_reply_is_recorded_comes_after_all_of_it(live: Start) -> None:
    calls = [call("bash", {"command": "touch ran"}), call("list_dir", {})]
    async with live([reply("I will.", calls=calls), reply("yes")], port=InterruptingPort) as it:
        assert isinstance(it.port, InterruptingPort)
        it.port.session = it.session
        assert (await it.port.run(it.session, "go")).stop == "interrupted"
        assert [use.name for use in it.port.all(ToolUse)] == ["bash", "list_dir"]
        assert [status for status, _ in results(it.port)] == ["interrupted", "interrupted"]
        assert it.port.all(UsageUpdated)[0].output_tokens is not None
        assert it.port.asked == []


class FullPort(RecordingPort):
    """Does not take the first result in time, as when the disk is slow."""

    def __init__(self, history: MemoryHistory | None) -> None:
        super().__init__(history)
        self.waiting = anyio.Event()

    async def emit(self, body: EngineBody) -> None:
        if isinstance(body, ToolResult) and not self.waiting.is_set():
            self.waiting.set()
            await anyio.sleep_forever()
        await super().emit(body)


async def test_a_result_that_is_known_is_recorded_and_not_called_interrupted(live: Start) -> None:
    async with live([reply(calls=[call("bash", {"command": "echo ran"})]), reply("yes")], port=FullPort) as it:
        assert isinstance(it.port, FullPort)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.port.run, it.session, "go")
            await it.port.waiting.wait()
            await it.port.interrupt(it.session)
        assert results(it.port) == [("ok", "ran")]


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken", [cut(), cut(b'data: {"id'), cut(reset=True), end()], ids=["cut", "inside", "reset", "end"]
)
async def test_a_cut_stream_keeps_what_was_said(live: Start, broken: Any) -> None:
    async with live(in_order(reply(deltas=["half ", broken]), reply("yes")), options=NO_RETRY) as it:
        error = await failure(it)
        assert error.code == "provider.cut_stream"
        message = it.port.all(MessageAssistant)[0]
        assert (message.text, message.complete) == ("half ", False)
        assert it.port.all(UsageUpdated) == [UsageUpdated(scope="request")]
        await it.port.run(it.session, "again")
        assert it.sent()[2:] == [{"role": "assistant", "content": "half "}, {"role": "user", "content": "again"}]
        assert_prefix_chain(it.server.chats)
        rebuilt(it)


async def test_a_call_of_a_cut_stream_is_not_run(live: Start) -> None:
    whole = call("bash", ['{"command": "touch ran"}', cut()])
    async with live(reply(calls=[whole])) as it:
        assert (await failure(it)).code == "provider.cut_stream"
        assert it.port.all(ToolUse) == []


async def test_a_connection_that_breaks_after_the_reply_was_whole_breaks_nothing(live: Start) -> None:
    finish = raw(b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n')
    async with live(reply(deltas=["all ", "said", finish, cut()])) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert it.port.texts() == ["all said"]


async def test_an_error_inside_a_success_fails_with_the_providers_words(live: Start) -> None:
    async with live(reply(deltas=["a", "b", error_event("The GPU is on fire", code="gpu_fire"), end()])) as it:
        error = await failure(it)
        assert error.code == "provider.error"
        assert "The GPU is on fire" in str(error)
        assert it.port.texts() == ["ab"]
        assert not it.port.all(MessageAssistant)[0].complete


async def test_a_server_that_falls_silent_is_given_up(live: Start) -> None:
    async with live(reply(deltas=["a", stall()]), options={"idle_timeout_s": 0.3} | NO_RETRY) as it:
        error = await failure(it)
        assert error.code == "provider.timeout"
        assert "0.3 s" in str(error)
        assert it.port.texts() == ["a"]


async def test_silence_after_a_whole_reply_is_its_end(live: Start) -> None:
    finish = raw(b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n')
    async with live(reply(deltas=["a", finish, stall()]), options={"idle_timeout_s": 0.3}) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"


async def test_a_page_instead_of_an_answer_is_named(live: Start) -> None:
    async with live(fault(200, body=b"<html>Welcome to nginx</html>", headers={"content-type": "text/html"})) as it:
        error = await failure(it)
        assert error.code == "provider.bad_reply"
        assert "Welcome to nginx" in str(error)


async def test_a_record_that_cannot_be_written_ends_the_turn(live: Start) -> None:
    async with live(reply(deltas=["a ", hold("broken"), "b"])) as it, anyio.create_task_group() as tasks:

        async def turn() -> None:
            with pytest.raises(TranscriptUnavailable, match="no space left"):
                await it.port.run(it.session, "go")

        tasks.start_soon(turn)
        await it.port.heard(MessageDelta)
        it.port.broken = "no space left"
        it.server.release("broken")


async def test_a_record_that_breaks_under_calls_side_by_side_is_one_error(live: Start) -> None:
    async with live(reply(calls=[call("list_dir", {}), call("list_dir", {}), call("list_dir", {})])) as it:

        async def break_it(_use: ToolUse) -> Decision:
            it.port.broken = "no space left"
            return Allow()

        it.port.policy = break_it
        with pytest.raises(TranscriptUnavailable, match="no space left"):
            await it.port.run(it.session, "go")
        it.port.violations.clear()  # the uses stay open, their results could not be recorded: core repairs that


async def test_a_session_goes_on_after_turns_that_failed(live: Start) -> None:
    async with live(in_order(fault(400, "ill"), reply("ok"), fault(402), reply("ok again"))) as it:
        assert (await failure(it, "one")).code == "provider.bad_request"
        assert (await it.port.run(it.session, "two")).stop == "end"
        assert (await failure(it, "three")).code == "provider.quota"
        assert (await it.port.run(it.session, "four")).stop == "end"
        assert_prefix_chain(it.server.chats)
        rebuilt(it)


# --- settings ---------------------------------------------------------------------------------------------------------


async def test_a_changed_model_and_effort_count_for_the_next_request(live: Start) -> None:
    server = ModelServer(reply("hi"), models=("scripted", "other"))
    async with live(server) as it:
        await it.port.run(it.session, "one")
        assert await it.session.apply(SessionSettings(model="other", effort="low")) == "now"
        await it.port.run(it.session, "two")
        first, second = (request.json or {} for request in server.chats)
        assert (first["model"], "reasoning_effort" in first) == ("scripted", False)
        assert (second["model"], second["reasoning_effort"]) == ("other", "low")
        assert [step.header is not None for step in it.port.all(StepStarted)] == [True, True]
        assert_prefix_chain(server.chats)
        rebuilt(it)


async def test_a_setting_without_a_name_is_refused_and_nothing_changes(live: Start) -> None:
    async with live(reply("hi")) as it:
        for change in (SessionSettings(model=" "), SessionSettings(model="x", effort="")):
            with pytest.raises(SettingRefused):
                await it.session.apply(change)
        assert (await it.port.run(it.session, "go")).stop == "end"


async def test_without_a_model_the_only_one_is_taken(live: Start) -> None:
    async with live(reply("hi"), settings=SessionSettings()) as it:
        await it.port.run(it.session, "one")
        await it.port.run(it.session, "two")
        assert [(request.json or {})["model"] for request in it.server.chats] == ["scripted", "scripted"]
        assert len(it.server.requests) == 3, "asked for the list once"


async def test_without_a_model_and_with_several_the_list_is_named(live: Start) -> None:
    async with live(ModelServer(reply("hi"), models=("large", "small")), settings=SessionSettings()) as it:
        error = await failure(it)
        assert error.code == "engine.model_needed"
        assert "large, small" in str(error)
        assert await it.session.apply(SessionSettings(model="small")) == "now"
        assert (await it.port.run(it.session, "again")).stop == "end"


async def test_a_profiles_own_fields_are_sent_and_usage_can_be_left_unasked(live: Start) -> None:
    async with live(reply("hi"), options={"request": {"temperature": 0.5, "seed": 7}, "ask_usage": False}) as it:
        await it.port.run(it.session, "go")
        sent = it.server.chats[0].json or {}
        assert (sent["temperature"], sent["seed"], "stream_options" in sent) == (0.5, 7, False)
        assert it.port.all(UsageUpdated) == [UsageUpdated(scope="request")]
        rebuilt(it)


async def test_deny_is_per_call_also_among_calls_side_by_side(live: Start) -> None:
    async def not_b(use: ToolUse) -> Decision:
        return Deny(reason="not b") if use.input["path"] == "b" else Allow()

    calls = [call("list_dir", {"path": name}) for name in "abc"]
    async with live([reply(calls=calls), reply("done")]) as it:
        for name in "abc":
            (it.workspace.directory / name).mkdir()
        it.port.policy = not_b
        await it.port.run(it.session, "go")
        assert [status for status, _ in results(it.port)] == ["ok", "denied", "ok"]
