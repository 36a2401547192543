"""Requests as a pure function of the record: what is said, in which order, and that nothing sent ever changes."""

import hashlib
import itertools
import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from enginehouse_engines.openai_compatible.dialects import ALWAYS, DIALECT, NEVER, NO_IMAGES
from enginehouse_engines.openai_compatible.guard import EMPTY_REPLY
from enginehouse_engines.openai_compatible.render import RENDERER, Conversation, request_body
from enginehouse_protocol.content import Image, SpilledText, Text
from enginehouse_protocol.events import (
    DurableBody,
    Event,
    HistoryReplaced,
    MessageAssistant,
    MessageUser,
    Notice,
    PermissionDecided,
    Reasoning,
    StepHeader,
    StepStarted,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    Unknown,
    UsageUpdated,
)
from enginehouse_protocol.ids import CallId, MessageId, ReplyId, new_message_id
from enginehouse_protocol.permissions import Deny
from enginehouse_protocol.testing import MemoryHistory

from .rebuilding import rebuild

NO_ANSWER = {"role": "assistant", "content": "[no answer came]"}
HEADER = StepHeader(
    model="m",
    dialect=DIALECT,
    renderer=RENDERER,
    system="Be good.",
    tools=({"type": "function"},),
    options={"stream": True, "temperature": 0.5},
)


PIXELS = (b"\x89PNG\r\n\x1a\none", b"GIF89atwo")
ONE = Image(media_type="image/png", sha256=hashlib.sha256(PIXELS[0]).hexdigest(), size_bytes=11, name="one.png")
TWO = Image(media_type="image/gif", sha256=hashlib.sha256(PIXELS[1]).hexdigest(), size_bytes=9)
LOST = Image(media_type="image/webp", sha256="0" * 64, size_bytes=7, name="lost.webp")


def user(text: str) -> MessageUser:
    return MessageUser(message_id=new_message_id(), content=(Text(text=text),))


def shown(images: list[Image], text: str = "look") -> MessageUser:
    return MessageUser(message_id=new_message_id(), content=(Text(text=text), *images))


def said(text: str, reply: str = "r1", **more: Any) -> MessageAssistant:
    return MessageAssistant(message_id=MessageId(f"m_{reply}"), reply_id=ReplyId(reply), text=text, **more)


def use(call: str, reply: str | None = "r1", *, provider: str | None = None, arguments: str = "{}") -> ToolUse:
    return ToolUse(
        call_id=CallId(call),
        name="bash",
        kind="execute",
        title="$ ls",
        input={},
        arguments=arguments,
        provider_call_id=provider,
        reply_id=None if reply is None else ReplyId(reply),
    )


def result(call: str, text: str = "done", status: Any = "ok") -> ToolResult:
    return ToolResult(call_id=CallId(call), status=status, content=(Text(text=text),) if text else ())


class Record:
    """A record that sends: what the session does around the fold, without a model."""

    def __init__(self) -> None:
        self.history = MemoryHistory()
        for data in PIXELS:
            self.history.keep(data)
        self.bodies: list[bytes] = []
        self.steps: list[Event] = []
        self.header: StepHeader | None = None

    def add(self, *bodies: DurableBody) -> None:
        for body in bodies:
            self.history.stamp(body)

    def send(self, header: StepHeader = HEADER, *between: DurableBody) -> bytes:
        """Make a request of everything recorded. `between`: what core records while it is being made."""
        conversation = folded(self.history.events, header.dialect, self.history.blobs)
        body = request_body(header, conversation.messages(header.system))
        self.add(*between)
        self.steps.append(
            self.history.stamp(
                StepStarted(
                    step=1,
                    history_seq=conversation.seq,
                    request_sha256=hashlib.sha256(body).hexdigest(),
                    header=None if header == self.header else header,
                )
            )
        )
        self.header = header
        self.bodies.append(body)
        return body


