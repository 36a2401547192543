"""The translator against streams as real servers send them: whole, broken, and cut anywhere."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse_engines.openai_compatible.faults import Fault
from enginehouse_engines.openai_compatible.server_sent_events import EventLines
from enginehouse_engines.openai_compatible.stream import Reply, Translator
from enginehouse_engines.openai_compatible.tool_fragments import Call
from enginehouse_protocol.events import MessageDelta, ReasoningDelta, UsageUpdated
from enginehouse_protocol.ids import MessageId

from .chunks import DONE, chunk, event, fragment

MESSAGE = MessageId("m_1")
Delta = MessageDelta | ReasoningDelta


def translated(*pieces: str | bytes) -> tuple[list[Delta], Reply]:
    """What these pieces of a body come to, each fed by itself."""
    translator = Translator(MESSAGE)
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += translator.feed(piece.encode() if isinstance(piece, str) else piece)
    last, reply = translator.end()
    return deltas + list(last), reply


def calls_of(*fragments: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The calls that these fragments, one a chunk, are put together to."""
    _, reply = translated(*(chunk(tool_calls=[each]) for each in fragments), chunk(finish="tool_calls"))
    return [(call.id, call.name, call.arguments) for call in reply.calls]


HELLO = chunk(role="assistant", content="") + chunk(content="Hel") + chunk(content="lo – 🙂") + chunk("stop") + DONE
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
COUNTED = UsageUpdated(
    scope="request",
    input_tokens=7,
    cached_input_tokens=5,
    output_tokens=3,
    reasoning_tokens=2,
    context_tokens=10,
)


# --- how the bytes come -----------------------------------------------------------------------------------------------


def test_deltas_that_arrive_in_one_read_are_merged() -> None:
    deltas, reply = translated(HELLO)
    assert deltas == [MessageDelta(message_id=MESSAGE, text="Hello – 🙂")]
    assert (reply.text, reply.finish, reply.ended, reply.fault) == ("Hello – 🙂", "stop", True, None)


def test_reasoning_and_text_keep_their_order_within_one_read() -> None:
    deltas, reply = translated(
        chunk(reasoning_content="a") + chunk(reasoning="b") + chunk(content="c") + chunk(reasoning_content="d")
    )
    assert deltas == [
        ReasoningDelta(message_id=MESSAGE, text="ab"),
        MessageDelta(message_id=MESSAGE, text="c"),
        ReasoningDelta(message_id=MESSAGE, text="d"),
    ]
    assert (reply.reasoning, reply.text) == ("abd", "c")


@given(st.sets(st.integers(min_value=1, max_value=len(HELLO.encode()))), st.sampled_from(["\n", "\r\n", "\r"]))
def test_where_a_body_is_cut_and_how_its_lines_end_changes_nothing(cuts: set[int], newline: str) -> None:
    body = HELLO.replace("\n", newline).encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    deltas, reply = translated(*(body[start:end] for start, end in itertools.pairwise(edges)))
    assert "".join(delta.text for delta in deltas) == reply.text == "Hello – 🙂"
    assert reply.finish == "stop"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_body_fed_byte_by_byte_is_the_same_body(newline: str) -> None:
    body = ("\ufeff" + HELLO).replace("\n", newline).encode()
    _, reply = translated(*(body[at : at + 1] for at in range(len(body))))
    assert (reply.text, reply.finish, reply.ended) == ("Hello – 🙂", "stop", True)


def test_an_event_is_handed_out_as_soon_as_its_empty_line_is_there() -> None:
    translator = Translator(MESSAGE)
    assert list(translator.feed(chunk(content="now").encode())) == [MessageDelta(message_id=MESSAGE, text="now")]


def test_comments_and_other_fields_are_not_data() -> None:
    body = f": ping\n\n:\n\nevent: ping\n\nretry: 10\n\nid: 4\n\ndata: : PROCESSING\n\nevent: x\n{HELLO}"
    assert translated(body)[1].text == "Hello – 🙂"


def test_data_over_several_lines_is_one_event() -> None:
    body = 'data: {"choices": [{"delta":\ndata:  {"content": "two lines"}}]}\n\n'
    assert translated(body)[1].text == "two lines"


def test_the_two_halves_of_a_line_ending_are_not_two_lines() -> None:
    body = b'data: {"choices": [{"delta":\r\ndata:  {"content": "two lines"}}]}\r\n\r\n'
    assert translated(*(body[at : at + 1] for at in range(len(body))))[1].text == "two lines"


