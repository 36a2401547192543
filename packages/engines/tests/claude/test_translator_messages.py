"""What the model says: one message for each block, and nothing that the CLI says for itself."""

from typing import Any

import pytest

from enginehouse_engines.claude.saying import Emit
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.events import (
    MessageAssistant,
    MessageDelta,
    MessageReset,
    Notice,
    Reasoning,
    ReasoningDelta,
    ToolUse,
)

from .replaying import Replay, outline, replay


def test_each_block_is_one_message_and_its_deltas_carry_its_id() -> None:
    played = replay("thinking_and_text")
    assert outline(played) == [
        "thought m1 'Let me think'",
        "message m1 thinking 'Let me think'",
        "delta m2 'Hel'",
        "delta m2 'lo'",
        "message m2 'Hello'",
        "end end",
        "delta m3 'Second'",
        "message m3 'Second'",
        "end end",
    ]


def test_blocks_of_one_reply_share_its_id_and_their_ids_are_made_of_it() -> None:
    thought, text, second = replay("thinking_and_text").all(MessageAssistant)
    assert thought.reply_id == text.reply_id != second.reply_id
    assert (thought.message_id, text.message_id) == (f"{text.reply_id}-0", f"{text.reply_id}-1")


def test_thinking_is_reasoning_without_text_and_its_signature_is_untouched() -> None:
    played = replay("thinking_and_text")
    thought = played.all(MessageAssistant)[0]
    assert thought.text == ""
    assert thought.reasoning == Reasoning(text="Let me think", opaque={"type": "thinking", "signature": "c2lnbmF0dXJl"})
    assert [delta.text for delta in played.all(ReasoningDelta)] == ["Let me think"]


def test_redacted_thinking_passes_whole_and_shows_nothing() -> None:
    played = Replay()
    played.prompt("p")
    played.frame(_assistant("msg_1", {"type": "redacted_thinking", "data": "b3BhcXVl"}))
    (thought,) = played.all(MessageAssistant)
    assert thought.reasoning == Reasoning(opaque={"type": "redacted_thinking", "data": "b3BhcXVl"})


def test_a_reply_dropped_before_a_block_was_finished_voids_only_its_open_message() -> None:
    assert outline(replay("dropped_before_a_block_was_finished")) == [
        "delta m1 'half '",
        "delta m1 'a sen'",
        "reset m1",
        "notice provider.retry",
        "delta m2 'whole'",
        "message m2 'whole'",
        "end end",
    ]


def test_a_reply_dropped_after_a_tool_ran_keeps_its_text_and_its_tool() -> None:
    """The CLI does not ask again for what is finished: the next reply goes on from there."""
    assert outline(replay("dropped_after_a_tool_ran")) == [
        "delta m1 'First.'",
        "message m1 'First.'",
        "use c1 execute '$ echo ran'",
        "delta m2 'and th'",
        "result c1 ok",
        "reset m2",
        "notice provider.retry",
        "delta m3 'resumed'",
        "message m3 'resumed'",
        "end end",
    ]


def test_a_finished_text_of_a_dropped_reply_stands() -> None:
    assert outline(replay("dropped_after_a_text")) == [
        "delta m1 'First block.'",
        "message m1 'First block.'",
        "delta m2 'second'",
        "reset m2",
        "delta m3 'resumed'",
        "message m3 'resumed'",
        "end end",
    ]


def test_a_reply_that_finally_comes_unstreamed_is_a_message_like_every_other() -> None:
    played = replay("dropped_always")
    shown = {delta.message_id for delta in played.all(MessageDelta)}
    assert {reset.message_id for reset in played.all(MessageReset)} == shown
    assert len(shown) == 3
    assert outline(played)[-2:] == ["message m4 'half a sentence'", "end end"]


def test_an_error_inside_the_stream_leaves_a_cut_message() -> None:
    """The CLI calls that text finished; only the stream tells that it is not."""
    assert outline(replay("error_in_the_stream")) == [
        "delta m1 'partial '",
        "delta m1 'text'",
        "message m1 'partial text' cut",
        "delta m2 'done'",
        "message m2 'done'",
        "end end",
    ]


def test_text_cut_by_an_interrupt_is_not_complete() -> None:
    assert outline(replay("interrupted_while_streaming"))[:4] == [
        "delta m1 'half '",
        "delta m1 'a '",
        "message m1 'half a ' cut",
        "end interrupted",
    ]


def test_a_thought_that_was_finished_before_the_interrupt_is_complete() -> None:
    (thought,) = replay("interrupted_after_thinking").all(MessageAssistant)
    assert thought.complete