def folded(events: list[Event], dialect: str = DIALECT, images: Mapping[str, bytes] | None = None) -> Conversation:
    conversation = Conversation(dialect=dialect, images=images)
    if not conversation.feed(events):
        conversation = conversation.started_over()
        assert conversation.feed(events)
    return conversation


def messages(*bodies: DurableBody, dialect: str = DIALECT) -> list[dict[str, Any]]:
    """What a request made now says after the system text."""
    record = Record()
    record.add(*bodies)
    return json.loads(record.send(replace(HEADER, dialect=dialect)))["messages"][1:]


def tool_message(call: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def call_of(call: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": "bash", "arguments": arguments}}


# --- what is said -----------------------------------------------------------------------------------------------------


def test_a_body_begins_with_everything_that_stays_the_same() -> None:
    record = Record()
    record.add(user("hi"))
    assert record.send() == (
        b'{"model":"m","stream":true,"temperature":0.5,"tools":[{"type":"function"}],"messages":['
        b'{"role":"system","content":"Be good."},{"role":"user","content":"hi"}]}'
    )


def test_a_reply_with_calls_is_one_message_answered_in_the_order_of_the_calls() -> None:
    assert messages(
        user("go"),
        said("I look."),
        UsageUpdated(scope="request"),
        use("c1", arguments='{"command": "ls" }'),
        use("c2"),
        PermissionDecided(call_id=CallId("c1"), decision=Deny(reason="no"), by="person", risk="safe", input_digest=""),
        result("c2", "second"),
        result("c1", "Not allowed: no", "denied"),
        said("Seen.", "r2"),
    ) == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [call_of("c1", '{"command": "ls" }'), call_of("c2")],
        },
        tool_message("c1", "Not allowed: no"),
        tool_message("c2", "second"),
        {"role": "assistant", "content": "Seen."},
    ]


def test_calls_without_text_have_no_content() -> None:
    assert messages(use("c1"), result("c1"))[0] == {"role": "assistant", "content": None, "tool_calls": [call_of("c1")]}


def test_reasoning_and_empty_messages_are_not_sent_back() -> None:
    assert messages(user("hi"), said("", reasoning=Reasoning(text="hm")), Notice(level="info", code="x", text="y")) == [
        {"role": "user", "content": "hi"}
    ]


THOUGHT = Reasoning(text="hm", opaque={"field": "reasoning_content"})


