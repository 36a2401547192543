"""Turns: who begins them, and what ends them."""

from typing import Any

import pytest

from enginehouse_engines.claude.frames import AssistantFrame, ResultFrame
from enginehouse_engines.claude.saying import (
    NativeId,
    NotUnderstood,
    TurnEnded,
    WantsTurn,
)
from enginehouse_engines.claude.stop_reasons import end_of
from enginehouse_protocol.engine import TurnEnd
from enginehouse_protocol.errors import EngineError, EngineExited
from enginehouse_protocol.events import (
    ToolUse,
)
from enginehouse_protocol.ids import new_turn_id

from .replaying import RESULT, STREAM_FRAME, TEXT_FRAME, Replay, outline, replay

SYNTHETIC: list[dict[str, Any]] = [
    {"type": "user", "message": {"role": "user", "content": text}, "parent_tool_use_id": None, "uuid": "u"}
    for text in (
        "<local-command-stdout>Set model to `claude-opus-4-5`</local-command-stdout>",
        [{"type": "text", "text": "[Request interrupted by user]"}],
        [{"type": "text", "text": "Your response above was cut off mid-stream."}],
        [],
    )
]


# --- turns nobody asked for ---


@pytest.mark.parametrize("frame", [TEXT_FRAME, STREAM_FRAME], ids=["assistant", "stream"])
def test_a_frame_of_the_model_outside_a_turn_asks_for_one(frame: dict[str, Any]) -> None:
    played = Replay()
    assert WantsTurn(origin="engine") in played.frame(frame)
    played.frame(RESULT | {"origin": {"kind": "task-notification"}})
    assert played.ends == [TurnEnded(end=TurnEnd(stop="end"), prompt_uuid=None, origin="task-notification")]


@pytest.mark.parametrize("frame", SYNTHETIC)
def test_a_synthetic_user_frame_before_between_and_after_our_turns_opens_none(frame: dict[str, Any]) -> None:
    """Such a turn would have no end: the CLI says nothing more."""
    played = Replay()
    assert played.frame(frame) == []
    played.prompt("p")
    assert played.frame(frame) == []
    played.frame(TEXT_FRAME)
    played.frame(RESULT | {"user_message_uuid": "p"})
    assert played.frame(frame) == []
    assert not played.translator.in_turn
    assert len(played.ends) == 1


def test_switching_the_model_between_turns_opens_no_turn() -> None:
    assert [line for line in outline(replay("model_switched")) if line.startswith(("wants", "end"))] == [
        "end end",
        "end end",
    ]


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "system", "subtype": "init", "session_id": "s", "model": "m"},
        {"type": "system", "subtype": "status", "status": "requesting"},
        {"type": "system", "subtype": "task_notification", "task_id": "t", "status": "completed"},
        {"type": "command_lifecycle", "command_uuid": "x", "state": "started"},
        RESULT,
    ],
    ids=lambda frame: str(frame.get("subtype") or frame["type"]),
)
def test_other_frames_open_no_turn_either(frame: dict[str, Any]) -> None:
    played = Replay()
    played.frame(frame)
    assert not played.translator.in_turn
    assert played.ends == []


def test_a_turn_of_its_own_that_came_first_does_not_end_ours() -> None:
    """Our prompt was written while the CLI reacted to finished work; ours is answered by the next result."""
    played = replay("prompt_during_its_own_turn")
    ours = [each.prompt_uuid for each in played.ends]
    assert ours[0] is not None
    assert ours[1] is None
    assert ours[2] not in (None, ours[0])
    assert [line for line in outline(played) if line.startswith(("wants", "message", "end"))] == [
        "message m1 'started'",
        "end end",
        "message m2 'reacting'",
        "end end of its own turn",
        "message m3 'answer to ours'",
        "end end",
    ]


def test_a_prompt_folded_into_a_turn_of_its_own_is_answered_by_that_turns_result() -> None:
    played = replay("prompt_folded_into_its_own_turn")
    assert [line for line in outline(played) if line.startswith(("wants", "message", "end"))] == [
        "message m1 'started'",
        "end end",
        "wants task-notification",
        "message m2 'answers both'",
        "end end",
    ]


