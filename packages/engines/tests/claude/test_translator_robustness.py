"""Nothing the CLI says, or does not say, breaks the translator or the engine contract."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehouse_engines.claude.frames import decode
from enginehouse_engines.claude.saying import (
    Emit,
    NotUnderstood,
    Said,
    TurnEnded,
    drop_transients,
    merge,
)
from enginehouse_protocol.engine import TurnEnd
from enginehouse_protocol.events import (
    MessageAssistant,
    MessageDelta,
    Notice,
    ReasoningDelta,
)
from enginehouse_protocol.ids import MessageId, ReplyId

from .replaying import NAMES, RESULT, TEXT_FRAME, Replay, lines_of, replay

# --- pairing and endings, everywhere ---


@pytest.mark.parametrize("name", NAMES)
def test_every_recording_ends_its_turns_and_answers_its_uses(name: str) -> None:
    played = replay(name)
    played.take(played.translator.closing())
    assert played.open_uses == []


@pytest.mark.parametrize("name", NAMES)
def test_a_process_that_dies_at_any_frame_leaves_nothing_open(name: str) -> None:
    lines = lines_of(name)
    for cut in range(len(lines) + 1):
        played = Replay()
        played.play(lines[:cut])
        owed = played.translator.in_turn
        said = played.take(played.translator.died("killed"))
        assert sum(isinstance(each, TurnEnded) for each in said) == int(owed)
        assert played.open_uses == []
        assert not played.in_turn


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_frames_that_are_missing_or_come_twice_break_nothing(name: str, data: st.DataObject) -> None:
    lines = lines_of(name)
    times = data.draw(st.lists(st.sampled_from((0, 1, 1, 1, 2)), min_size=len(lines), max_size=len(lines)))
    played = Replay()
    for line, count in zip(lines, times, strict=True):
        for _ in range(1 if line.startswith(b'{"note":"prompt"') else count):
            played.line(line)
    played.take(played.translator.died("over"))
    assert played.open_uses == []


# --- what nobody knows ---


@pytest.mark.parametrize(
    "frame, what",
    [
        (b"not json", "a line that is no JSON object"),
        (b"[1]", "a line that is no JSON object"),
        (b'{"no":"type"}', "frame None"),
        (b'{"type":"hologram","x":1}', "frame hologram"),
        (b'{"type":"system","subtype":"tomorrow"}', "system tomorrow"),
    ],
)
def test_unknown_frames_are_kept_and_never_fatal(frame: bytes, what: str) -> None:
    assert [each.what for each in Replay().frame(frame) if isinstance(each, NotUnderstood)] == [what]


def test_unknown_blocks_and_fields_are_kept_or_ignored() -> None:
    played = Replay()
    played.prompt("p")
    frame = json.loads(json.dumps(TEXT_FRAME)) | {"new_field": [1]}
    frame["message"]["content"] = [{"type": "hologram", "x": 1}, {"type": "text", "text": "hello", "y": 2}]
    said = played.frame(frame)
    assert NotUnderstood(what="block hologram", data={"type": "hologram", "x": 1}) in said
    assert [message.text for message in played.all(MessageAssistant)] == ["hello"]


def test_a_result_with_an_odd_field_still_ends_its_turn() -> None:
    played = Replay()
    played.prompt("p")
    said = played.frame(RESULT | {"errors": {"not": "a list"}, "user_message_uuid": "p", "api_error_status": "x"})
    assert [each.end for each in played.ends] == [TurnEnd(stop="end")]
    assert NotUnderstood(what="fields of a ResultFrame: api_error_status, errors") in said


def test_ill_formed_text_becomes_valid_text() -> None:
    played = Replay()
    played.prompt("p")
    played.frame(json.dumps(TEXT_FRAME).replace("hello", "a\\ud800b").encode())
    assert [message.text for message in played.all(MessageAssistant)] == ["a\ufffdb"]
    played.frame(json.dumps(TEXT_FRAME).replace("hello", "c").encode().replace(b'"c"', b'"c\xff"'))
    assert played.all(MessageAssistant)[-1].text == "c\ufffd"


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_no_frame_of_a_known_type_with_any_content_raises(value: Any) -> None:
    for kind in ("stream_event", "assistant", "user", "result", "system", "command_lifecycle", "rate_limit_event"):
        for field in ("message", "event", "content", "subtype", "tool_use_result", "origin", "rate_limit_info"):
            decode({"type": kind, field: value})
            Replay().translator.feed({"type": kind, field: value})


def test_a_limit_that_is_nearly_used_up_is_said_once() -> None:
    played = Replay()
    info = {"status": "allowed_warning", "rateLimitType": "five_hour"}
    played.frame({"type": "rate_limit_event", "rate_limit_info": info})
    played.frame({"type": "rate_limit_event", "rate_limit_info": info})
    assert played.bodies == [
        Notice(level="warning", code="provider.rate_limit", text="The account's five hour limit is nearly used up.")
    ]


# --- merging what waits ---


def test_adjacent_deltas_of_one_message_are_merged_and_nothing_else() -> None:
    said: list[Said] = [_delta("m1", "a"), _delta("m1", "b"), _thought("m1", "c"), _delta("m2", "d"), _delta("m2", "e")]
    assert merge(said) == [_delta("m1", "ab"), _thought("m1", "c"), _delta("m2", "de")]
    between = Emit(body=MessageAssistant(message_id=MessageId("m1"), reply_id=ReplyId("r"), text="ab"))
    assert merge([_delta("m1", "a"), between, _delta("m1", "b")]) == [_delta("m1", "a"), between, _delta("m1", "b")]


@pytest.mark.parametrize("name", NAMES)
def test_merging_keeps_every_text_and_every_durable_body(name: str) -> None:
    said = replay(name).said
    merged = merge(said)
    assert drop_transients(merged) == drop_transients(said)
    assert _texts(merged) == _texts(said)


def test_dropping_transients_keeps_what_the_session_has_to_do() -> None:
    said = replay("dropped_before_a_block_was_finished").said
    kinds = {type(each.body).__name__ for each in drop_transients(said) if isinstance(each, Emit)}
    assert kinds == {"NativeUpdated", "Notice", "StepStarted", "MessageAssistant", "UsageUpdated"}
    assert isinstance(drop_transients(said)[-1], TurnEnded)


def _delta(message_id: str, text: str) -> Emit:
    return Emit(body=MessageDelta(message_id=MessageId(message_id), text=text))


def _thought(message_id: str, text: str) -> Emit:
    return Emit(body=ReasoningDelta(message_id=MessageId(message_id), text=text))


def _texts(said: list[Said]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for each in said:
        if isinstance(each, Emit) and isinstance(each.body, MessageDelta | ReasoningDelta):
            texts[each.body.message_id] = texts.get(each.body.message_id, "") + each.body.text
    return texts