def part(image: Image, data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{b64encode(data).decode()}"}}


def test_a_message_with_images_says_what_they_are_and_shows_them_after_its_text() -> None:
    assert messages(user("first"), shown([ONE, LOST, TWO]), user("last")) == [
        {
            "role": "user",
            "content": [
                {
                    "type": "text",
                    "text": "first\n\nlook\n[image: one.png, 11 bytes]\n[image: lost.webp, 7 bytes; it is lost]\n"
                    "[image: GIF, 9 bytes]",
                },
                part(ONE, PIXELS[0]),
                part(TWO, PIXELS[1]),
                {"type": "text", "text": "last"},
            ],
        }
    ]


def test_a_dialect_without_images_says_what_they_are_in_plain_text() -> None:
    sent = messages(shown([ONE], "what is this?"), dialect=DIALECT + NO_IMAGES)
    said = "what is this?\n[image: one.png, 11 bytes; it cannot be shown to you]"
    assert sent == [{"role": "user", "content": said}]


def test_images_of_tool_results_follow_all_results_of_their_reply_and_what_is_said_then_joins_them() -> None:
    seen = replace(result("c1", ""), content=(ONE,))
    late = replace(result("c2", "half"), content=(Text(text="half"), TWO))
    sent = messages(use("c1"), use("c2"), late, seen, user("go on"))
    assert [message["role"] for message in sent] == ["assistant", "tool", "tool", "user"]
    assert [message["content"] for message in sent[1:]] == [
        "[image: one.png, 11 bytes]",
        "half\n[image: GIF, 9 bytes]",
        [
            {"type": "text", "text": "[The images that the tool results above name, in their order]"},
            part(ONE, PIXELS[0]),
            part(TWO, PIXELS[1]),
            {"type": "text", "text": "go on"},
        ],
    ]


def test_the_image_of_a_late_result_comes_with_it() -> None:
    record = Record()
    record.add(use("c1"))
    record.send()
    record.add(replace(result("c1"), content=(ONE,)))
    (sent,) = json.loads(record.send())["messages"][3:]
    text = "[Result of the earlier bash call, which arrived late]\n[image: one.png, 11 bytes]"
    assert sent == {"role": "user", "content": [{"type": "text", "text": text}, part(ONE, PIXELS[0])]}


@pytest.mark.parametrize(
    "dialect, with_text, with_calls",
    [(DIALECT, False, True), (NEVER, False, False), (ALWAYS, True, True), ("a_later_version", False, True)],
)
def test_the_dialect_says_which_replies_carry_their_reasoning(dialect: str, with_text: bool, with_calls: bool) -> None:
    looked, answered = [
        message
        for message in messages(
            user("go"),
            said("", reasoning=THOUGHT),
            use("c1"),
            result("c1"),
            said("Seen.", "r2", reasoning=THOUGHT),
            dialect=dialect,
        )
        if message["role"] == "assistant"
    ]
    assert looked.get("reasoning_content") == ("hm" if with_calls else None)
    assert answered.get("reasoning_content") == ("hm" if with_text else None)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_goes_back_under_the_field_it_came_in(field: str) -> None:
    sent = messages(said("I look.", reasoning=Reasoning(text="hm", opaque={"field": field})), use("c1"))[0]
    assert list(sent) == ["role", "content", field, "tool_calls"]
    assert sent[field] == "hm"


@pytest.mark.parametrize("opaque", [None, {}, {"field": "content"}, {"field": 7}, {"signature": "x"}])
def test_reasoning_of_no_known_field_stays_here(opaque: Any) -> None:
    sent = messages(said("I look.", reasoning=Reasoning(text="hm", opaque=opaque)), use("c1"))[0]
    assert list(sent) == ["role", "content", "tool_calls"]


def test_what_was_said_about_an_empty_reply_is_a_message_after_it() -> None:
    told = Notice(level="warning", code=EMPTY_REPLY, text="Say something.")
    assert messages(user("go"), told, Notice(level="info", code="provider.retry", text="no message")) == [
        {"role": "user", "content": "go"},
        NO_ANSWER,
        {"role": "user", "content": "[Say something.]"},
    ]
    assert messages(use("c1"), result("c1"), told)[2:] == [NO_ANSWER, {"role": "user", "content": "[Say something.]"}]
    assert messages(user("go"), said("yes"), told)[1:] == [
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "[Say something.]"},
    ]


def test_a_provider_id_that_comes_again_is_replaced_by_ours() -> None:
    found = messages(
        use("c1", provider="same"),
        use("c2", provider="same"),
        result("c1", "one"),
        result("c2", "two"),
        use("c3", "r2", provider="same"),
        result("c3", "three"),
        use("c4", "r3", provider="other"),
        result("c4", "four"),
    )
    assert [message["tool_call_id"] for message in found if message["role"] == "tool"] == ["same", "c2", "c3", "other"]
    assert [call["id"] for message in found for call in message.get("tool_calls", [])] == ["same", "c2", "c3", "other"]


def test_a_call_without_a_result_is_answered_with_that() -> None:
    answer = messages(use("c1"), use("c2"), result("c2"))[1]
    assert answer["tool_call_id"] == "c1"
    assert "no result" in answer["content"]


def test_a_result_without_its_call_is_told_as_text() -> None:
    assert messages(user("hi"), result("gone", "it worked")) == [
        {
            "role": "user",
            "content": "hi\n\n[Result of a tool call that is no longer in this conversation, which arrived late]\n"
            "it worked",
        }
    ]


def test_a_second_result_of_one_call_is_not_told() -> None:
    assert messages(use("c1"), result("c1", "one"), result("c1", "two"))[1:] == [tool_message("c1", "one")]