def test_a_prompt_taken_from_the_queue_ends_as_interrupted() -> None:
    played = Replay()
    played.prompt("p")
    played.frame({"type": "command_lifecycle", "command_uuid": "p", "state": "queued"})
    played.frame({"type": "command_lifecycle", "command_uuid": "p", "state": "cancelled"})
    assert played.ends == [TurnEnded(end=TurnEnd(stop="interrupted"), prompt_uuid="p")]


def test_a_turn_of_its_own_that_outlives_a_cancelled_prompt_is_asked_for_anew() -> None:
    played = Replay()
    played.frame(TEXT_FRAME)
    played.take(played.translator.begin_turn(new_turn_id(), "p"))
    played.frame({"type": "command_lifecycle", "command_uuid": "p", "state": "cancelled"})
    played.frame(STREAM_FRAME)
    played.frame(RESULT | {"origin": {"kind": "task-notification"}})
    assert outline(played) == [
        "wants engine",
        "message m1 'hello'",
        "end interrupted",
        "wants engine",
        "end end of its own turn",
    ]


def test_a_cancelled_prompt_that_was_under_way_is_ended_by_its_result() -> None:
    played = Replay()
    played.prompt("p")
    played.frame({"type": "command_lifecycle", "command_uuid": "p", "state": "started"})
    played.frame({"type": "command_lifecycle", "command_uuid": "p", "state": "cancelled"})
    assert played.ends == []
    played.frame(RESULT | {"user_message_uuid": "p", "terminal_reason": "aborted_streaming", "is_error": True})
    assert played.ends == [TurnEnded(end=TurnEnd(stop="interrupted"), prompt_uuid="p")]


def test_a_result_that_names_no_prompt_is_ours_unless_it_has_an_origin() -> None:
    for origin, ours in ((None, "p"), ({"kind": "task-notification"}, None)):
        played = Replay()
        played.prompt("p")
        played.frame(RESULT | {"origin": origin})
        assert [each.prompt_uuid for each in played.ends] == [ours]


def test_an_interrupt_of_an_idle_session_is_forgotten() -> None:
    played = Replay()
    played.take(played.translator.interrupted())
    played.prompt("p")
    played.take(played.translator.died("gone"))
    (ended,) = played.ends
    assert isinstance(ended.end, EngineExited)


def test_an_interrupt_right_after_the_prompt_ends_a_turn_without_a_word() -> None:
    assert outline(replay("interrupted_at_once"), without="") == ["native None", "end interrupted"]


def test_late_work_of_a_subagent_that_is_over_is_dropped_outside_a_turn() -> None:
    played = replay("interrupted_background_subagent")
    parent = played.all(ToolUse)[0].provider_call_id
    assert played.frame(TEXT_FRAME | {"parent_tool_use_id": parent}) == [
        NotUnderstood(what="a message of work that is over", data={"of": parent})
    ]


# --- how turns end ---


@pytest.mark.parametrize(
    "name, stop",
    [
        ("interrupted_while_streaming", "interrupted"),
        ("too_many_turns", "max_steps"),
        ("over_budget", "budget"),
        ("refused", "refused"),
        ("output_limit", "max_tokens"),
        ("subagent", "end"),
    ],
)
def test_stop_reasons_of_the_real_cli(name: str, stop: str) -> None:
    end = replay(name).ends[0].end
    assert isinstance(end, TurnEnd)
    assert end.stop == stop


