"""Events as bytes: what is kept, what is refused, and that nothing is changed on the way."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse_protocol.codec import (
    MAX_DEPTH,
    decode_event,
    decode_recorded,
    encode_event,
    map_text,
    refuse_nonfinite,
    well_formed,
)
from enginehouse_protocol.content import FileChange, SpilledText, Text
from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.events import (
    Event,
    MessageDelta,
    MessageUser,
    Notice,
    Passing,
    StepHeader,
    StepStarted,
    ToolResult,
    ToolUse,
    Unknown,
)
from enginehouse_protocol.ids import CallId, MessageId, SessionId, new_session_id
from enginehouse_protocol.permissions import JsonObject

S = SessionId("s_01kdvdna0128t5cy4gnf6yy4hm")


def event(body: Any) -> Event:
    return Event(session_id=S, seq=1, at_ms=1, turn_id=None, body=body)


def use(given: JsonObject) -> ToolUse:
    return ToolUse(call_id=CallId("c"), name="bash", kind="execute", title="$ ls", input=given)


def nested(depth: int) -> JsonObject:
    inner: JsonObject = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.text())
def test_any_input_and_any_text_come_back_as_they_were(given_input: JsonObject, text: str) -> None:
    told = event(use(given_input))
    assert decode_event(encode_event(told)) == told
    said = event(MessageUser(message_id=MessageId("m"), content=(Text(text=text),)))
    assert decode_event(encode_event(said)) == said


@given(st.dictionaries(st.text().filter(lambda key: key != "type"), JSON, max_size=4))
def test_any_unknown_body_comes_back_as_it_was(data: JsonObject) -> None:
    line = encode_event(event(Unknown(tag="later.thing", data=data, reason="unknown_tag")))
    again = decode_event(line)
    assert again == event(Unknown(tag="later.thing", data=data, reason="unknown_tag"))
    assert encode_event(again) == line


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "\u2028\u2029\x85", "\0", "\x1b[31m", "🙂 é", '"\\', ""])
def test_one_record_is_one_line_whatever_is_in_it(text: str) -> None:
    line = encode_event(event(use({text: text})))
    assert b"\n" not in line
    assert b"\r" not in line
    assert decode_event(line) == event(use({text: text}))


def test_a_transient_event_has_no_seq() -> None:
    passing = Passing(session_id=S, at_ms=1, turn_id=None, body=MessageDelta(message_id=MessageId("m"), text="x"))
    line = encode_event(passing)
    assert "seq" not in json.loads(line)
    assert decode_event(line) == passing


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\0\0\0\0",
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null}',
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{}}',
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":""}}',
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":7}}',
        b'{"session_id":"s","seq":"1","at_ms":1,"turn_id":null,"body":{"type":"session.closed"}}',
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":"session.closed"}} {"a":1}',
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":"x","a":NaN}}',
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":"x","a":"\xff"}}',
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":"x","a":"\\ud800"}}',
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":"x","a":' + b"[" * 100_000,
        b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":"x","a":'
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}}",
    ],
)
def test_what_is_no_event_at_all_is_refused_everywhere(line: bytes) -> None:
    for decode in (decode_event, decode_recorded):
        with pytest.raises(MalformedData):
            decode(line)


def test_a_field_of_a_later_version_does_not_keep_an_event_from_being_read() -> None:
    line = encode_event(event(Notice(level="info", code="c", text="t")))
    assert decode_event(line.replace(b'"code"', b'"later":{"a":1},"code"')) == decode_event(line)


def test_a_body_called_unknown_is_an_unknown_body_like_any_other() -> None:
    line = b'{"session_id":"s","seq":1,"at_ms":1,"turn_id":null,"body":{"type":"unknown","tag":"tool.use","data":{}}}'
    kept = decode_event(line)
    assert kept.body == Unknown(tag="unknown", data={"tag": "tool.use", "data": {}}, reason="unknown_tag")
    assert encode_event(kept) == line


def test_a_lone_surrogate_cannot_be_encoded_and_is_replaced_by_well_formed() -> None:
    broken = event(use({"a\ud800": "b\udfff"}))
    with pytest.raises(UnicodeEncodeError):
        encode_event(broken)
    mended = map_text(use({"a\ud800": "b\udfff"}), well_formed)
    assert mended.input == {"a\ufffd": "b\ufffd"}
    assert decode_event(encode_event(event(mended))).body == mended


@pytest.mark.parametrize(
    "text,expected",
    [
        ("plain", "plain"),
        ("\ud83d\ude42", "🙂"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude42", "\ufffd🙂"),
        ("🙂\u2028\0", "🙂\u2028\0"),
        ("", ""),
    ],
)
def test_well_formed_joins_pairs_and_replaces_what_is_left(text: str, expected: str) -> None:
    assert well_formed(text) == expected


@given(st.text(st.characters()))
def test_well_formed_leaves_valid_text_alone_and_always_gives_valid_text(text: str) -> None:
    clean = well_formed(text)
    clean.encode()
    assert well_formed(clean) == clean


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_json_cannot_carry_is_found_wherever_it_is(number: float) -> None:
    for value in (number, [number], {"a": {"b": (1, number)}}):
        with pytest.raises(MalformedData):
            refuse_nonfinite(value)
    refuse_nonfinite({"a": [1.5, 10**400, "NaN", None, True]})


def test_json_nested_too_deeply_is_refused_before_it_is_written_not_after() -> None:
    deepest = nested(MAX_DEPTH - 1)
    refuse_nonfinite(deepest)
    kept = map_text(use(deepest), str)
    assert decode_event(encode_event(event(kept))).body == kept
    for too_deep in (nested(MAX_DEPTH + 1), nested(50_000)):
        with pytest.raises(MalformedData, match="levels deep"):
            refuse_nonfinite(too_deep)
        with pytest.raises(MalformedData, match="levels deep"):
            map_text(use(too_deep), str)


def test_mapping_reaches_every_text_and_leaves_every_tag_and_closed_word() -> None:
    result = ToolResult(
        call_id=CallId("c"),
        status="interrupted",
        content=(Text(text="text"), SpilledText(head="h", tail="t", size_bytes=9, sha256="a")),
        changes=(FileChange(path="p", change="modified", diff="d"),),
    )
    assert map_text(result, str.upper) == ToolResult(
        call_id=CallId("C"),
        status="interrupted",
        content=(Text(text="TEXT"), SpilledText(head="H", tail="T", size_bytes=9, sha256="A")),
        changes=(FileChange(path="P", change="modified", diff="D"),),
    )
    assert map_text(use({"type": "kind", "list": ["a", 1, None]}), str.upper).input == {
        "TYPE": "KIND",
        "LIST": ["A", 1, None],
    }
    step = StepStarted(
        step=1,
        history_seq=1,
        request_sha256="x",
        header=StepHeader(model="m", dialect="d", renderer=1, system="s", tools=({"name": "n"},)),
    )
    mapped = map_text(step, str.upper)
    assert mapped.header is not None
    assert mapped.header.tools == ({"NAME": "N"},)


@pytest.mark.parametrize("word", ["tool.result", "interrupted", "spilled", "modified"])
def test_a_secret_that_reads_like_one_of_our_words_is_masked_and_loses_no_event(word: str) -> None:
    def result(text: str) -> ToolResult:
        return ToolResult(
            call_id=CallId("c"),
            status="interrupted",
            content=(SpilledText(head=text, tail="", size_bytes=9, sha256="0"),),
            changes=(FileChange(path=text, change="modified"),),
        )

    masked = map_text(result(f"it is {word}!"), lambda text: text.replace(word, "«secret:KEY»"))
    assert masked == result("it is «secret:KEY»!")


def test_a_body_with_a_word_outside_its_set_is_refused_when_it_is_mapped() -> None:
    wrong = ToolResult(call_id=CallId("c"), status="done")  # pyright: ignore[reportArgumentType]
    with pytest.raises(MalformedData, match=r"tool\.result"):
        map_text(wrong, str)


def test_the_bytes_of_an_event_begin_with_its_session_and_seq() -> None:
    session_id = new_session_id()
    told = Event(session_id=session_id, seq=7, at_ms=5, turn_id=None, body=Notice(level="info", code="c", text="t"))
    assert encode_event(told) == (
        b'{"session_id":"%s","seq":7,"at_ms":5,"turn_id":null,'
        b'"body":{"type":"notice","level":"info","code":"c","text":"t"}}' % session_id.encode()
    )
