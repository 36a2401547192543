"""What a turn cost, what it did to the history, and where the CLI keeps it."""

import json

import pytest

from enginehouse_engines.claude.saying import (
    Emit,
    ModeChanged,
)
from enginehouse_protocol.events import (
    HistoryChanged,
    NativeUpdated,
    Notice,
    UsageUpdated,
)

from .replaying import RESULT, STREAM_FRAME, TEXT_FRAME, Replay, lines_of, replay

# --- usage ---


def test_usage_is_the_increment_of_the_turn_with_its_cost_and_gauges() -> None:
    assert replay("thinking_and_text").all(UsageUpdated) == [
        UsageUpdated(
            scope="turn",
            input_tokens=140,
            cached_input_tokens=40,
            cache_write_tokens=0,
            output_tokens=20,
            reasoning_tokens=0,
            cost_usd=0.000612,
            context_tokens=160,
            context_window=200_000,
        ),
        UsageUpdated(
            scope="turn",
            input_tokens=100,
            cached_input_tokens=0,
            cache_write_tokens=0,
            output_tokens=20,
            reasoning_tokens=0,
            cost_usd=0.0006000000000000001,
            context_tokens=120,
            context_window=200_000,
        ),
    ]


@pytest.mark.parametrize(
    "name, requests",
    [("subagent", 4), ("background_subagent", 5), ("tools", 15), ("compaction_by_hand", 4)],
)
def test_usage_has_the_subagents_and_the_clis_own_requests(name: str, requests: int) -> None:
    said = replay(name).all(UsageUpdated)
    assert sum(each.output_tokens or 0 for each in said) == 20 * requests
    assert sum(each.input_tokens or 0 for each in said) == 100 * requests


def test_requests_that_were_sent_again_are_counted() -> None:
    (usage,) = replay("dropped_always").all(UsageUpdated)
    assert usage.input_tokens == 400


def test_a_turn_that_asked_no_model_has_no_usage() -> None:
    assert replay("interrupted_at_once").all(UsageUpdated) == []


def test_a_price_the_cli_only_guessed_is_unknown() -> None:
    (usage,) = replay("unknown_model").all(UsageUpdated)
    assert (usage.input_tokens, usage.cost_usd) == (100, None)


def test_a_running_total_is_never_counted() -> None:
    """`modelUsage` grows over resumes: where the increment is missing, the turn's usage is unknown."""
    played = Replay()
    played.prompt("p")
    played.frame(TEXT_FRAME)
    total = {"inputTokens": 11_118, "outputTokens": 9, "costUSD": 1.0, "contextWindow": 200_000}
    played.frame(RESULT | {"user_message_uuid": "p", "modelUsage": {"m": total}})
    (usage,) = played.all(UsageUpdated)
    assert (usage.input_tokens, usage.output_tokens, usage.cost_usd) == (None, None, None)
    assert usage.context_window == 200_000


def test_a_request_cut_by_death_is_unknown_and_finished_ones_are_counted() -> None:
    assert replay("killed_while_streaming").all(UsageUpdated)[0] == UsageUpdated(scope="turn")
    assert replay("killed_while_a_tool_runs").all(UsageUpdated)[0] == UsageUpdated(
        scope="turn", input_tokens=100, cached_input_tokens=0, cache_write_tokens=0, output_tokens=20
    )


def test_a_session_that_dies_idle_says_no_usage() -> None:
    played = replay("thinking_and_text")
    assert played.take(played.translator.died("gone")) == []


# --- compaction, native references, modes ---


@pytest.mark.parametrize(
    "name, before, after",
    [("compaction_by_hand", 120, 2684), ("compaction_by_itself", 11_371, 13_934)],
)
def test_a_shortened_history_is_said_with_its_summary(name: str, before: int, after: int) -> None:
    played = replay(name)
    (changed,) = played.all(HistoryChanged)
    assert (changed.tokens_before, changed.tokens_after) == (before, after)
    assert str(changed.summary).endswith("Summary:\nSUMMARY")


def test_the_context_gauge_knows_of_a_compaction() -> None:
    gauges = [usage.context_tokens for usage in replay("compaction_by_hand").all(UsageUpdated)]
    assert gauges == [120, 120, 2684, 120]


def test_a_compaction_outside_a_turn_waits_for_the_next() -> None:
    """It would be refused there, and it must not open one: nothing may follow."""
    played = Replay()
    metadata = {"trigger": "auto", "pre_tokens": 9, "post_tokens": 1}
    assert played.frame({"type": "system", "subtype": "compact_boundary", "compact_metadata": metadata}) == []
    replayed = {"type": "user", "message": {"role": "user", "content": "Set model"}, "isReplay": True}
    assert played.frame(replayed) == []
    summary = {"type": "user", "message": {"role": "user", "content": "Summary: all"}, "isSynthetic": True}
    assert played.frame(summary) == []
    played.frame(STREAM_FRAME)
    assert played.all(HistoryChanged) == [
        HistoryChanged(reason="compaction", summary="Summary: all", tokens_before=9, tokens_after=1)
    ]


def test_a_compaction_that_failed_is_told() -> None:
    played = Replay()
    failed = {"type": "system", "subtype": "status", "compact_result": "failed", "compact_error": "too_few_groups"}
    played.frame(failed)
    assert played.bodies == [
        Notice(
            level="warning",
            code="claude.compaction_failed",
            text="The conversation could not be shortened: too_few_groups",
        )
    ]


def test_the_native_reference_is_said_once_a_turn_with_its_result_and_is_the_last_reply() -> None:
    """Earlier the CLI's store does not hold it."""
    played = Replay()
    lines = lines_of("thinking_and_text")
    refs: list[tuple[bytes, str | None]] = []
    last = ""
    for line in lines:
        frame = json.loads(line)
        if frame.get("type") == "assistant":
            last = frame["uuid"]
        for each in played.line(line):
            if isinstance(each, Emit) and isinstance(each.body, NativeUpdated) and each.body.turn_ref:
                refs.append((frame["type"], each.body.turn_ref))
                assert each.body.turn_ref == last
    assert [kind for kind, _ in refs] == ["result", "result"]


def test_the_native_id_is_said_at_first_sight_only() -> None:
    played = replay("thinking_and_text")
    assert len([each for each in played.all(NativeUpdated) if each.turn_ref is None]) == 1
    assert played.translator.native_id


def test_the_clis_own_mode_is_followed() -> None:
    modes = [each.mode for each in replay("plan_approved").said if isinstance(each, ModeChanged)]
    assert modes == ["plan", "default"]
