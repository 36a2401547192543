"""What a person reads of a conversation, on a terminal and in a pipe."""

import anyio
import pytest
from terminal.desk import Desk, DeskHub, M

from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.codec import decode_event
from enginehouse_protocol.content import FileChange, SpilledText, Text
from enginehouse_protocol.events import (
    Body,
    MessageAssistant,
    MessageDelta,
    MessageQueued,
    MessageReset,
    MessageUser,
    Notice,
    PlanEntry,
    PlanUpdated,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
    Unknown,
    UsageUpdated,
)
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import CallId, MessageId, ReplyId

A, B = MessageId("m_1"), MessageId("m_2")
OURS = (MessageQueued(message_id=M, content=(Text(text="hi"),)), TurnStarted(origin="message", message_ids=(M,)))


def says(text: str, message_id: MessageId = A, *, complete: bool = True) -> MessageAssistant:
    return MessageAssistant(message_id=message_id, reply_id=ReplyId("r_1"), text=text, complete=complete)


def use(title: str = "$ ls", kind: str = "execute", parent: str | None = None) -> ToolUse:
    return ToolUse(
        call_id=CallId("c_1"),
        name="bash",
        kind=kind,  # type: ignore[arg-type]
        title=title,
        input={"command": "ls"},
        parent_call_id=CallId(parent) if parent else None,
    )


def printed(desk: Desk, *bodies: Body, coloured: bool = False, recorded: bool = False) -> tuple[str, str]:
    """What of these bodies goes to stdout, and what to stderr."""
    printer = Printer(desk.streams, styles=Styles(coloured=coloured), recorded=recorded)
    anyio.run(printer.begin, "", M)
    hub = DeskHub()
    pieces = [piece for body in bodies for piece in printer.told(hub.stamped(body).event)]
    answer = "".join(piece.text for piece in pieces if piece.to == "answer")
    return answer, "".join(piece.text for piece in pieces if piece.to == "talk")


def test_a_pipe_gets_what_was_said_last_and_the_rest_is_talk(piped: Desk) -> None:
    result = ToolResult(call_id=CallId("c_1"), status="ok", content=(Text(text="a.txt\n"),))
    answer, talk = printed(
        piped,
        *OURS,
        says("I look."),
        use(),
        result,
        says("Part one.", B),
        says("Part two.", A),
        TurnCompleted(stop="end"),
    )
    assert answer == "Part one.\n\nPart two.\n"
    assert talk == "I look.\n● $ ls\n  a.txt\n"


@pytest.mark.parametrize("end", [TurnCompleted(stop="interrupted"), TurnFailed(code="x", message="no")])
def test_a_turn_that_did_not_end_well_has_no_answer(piped: Desk, end: Body) -> None:
    answer, talk = printed(piped, *OURS, says("Half an ans", complete=False), end)
    assert answer == ""
    assert "Half an ans" in talk


def test_the_turn_of_somebody_elses_message_is_no_answer_of_ours(piped: Desk) -> None:
    older = MessageId("m_older")
    answer, talk = printed(
        piped,
        TurnStarted(origin="message", message_ids=(older,)),
        MessageUser(message_id=older, content=(Text(text="queued long ago"),)),
        says("About that."),
        TurnCompleted(stop="end"),
        *OURS,
        says("About yours.", B),
        TurnCompleted(stop="end"),
    )
    assert answer == "About yours.\n"
    assert talk == "> queued long ago\nAbout that.\n"


def test_on_a_terminal_the_answer_streams_and_is_said_once(terminal: Desk) -> None:
    deltas = [MessageDelta(message_id=A, text=text) for text in ("Good ", "morning")]
    answer, _ = printed(terminal, *OURS, *deltas, says("Good morning"), TurnCompleted(stop="end"))
    assert answer == "Good morning\n"


def test_a_reply_that_begins_again_is_shown_from_its_new_beginning(terminal: Desk) -> None:
    answer, talk = printed(
        terminal,
        *OURS,
        MessageDelta(message_id=A, text="Wrong st"),
        MessageReset(message_id=A, reason="connection lost"),
        MessageDelta(message_id=A, text="Right "),
        says("Right start"),
    )
    assert answer == "Wrong stRight start\n"
    assert "begins again: connection lost" in talk


def test_what_was_kept_wins_over_what_was_streamed(terminal: Desk) -> None:
    answer, _ = printed(terminal, *OURS, MessageDelta(message_id=A, text="abc"), says("xyz"))
    assert answer.endswith("xyz\n")


def test_a_change_is_a_diff_and_a_denial_its_reason(piped: Desk) -> None:
    change = FileChange(path="a.py", change="modified", diff="@@ -1 +1 @@\n-old\n+new\n")
    done = ToolResult(call_id=CallId("c_1"), status="ok", changes=(change,))
    denied = ToolResult(call_id=CallId("c_1"), status="denied", content=(Text(text="not in plan mode"),))
    _, talk = printed(piped, use("edit a.py", "edit"), done, use("edit a.py", "edit"), denied)
    assert talk == (
        "● edit a.py\n  a.py (modified)\n  @@ -1 +1 @@\n  -old\n  +new\n"
        "● edit a.py\n  ✗ denied\n    not in plan mode\n"
    )  # fmt: skip