def test_stop_reasons_are_read_in_their_order() -> None:
    """A result says several things at once; taking one away uncovers the next."""
    everything = ResultFrame(
        subtype="error_max_turns",
        is_error=True,
        stop_reason="refusal",
        terminal_reason="aborted_streaming",
        errors=["[ede_diagnostic] noise"],
    )
    prose = AssistantFrame(error="max_output_tokens")
    assert _stop(everything, prose) == "interrupted"
    assert _stop(_but(everything, terminal_reason="api_error"), prose) == "max_steps"
    assert _stop(_but(everything, terminal_reason="budget_exhausted", subtype="x"), prose) == "budget"
    assert _stop(_but(everything, terminal_reason="api_error", subtype="error_max_budget_usd"), prose) == "budget"
    assert _stop(_but(everything, terminal_reason="api_error", subtype="success"), prose) == "refused"
    rest = _but(everything, terminal_reason="api_error", subtype="success", stop_reason="stop_sequence")
    assert _stop(rest, prose) == "max_tokens"
    assert isinstance(end_of(rest, None), EngineError)
    assert _stop(_but(rest, is_error=False), None) == "end"


def test_a_refusal_carries_what_the_person_is_told() -> None:
    (ended,) = replay("refused").ends
    assert isinstance(ended.end, TurnEnd)
    assert ended.end.detail.startswith("Sonnet 4.5 can't help with this.")


@pytest.mark.parametrize(
    "name, code, status, words",
    [
        ("rate_limited", "provider.rate_limited", 429, "Request rejected (429) · slow down"),
        ("overloaded", "provider.overloaded", 529, "529 Overloaded."),
        ("unauthorized", "provider.unauthorized", 401, "Invalid API key · Fix external API key"),
        ("bad_request", "provider.bad_request", 400, "400 messages: bad"),
        ("prompt_too_long", "provider.context_exceeded", 400, "Prompt is too long"),
    ],
)
def test_failures_have_a_code_a_status_and_the_providers_words(name: str, code: str, status: int, words: str) -> None:
    (ended,) = replay(name).ends
    assert isinstance(ended.end, EngineError)
    assert (ended.end.code, ended.end.http_status) == (code, status)
    assert str(ended.end).startswith(words)


@pytest.mark.parametrize(
    "error, fields, code",
    [
        ("authentication_failed", {"api_error_status": 403}, "provider.forbidden"),
        ("authentication_failed", {}, "provider.unauthorized"),
        ("billing_error", {"api_error_status": 400}, "provider.quota"),
        ("model_not_found", {"api_error_status": 404}, "provider.not_found"),
        ("invalid_request", {"terminal_reason": "image_error", "api_error_status": 413}, "provider.too_large"),
        ("server_error", {"api_error_status": 500}, "provider.server_error"),
        ("server_error", {}, "provider.unreachable"),
        ("something_new", {"terminal_reason": "api_error"}, "provider.error"),
        (None, {"subtype": "error_during_execution"}, "engine.failed"),
    ],
)
def test_every_kind_of_failure_has_a_code(error: str | None, fields: dict[str, Any], code: str) -> None:
    prose = AssistantFrame(error=error) if error else None
    end = end_of(ResultFrame(is_error=True, **fields), prose)
    assert isinstance(end, EngineError)
    assert (end.code, bool(str(end))) == (code, True)


def test_a_failed_turn_leaves_the_session_usable() -> None:
    played = replay("over_budget")
    assert [each.end for each in played.ends] == [TurnEnd(stop="budget", detail="Reached maximum budget ($0.01)")] * 2


def test_a_dead_process_fails_the_turn_and_the_next_one_resumes() -> None:
    played = replay("killed_while_streaming")
    assert outline(played) == [
        "delta m1 'half '",
        "delta m1 'a '",
        "reset m1",
        "failed engine.exited",
        "delta m2 'next'",
        "message m2 'next'",
        "end end",
    ]
    assert len({each.native_id for each in played.said if isinstance(each, NativeId)}) == 1


def _stop(result: ResultFrame, prose: AssistantFrame | None) -> str:
    end = end_of(result, prose)
    assert isinstance(end, TurnEnd)
    return end.stop


def _but(result: ResultFrame, **fields: Any) -> ResultFrame:
    return ResultFrame(**({name: getattr(result, name) for name in result.__struct_fields__} | fields))