def test_an_interrupt_in_a_tools_input_announces_no_use() -> None:
    played = replay("interrupted_in_tool_input")
    assert played.all(ToolUse) == []
    assert outline(played)[:3] == ["delta m1 'I will'", "message m1 'I will'", "end interrupted"]


@pytest.mark.parametrize("name", ["refused", "output_limit"])
def test_what_a_limit_or_a_refusal_cut_is_not_complete(name: str) -> None:
    assert {message.complete for message in replay(name).all(MessageAssistant)} == {False}


@pytest.mark.parametrize("name", ["rate_limited", "overloaded", "unauthorized", "bad_request", "prompt_too_long"])
def test_a_sentence_of_the_cli_about_an_error_is_no_message(name: str) -> None:
    played = replay(name)
    assert played.all(MessageAssistant) == []
    (ended,) = played.ends
    assert isinstance(ended.end, EngineError)
    assert str(ended.end)
    assert not str(ended.end).startswith("API Error")


def test_a_sentence_about_an_error_the_cli_overcame_is_a_notice_not_a_failure() -> None:
    played = replay("dropped_after_a_tool_ran")
    assert played.all(Notice) == [
        Notice(
            level="warning",
            code="provider.retry",
            text="Connection lost mid-response. The response above may be incomplete.",
        )
    ]


def test_a_retry_is_never_silent() -> None:
    assert [notice.text for notice in replay("rate_limited").all(Notice)] == [
        "The provider refused: rate limit (HTTP 429). Sending the request again in 0.56 s (1 of 2).",
        "The provider refused: rate limit (HTTP 429). Sending the request again in 1.1 s (2 of 2).",
    ]


def test_what_the_cli_says_in_place_of_a_reply_is_a_notice() -> None:
    played = Replay()
    played.prompt("p")
    played.frame(_assistant("x", {"type": "text", "text": "Total cost: $0"}, model="<synthetic>"))
    assert played.bodies == [Notice(level="info", code="claude.said", text="Total cost: $0")]


def test_providers_that_repeat_their_ids_do_not_mix_messages_up() -> None:
    played = Replay()
    played.prompt("p")
    for text in ("one", "two"):
        played.frame(_stream({"type": "message_start", "message": {"id": "msg_1"}}))
        played.frame(_stream({"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}))
        played.frame(_assistant("msg_1", {"type": "text", "text": text}))
        played.frame(_stream({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}))
        played.frame(_stream({"type": "message_stop"}))
    first, second = played.all(MessageAssistant)
    assert first.message_id != second.message_id
    assert first.reply_id != second.reply_id


def test_a_delta_of_a_finished_block_is_dropped() -> None:
    """After its durable message nothing may be said of a message."""
    played = Replay()
    played.prompt("p")
    played.frame(_stream({"type": "message_start", "message": {"id": "msg_1"}}))
    played.frame(_stream({"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}))
    delta = _stream({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}})
    played.frame(delta)
    played.frame(_assistant("msg_1", {"type": "text", "text": "a"}))
    assert played.frame(delta) == []
    played.frame(_stream({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}))
    assert outline(played) == ["delta m1 'a'", "message m1 'a'"]


def test_a_subagents_text_names_the_use_it_is_below() -> None:
    played = replay("background_subagent")
    (agent, _) = played.all(ToolUse)
    below = [message for message in played.all(MessageAssistant) if message.parent_call_id is not None]
    assert [(message.text, message.parent_call_id) for message in below] == [
        ("sub says", agent.call_id),
        ("sub done", agent.call_id),
    ]


def test_every_model_call_of_the_conversation_is_a_step() -> None:
    assert [line for line in outline(replay("subagent"), without="") if line.startswith("step")] == [
        "step 1",
        "step 2",
    ]
    retried = outline(replay("dropped_before_a_block_was_finished"), without="")
    assert [line for line in retried if line.startswith("step")] == ["step 1", "step 2"]


def test_a_step_begins_before_what_it_says() -> None:
    assert outline(replay("thinking_and_text"), without="native usage")[0] == "step 1"
    played = Replay()
    played.prompt("p")
    said = played.frame(_assistant("msg_9", {"type": "text", "text": "unstreamed"}))
    assert [type(each.body).__name__ for each in said if isinstance(each, Emit)] == ["StepStarted", "MessageAssistant"]


def _stream(event: dict[str, Any]) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": None}


def _assistant(message_id: str, *blocks: dict[str, Any], model: str = "claude-sonnet-4-5") -> dict[str, Any]:
    return {
        "type": "assistant",
        "message": {"id": message_id, "model": model, "content": list(blocks), "stop_reason": None},
        "parent_tool_use_id": None,
        "uuid": "u",
    }