def test_results_of_parallel_uses_say_whose_they_are(piped: Desk) -> None:
    second = ToolUse(call_id=CallId("c_2"), name="bash", kind="execute", title="$ pwd", input={})
    results = [ToolResult(call_id=CallId(name), status="ok", content=(Text(text=name),)) for name in ("c_2", "c_1")]
    _, talk = printed(piped, use(), second, *results)
    assert talk == "● $ ls\n● $ pwd\n  c_2\n● $ ls\n  c_1\n"


def test_a_plan_is_repeated_only_as_far_as_it_moved(piped: Desk) -> None:
    def plan(first: str, second: str) -> PlanUpdated:
        return PlanUpdated(entries=(PlanEntry(text="one", status=first), PlanEntry(text="two", status=second)))  # type: ignore[arg-type]

    _, talk = printed(piped, plan("in_progress", "pending"), plan("completed", "in_progress"))
    assert talk == "plan (0 of 2 done)\n  ◐ one\n  ☐ two\nplan (1 of 2 done)\n  ◐ two\n"


@pytest.mark.parametrize(
    "content,shown", [("no matches for 'zzz'", "no matches for 'zzz'"), ("a:1\nb:2\n", "2 lines"), ("", "(nothing)")]
)
def test_a_search_that_found_nothing_says_so(piped: Desk, content: str, shown: str) -> None:
    result = ToolResult(call_id=CallId("c_1"), status="ok", content=(Text(text=content),))
    assert printed(piped, use("search zzz", "search"), result)[1] == f"● search zzz\n  {shown}\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_turn_without_an_answer_says_that_there_is_none(piped: Desk, terminal: Desk, is_terminal: bool) -> None:
    desk = terminal if is_terminal else piped
    done = ToolResult(call_id=CallId("c_1"), status="ok")
    assert "without an answer" in printed(desk, *OURS, says("I look."), use(), done, TurnCompleted(stop="end"))[1]
    assert "without an answer" not in printed(desk, *OURS, use(), done, says("Seen."), TurnCompleted(stop="end"))[1]
    assert "without an answer" not in printed(desk, *OURS, TurnCompleted(stop="refused"))[1]


def test_work_of_a_subagent_is_set_apart_and_is_no_answer(piped: Desk) -> None:
    inner = MessageAssistant(message_id=A, reply_id=ReplyId("r"), text="inner", parent_call_id=CallId("c_0"))
    answer, talk = printed(piped, *OURS, use(parent="c_0"), inner, says("outer", B), TurnCompleted(stop="end"))
    assert answer == "outer\n"
    assert talk == "  ● $ ls\n  inner\n"


def test_usage_is_summed_and_a_part_nobody_knows_makes_it_unknown(piped: Desk) -> None:
    printer = Printer(piped.streams, styles=Styles(coloured=False))
    hub = DeskHub()
    assert printer.usage() == ""
    for tokens in (10, 20):
        list(printer.told(hub.stamped(UsageUpdated(scope="request", input_tokens=tokens, output_tokens=None)).event))
    assert printer.usage() == "tokens: 30 in, unknown out"


def test_colours_are_only_where_they_are_wanted(piped: Desk) -> None:
    notice = Notice(level="error", code="x", text="look")
    assert "\x1b[" in printed(piped, notice, coloured=True)[1]
    assert printed(piped, notice)[1] == "look\n"


HOSTILE: list[Body] = [
    Unknown(tag="future.tag", data={"x": [1]}, reason="unknown_tag"),
    Unknown(tag="tool.use\x1b[2J", data={}, reason="wrong_shape"),
    use("\x1b]0;owned\x07" * 1000),
    use(""),
    ToolResult(call_id=CallId("c_nobody_knows"), status="ok", content=(Text(text="\x1b[2J" * 100_000),)),
    ToolResult(call_id=CallId("c_1"), status="unknown"),
    says(""),
    MessageAssistant(
        message_id=A, reply_id=ReplyId("r"), text=SpilledText(head="h\x1b", tail="t", size_bytes=9_999_999, sha256="0")
    ),
    PlanUpdated(entries=()),
    Notice(level="warning", code="", text=""),
    TurnFailed(code="\x1b[2J", message="\x1b[2J\nsecond line"),
    TurnCompleted(stop="end"),
]


@pytest.mark.parametrize("recorded", [False, True])
def test_whatever_comes_is_shown_harmlessly_or_left_out(piped: Desk, terminal: Desk, recorded: bool) -> None:
    for desk in (piped, terminal):
        answer, talk = printed(desk, *HOSTILE, recorded=recorded)
        assert "\x1b" not in talk
        assert "\x07" not in talk
        if desk is terminal or recorded:
            assert "\x1b" not in answer
        assert "future.tag" in talk


def test_an_event_of_a_newer_version_does_not_stop_the_show(piped: Desk) -> None:
    line = b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":"teleport.done","to":"moon"}}'
    printer = Printer(piped.streams, styles=Styles(coloured=False))
    [piece] = printer.told(Delivery(event=decode_event(line), line=line).event)
    assert "teleport.done" in piece.text