def test_results_without_words_still_say_how_it_ended() -> None:
    for status, words in [
        ("ok", "no output"),
        ("interrupted", "interrupted"),
        ("unknown", "not known"),
        ("denied", "not"),
    ]:
        assert words in messages(use("c1"), result("c1", "", status))[1]["content"]


def test_how_a_turn_ended_is_no_message() -> None:
    """Core tells the next turn of it, as a message of its own, so that every engine hears the same."""
    for end in (TurnCompleted(stop="interrupted"), TurnFailed(code="provider.timeout", message="slow\nserver")):
        assert messages(user("go"), end, user("again")) == messages(user("go"), user("again"))


def test_a_turn_that_ended_well_is_not_told() -> None:
    assert messages(user("go"), said("done"), TurnCompleted(stop="end"), user("more"))[1:] == [
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "more"},
    ]


def test_what_was_said_while_tools_ran_comes_after_their_results() -> None:
    assert [message["role"] for message in messages(use("c1"), user("stop that"), result("c1"))] == [
        "assistant",
        "tool",
        "user",
    ]


def test_long_texts_name_the_file_that_holds_them() -> None:
    spill = SpilledText(head="begin", tail="end", size_bytes=1_000_000, sha256="ab" * 32)
    content = messages(use("c1"), ToolResult(call_id=CallId("c1"), status="ok", content=(spill,)))[1]["content"]
    assert content.startswith("begin\n[… 999992 bytes not shown here")
    assert f"{'ab' * 32}.txt in your scratch folder" in content
    assert content.endswith("\nend")


def test_spilled_arguments_are_still_json() -> None:
    spill = SpilledText(head='{"content":"', tail='"}', size_bytes=2_000_000, sha256="ab" * 32)
    body = ToolUse(call_id=CallId("c1"), name="bash", kind="execute", title="", input={}, arguments=spill)
    sent = messages(body)[0]["tool_calls"][0]["function"]["arguments"]
    assert f"{'ab' * 32}.txt" in json.loads(sent)["shortened"]


@pytest.mark.parametrize(
    "arguments", ['{"command": "ls', "[1]", "3", "null", "nothing", '{"a": NaN}', '{"a": "\\ud800"}']
)
def test_arguments_that_are_no_object_are_sent_back_as_one(arguments: str) -> None:
    """Servers that read historical arguments again would refuse every later request."""
    sent = messages(use("c1", arguments=arguments))[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"not_json": arguments}


@pytest.mark.parametrize("arguments, sent", [('{"a" : 1}', '{"a" : 1}'), ("", "{}"), (" \n", "{}")])
def test_arguments_that_are_an_object_or_nothing_stay_what_they_are(arguments: str, sent: str) -> None:
    assert messages(use("c1", arguments=arguments))[0]["tool_calls"][0]["function"]["arguments"] == sent


def test_a_name_no_server_takes_back_is_made_one() -> None:
    for name, sent in [("a.b c", "a_b_c"), ("", "unnamed"), ("x" * 99, "x" * 64)]:
        body = ToolUse(call_id=CallId("c1"), name=name, kind="other", title="", input={}, arguments="{}")
        assert messages(body)[0]["tool_calls"][0]["function"]["name"] == sent


def test_the_work_of_a_native_subagent_and_what_we_do_not_know_are_not_this_conversation() -> None:
    inner = MessageAssistant(
        message_id=MessageId("m"), reply_id=ReplyId("r"), text="inner", parent_call_id=CallId("c1")
    )
    assert messages(user("hi"), inner) == [{"role": "user", "content": "hi"}]
    conversation = Conversation()
    history = MemoryHistory()
    event = history.stamp(user("hi"))
    unknown = Event(
        session_id=event.session_id,
        seq=2,
        at_ms=0,
        turn_id=None,
        body=Unknown(tag="future", data={}, reason="unknown_tag"),
    )
    assert conversation.feed([event, unknown])
    assert (conversation.seq, len(conversation.messages("s"))) == (2, 2)


# --- what is replaced -------------------------------------------------------------------------------------------------