def test_events_without_empty_lines_between_them_are_still_events() -> None:
    lines = [chunk(content="a").strip(), chunk(content="b").strip(), chunk("stop").strip(), "data: [DONE]"]
    _, reply = translated("\n".join(lines))
    assert (reply.text, reply.finish, reply.ended) == ("ab", "stop", True)


def test_a_last_event_without_an_empty_line_counts() -> None:
    assert translated(chunk(content="end").rstrip("\n"))[1].text == "end"


def test_a_very_long_line_in_small_pieces_is_one_event() -> None:
    body = chunk(content="x" * 500_000).encode()
    pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
    assert translated(*pieces)[1].text == "x" * 500_000


def test_a_line_without_end_is_given_up_before_the_memory_is_full() -> None:
    lines = EventLines()
    for _ in range(65):
        list(lines.feed(b"x" * 1024 * 1024))
    assert lines.hopeless


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=300))
def test_no_bytes_whatever_raise(data: bytes, at: int) -> None:
    translated(data[:at], data[at:])
    list(EventLines().feed(data))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "delta",
                        "content",
                        "tool_calls",
                        "function",
                        "error",
                        "usage",
                        "index",
                        "id",
                        "name",
                        "arguments",
                        "message",
                        "finish_reason",
                        "reasoning",
                        "type",
                        "thinking",
                    ]
                ),
                x,
            )
        ),
    )
)
def test_no_json_whatever_raises(value: Any) -> None:
    translated(f"data: {json.dumps(value)}\n\n", event(choices=[value]), event(choices=[{"delta": value}]))


def test_ill_formed_text_is_mended_and_the_rest_kept() -> None:
    escaped = b'data: {"choices": [{"delta": {"content": "a \\ud83d b"}}]}\n\n'
    plain = b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'
    assert translated(escaped, plain)[1].text == "a \ufffd b\ufffd"


# --- where a stream ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, ended",
    [
        (chunk(content="a") + chunk("stop") + DONE, True),
        (chunk(content="a") + chunk("stop"), True),
        (chunk(content="a") + DONE, True),
        (chunk(content="a"), False),
        ("", False),
    ],
)
def test_a_stream_is_whole_with_a_reason_or_done_and_cut_without_both(body: str, ended: bool) -> None:
    assert translated(body)[1].ended is ended


def test_nothing_after_done_counts() -> None:
    assert translated(HELLO + chunk(content=" and more"))[1].text == "Hello – 🙂"


def test_chunks_without_choices_are_nothing() -> None:
    _, reply = translated(event(choices=[]), HELLO.removesuffix(DONE), event(choices=[]), event(), DONE)
    assert (reply.text, reply.finish) == ("Hello – 🙂", "stop")


@pytest.mark.parametrize("field", ["index", "delta", "usage", "finish_reason", "error"])
@pytest.mark.parametrize("value", [[], {}, [[]], {"a": []}, 1.5, "x", True])
def test_a_field_of_any_other_type_does_not_raise(field: str, value: Any) -> None:
    translated(event(choices=[{"delta": {"content": "a"}} | {field: value}]))


def test_other_choices_are_not_ours() -> None:
    body = event(choices=[{"index": 1, "delta": {"content": "no"}}, {"delta": {"content": "yes"}}])
    assert translated(body)[1].text == "yes"


# --- errors inside a success ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, fault",
    [
        ("It broke", Fault(message="It broke")),
        ({"message": "It broke", "code": None}, Fault(message="It broke")),
        ({"message": "It broke", "type": "server_error"}, Fault(message="It broke", code="server_error")),
        ({"message": "It broke", "code": 503}, Fault(message="It broke", code="503", http_status=503)),
        ({"strange": 1}, Fault(message='{"strange": 1}')),
    ],
)
@pytest.mark.parametrize("choices", [{}, {"choices": []}])
def test_an_error_object_in_a_success_is_a_fault_and_keeps_the_text(
    error: Any, fault: Fault, choices: dict[str, Any]
) -> None:
    _, reply = translated(chunk(content="a"), chunk(content="b"), event(error=error, **choices), DONE)
    assert (reply.fault, reply.text) == (fault, "ab")


def test_an_error_of_a_choice_is_a_fault() -> None:
    body = event(choices=[{"delta": {"content": ""}, "finish_reason": "error", "error": {"message": "upstream"}}])
    assert translated(body)[1].fault == Fault(message="upstream")


def test_no_error_is_no_fault() -> None:
    assert translated(event(error=None, choices=[{"delta": {"content": "a"}}]))[1].fault is None


def test_an_error_as_plain_json_is_a_fault() -> None:
    _, reply = translated(json.dumps({"error": {"message": "no stream for you"}}, indent=2))
    assert reply.fault == Fault(message="no stream for you")


def test_a_server_that_does_not_stream_is_understood() -> None:
    whole = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "all at once"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    deltas, reply = translated(json.dumps(whole))
    assert deltas == [MessageDelta(message_id=MESSAGE, text="all at once")]
    assert (reply.ended, reply.usage) == (True, COUNTED)


def test_a_page_of_html_is_neither_text_nor_a_fault() -> None:
    _, reply = translated("<html>\n<body>Welcome</body></html>")
    assert reply.empty
    assert not reply.ended
    assert "Welcome" in reply.stray


# --- usage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        chunk(content="a") + event(choices=[], usage=USAGE) + DONE,
        chunk(content="a", usage=USAGE),
        event(choices=[{"delta": {"content": "a"}, "usage": USAGE}]),
        chunk(content="a", usage={"prompt_tokens": 7, "completion_tokens": 1}) + event(choices=[], usage=USAGE),
        event(choices=[], usage=USAGE) + chunk(content="a"),
    ],
    ids=["last chunk", "with content", "in the choice", "grows", "first chunk"],
)
def test_usage_is_found_wherever_it_stands_and_counted_once(body: str) -> None:
    _, reply = translated(body)
    assert (reply.text, reply.usage) == ("a", COUNTED)


def test_reasoning_is_known_by_the_field_it_came_in() -> None:
    for field in ("reasoning_content", "reasoning", "thinking"):
        _, reply = translated(chunk(**{field: "h"}), chunk(**{field: "m"}))
        assert (reply.reasoning, reply.reasoning_field) == ("hm", field)
    parts = [{"type": "thinking", "thinking": "hm"}]
    _, reply = translated(chunk(content=parts))
    assert (reply.reasoning, reply.reasoning_field) == ("hm", None)


def test_a_thought_under_two_names_is_one() -> None:
    _, reply = translated(chunk(reasoning="hm", reasoning_content="hm"))
    assert (reply.reasoning, reply.reasoning_field) == ("hm", "reasoning_content")


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": None}, {"prompt_tokens": -1}, {"prompt_tokens": True}, 7]
)
def test_usage_that_is_not_said_is_unknown_never_zero(usage: Any) -> None:
    assert translated(event(choices=[], usage=usage))[1].usage == UsageUpdated(scope="request")


def test_a_reply_of_no_tokens_was_not_counted() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 0}
    assert translated(chunk(content="a") + event(choices=[], usage=usage))[1].usage.output_tokens is None
    assert translated(event(choices=[], usage=usage))[1].usage.output_tokens == 0


def test_other_words_for_cached_tokens_are_known() -> None:
    usage = {"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}
    assert translated(event(choices=[], usage=usage))[1].usage.cached_input_tokens == 4


# --- what is said -----------------------------------------------------------------------------------------------------


def test_content_in_parts_is_text_and_thinking() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]
    _, reply = translated(chunk(content=parts))
    assert (reply.reasoning, reply.text) == ("hm", "yes")


def test_a_whole_message_after_its_deltas_is_not_said_again() -> None:
    message = {"role": "assistant", "content": "Hi", "tool_calls": None}
    _, reply = translated(chunk(content="Hi"), event(choices=[{"delta": {}, "message": message}]), DONE)
    assert reply.text == "Hi"


@pytest.mark.parametrize("reason", ["error", "network_error", "insufficient_system_resource", "abort", "ABORTED"])
def test_a_reason_that_means_breakage_is_a_fault_that_may_be_mended(reason: str) -> None:
    _, reply = translated(chunk(content="a"), chunk(reason), DONE)
    assert reply.fault == Fault(message=f"the answer ended with {reason!r}", code="server_error")
    assert reply.text == "a"


def test_a_refusal_is_said_and_known_as_one() -> None:
    _, reply = translated(chunk(refusal="I will "), chunk(refusal="not"), chunk("stop"))
    assert (reply.text, reply.refused) == ("I will not", True)


def test_a_content_filter_is_a_refusal() -> None:
    assert translated(chunk(content="a"), chunk("content_filter"))[1].refused


# --- tool calls -------------------------------------------------------------------------------------------------------