def replaced(first: int, last: int, summary: str) -> HistoryReplaced:
    return HistoryReplaced(first_seq=first, last_seq=last, by=last, reason="compaction", summary=summary)


def test_a_summary_stands_where_the_events_stood() -> None:
    assert messages(user("one"), said("two"), user("three"), replaced(1, 2, "short"), said("four", "r2")) == [
        {"role": "user", "content": "[Summary of the conversation up to here]\nshort\n\nthree"},
        {"role": "assistant", "content": "four"},
    ]


def test_a_later_summary_may_cover_an_earlier_one() -> None:
    found = messages(
        user("one"), said("two"), replaced(1, 2, "first"), user("three"), replaced(1, 4, "second"), user("four")
    )
    assert found == [{"role": "user", "content": "[Summary of the conversation up to here]\nsecond\n\nfour"}]


def test_a_result_whose_call_was_replaced_is_no_orphan_in_the_request() -> None:
    found = messages(user("one"), use("c1"), replaced(1, 2, "s"), result("c1", "late"))
    assert [message["role"] for message in found] == ["user"]
    assert "late" in found[0]["content"]


def test_steps_before_and_after_a_replacement_are_built_again_alike() -> None:
    record = Record()
    record.add(user("one"))
    record.send()
    record.add(said("two"), TurnCompleted(stop="end"), user("three"))
    record.send()
    record.add(said("four", "r2"), replaced(1, 5, "short"), user("five"))
    record.send()
    assert [rebuild(record.history.events, step) for step in record.steps] == record.bodies
    assert b"short" in record.bodies[2]
    assert b"one" not in record.bodies[2]


# --- what must never change -------------------------------------------------------------------------------------------


def test_a_result_that_comes_late_does_not_reach_back() -> None:
    record = Record()
    record.add(user("go"), use("c1"))
    first = record.send()
    record.add(result("c1", "finally"))
    second = record.send()
    assert second.startswith(first[:-2])
    assert "[Result of the earlier bash call, which arrived late]\\nfinally" in second.decode()


def test_what_core_records_while_a_request_is_made_belongs_to_the_next() -> None:
    record = Record()
    record.add(user("go"))
    first = record.send(HEADER, user("and this"))
    second = record.send()
    assert b"and this" not in first
    assert second.startswith(first[:-2])
    assert json.loads(second)["messages"][2:] == [NO_ANSWER, {"role": "user", "content": "and this"}]
    assert [rebuild(record.history.events, step) for step in record.steps] == record.bodies


@pytest.mark.parametrize(
    "between",
    [
        [TurnFailed(code="x", message="it broke")],
        [UsageUpdated(scope="request"), TurnCompleted(stop="end")],
        [said("", reasoning=Reasoning(text="hm")), TurnCompleted(stop="end")],
    ],
    ids=["failed", "empty", "only reasoning"],
)
def test_no_two_messages_of_the_user_are_sent_in_a_row(between: list[DurableBody]) -> None:
    """Strict chat templates refuse them."""
    record = Record()
    record.add(user("one"))
    first = record.send()
    record.add(*between, user("[Your previous turn failed.]"), user("two"))
    second = record.send()
    record.add(user("three"))
    third = record.send()
    assert json.loads(third)["messages"][1:] == [
        {"role": "user", "content": "one"},
        NO_ANSWER,
        {"role": "user", "content": "[Your previous turn failed.]\n\ntwo"},
        NO_ANSWER,
        {"role": "user", "content": "three"},
    ]
    assert second.startswith(first[:-2])
    assert third.startswith(second[:-2])
    assert [rebuild(record.history.events, step) for step in record.steps] == record.bodies


def test_a_step_whose_history_nobody_knows_closes_what_stands_before_it() -> None:
    """An engine that does not make its requests itself knows neither their history nor their bytes."""
    record = Record()
    record.add(user("one"), use("c1"), StepStarted(step=1), result("c1", "late"), user("two"))
    sent = json.loads(record.send())["messages"][1:]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    assert "no result" in sent[2]["content"]
    assert "late" in sent[3]["content"]


def test_another_header_is_found_again_for_its_step() -> None:
    record = Record()
    record.add(user("go"))
    record.send()
    record.send(StepHeader(model="other", dialect=DIALECT, renderer=RENDERER, system="New."))
    record.send()
    assert [rebuild(record.history.events, step) for step in record.steps] == record.bodies


CALLS = st.integers(min_value=1, max_value=6).map(lambda n: f"c{n}")
REPLIES = st.integers(min_value=1, max_value=4).map(lambda n: f"r{n}")
IMAGES = st.sampled_from([ONE, TWO, LOST])
BODIES: st.SearchStrategy[DurableBody] = st.one_of(
    st.text(max_size=5).map(user),
    st.builds(said, st.text(max_size=5), REPLIES),
    st.builds(use, CALLS, REPLIES | st.none(), provider=st.sampled_from([None, "p", "q"])),
    st.builds(result, CALLS, st.text(max_size=5), st.sampled_from(["ok", "error", "denied", "interrupted", "unknown"])),
    st.sampled_from([TurnCompleted(stop="end"), TurnCompleted(stop="interrupted")]),
    st.just(TurnFailed(code="x", message="it broke")),
    st.just(UsageUpdated(scope="request", input_tokens=1)),
    st.just(Notice(level="warning", code=EMPTY_REPLY, text="Say something.")),
    st.builds(said, st.text(max_size=5), REPLIES, reasoning=st.just(THOUGHT)),
    st.builds(shown, st.lists(IMAGES, min_size=1, max_size=2)),
    st.builds(lambda call, image: replace(result(call), content=(Text(text="look"), image)), CALLS, IMAGES),
)
ACTS = st.lists(BODIES | st.just("send") | st.lists(BODIES, min_size=1, max_size=2).map(tuple), max_size=30)


@given(ACTS, st.sampled_from([DIALECT, NEVER, ALWAYS, DIALECT + NO_IMAGES]))
def test_whatever_is_recorded_a_request_begins_with_the_one_before_and_can_be_built_again(
    acts: list[Any], dialect: str
) -> None:
    """`send` makes a request; a tuple is what core records while one is being made."""
    record = Record()
    header = replace(HEADER, dialect=dialect)
    for act in acts:
        if act == "send":
            record.send(header)
        elif isinstance(act, tuple):
            record.send(header, *act)
        else:
            record.add(act)
    record.send(header)
    for earlier, later in zip(record.bodies, record.bodies[1:], strict=False):
        assert later.startswith(earlier.removesuffix(b"]}"))
    for step, body in zip(record.steps, record.bodies, strict=True):
        assert rebuild(record.history.events, step, record.history.blobs) == body
        paired(json.loads(body)["messages"])


@given(ACTS, st.integers(min_value=1, max_value=7))
def test_folding_in_pieces_is_folding_at_once(acts: list[Any], size: int) -> None:
    record = Record()
    for act in acts:
        record.send() if act == "send" else record.add(*(act if isinstance(act, tuple) else (act,)))
    events = record.history.events
    pieces = Conversation(images=record.history.blobs)
    for at in range(0, len(events), size):
        assert pieces.feed(events[at : at + size])
        pieces.messages("asking in between changes nothing")
    assert pieces.messages("s") == folded(events, images=record.history.blobs).messages("s")


def paired(sent: list[dict[str, Any]]) -> None:
    """Every call is answered once, at once and in order, no two calls of a conversation share an id, and no message of
    the user follows another."""
    assert not any(a["role"] == b["role"] == "user" for a, b in itertools.pairwise(sent))
    expected: list[str] = []
    seen: list[str] = []
    for message in sent:
        if message["role"] == "tool":
            assert message["tool_call_id"] == expected.pop(0)
            continue
        assert expected == []
        expected = [call["id"] for call in message.get("tool_calls", [])]
        seen += expected
    assert expected == []
    assert len(seen) == len(set(seen))