A = ("a", "read_file", '{"path":"x"}')
B = ("b", "bash", '{"command":"ls"}')


def test_calls_by_index_may_be_interleaved() -> None:
    assert calls_of(
        fragment(index=0, id="a", name="read_file"),
        fragment(index=1, id="b", name="bash"),
        fragment('{"path"', index=0),
        fragment('{"command"', index=1),
        fragment(':"x"}', index=0),
        fragment(':"ls"}', index=1),
    ) == [A, B]


@pytest.mark.parametrize("repeat_id", [True, False])
def test_calls_without_an_index_are_kept_apart(repeat_id: bool) -> None:
    again_a, again_b = ("a", "b") if repeat_id else (None, None)
    assert calls_of(
        fragment("", id="a", name="read_file"),
        fragment('{"path"', id=again_a),
        fragment(':"x"}', id=again_a),
        fragment("", id="b", name="bash"),
        fragment('{"command"', id=again_b),
        fragment(':"ls"}', id=again_b),
    ) == [A, B]


def test_calls_without_an_index_may_be_interleaved_by_id() -> None:
    assert calls_of(
        fragment('{"path"', id="a", name="read_file"),
        fragment('{"command"', id="b", name="bash"),
        fragment(':"x"}', id="a"),
        fragment(':"ls"}', id="b"),
    ) == [A, B]


def test_whole_calls_without_index_and_id_are_kept_apart() -> None:
    same = '{"path":"x"}'
    assert calls_of(
        fragment(same, name="read_file"), fragment(same, name="read_file"), fragment("{}", name="list_dir")
    ) == [("", "read_file", same), ("", "read_file", same), ("", "list_dir", "{}")]


def test_one_index_for_every_call_does_not_merge_them() -> None:
    assert calls_of(
        fragment('{"path":"x"}', index=0, id="a", name="read_file"),
        fragment('{"command":"ls"}', index=0, id="b", name="bash"),
    ) == [A, B]


@pytest.mark.parametrize("index", [(0, 1), (None, None), (0, 0)], ids=["indexed", "no index", "one index"])
def test_two_calls_with_one_id_are_two_calls(index: tuple[int | None, int | None]) -> None:
    assert calls_of(
        fragment('{"path":"x"}', index=index[0], id="same", name="read_file"),
        fragment('{"command":"ls"}', index=index[1], id="same", name="bash"),
    ) == [("same", *A[1:]), ("same", *B[1:])]


@pytest.mark.parametrize("index", [0, None])
def test_a_server_that_repeats_id_and_name_with_every_piece_means_one_call(index: int | None) -> None:
    pieces = ['{"pa', 'th":"', 'x"}', ""]
    assert calls_of(*(fragment(piece, index=index, id="a", name="read_file") for piece in pieces)) == [A]


def test_arguments_as_an_object_become_their_text() -> None:
    assert calls_of(fragment({"path": "x"}, index=0, id="a", name="read_file")) == [A]


def test_a_name_that_comes_in_pieces_is_put_together() -> None:
    assert calls_of(
        fragment(index=0, id="a", name="read_"), fragment(index=0, name="file"), fragment('{"path":"x"}', index=0)
    ) == [A]


def test_two_calls_in_one_chunk_are_two_calls() -> None:
    both = [fragment(A[2], index=0, id="a", name=A[1]), fragment(B[2], index=1, id="b", name=B[1])]
    _, reply = translated(chunk(tool_calls=both))
    assert reply.calls == (Call(id="a", name=A[1], arguments=A[2]), Call(id="b", name=B[1], arguments=B[2]))


def test_a_placeholder_before_the_arguments_is_not_part_of_them() -> None:
    assert calls_of(fragment("{}", index=0, id="a", name="read_file"), fragment('{"path":"x"}', index=0)) == [A]
    assert calls_of(fragment("{}", index=0, id="a", name="list_dir")) == [("a", "list_dir", "{}")]


def test_arguments_cut_in_the_middle_stay_as_they_came() -> None:
    assert calls_of(fragment('{"path":"x', index=0, id="a", name="read_file")) == [("a", "read_file", '{"path":"x')]


@pytest.mark.parametrize("finish", ["stop", "tool_calls", None])
def test_calls_are_there_whatever_the_reason_says(finish: str | None) -> None:
    _, reply = translated(chunk(finish, tool_calls=[fragment("{}", index=0, id="a", name="list_dir")]), DONE)
    assert len(reply.calls) == 1
