"""Ids sort by time and are safe as file names and as values on a command line."""

import pytest

from enginehouse_protocol.ids import (
    is_id,
    new_call_id,
    new_message_id,
    new_question_id,
    new_reply_id,
    new_request_id,
    new_session_id,
    new_turn_id,
)

MAKERS = (
    new_session_id,
    new_turn_id,
    new_call_id,
    new_message_id,
    new_reply_id,
    new_request_id,
    new_question_id,
)


def test_every_id_made_here_has_the_grammar_and_a_prefix_of_its_own() -> None:
    made = [make() for make in MAKERS]
    assert all(is_id(text) for text in made)
    assert len({text.split("_")[0] for text in made}) == len(MAKERS)


def test_ids_are_unique_and_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_700_000_000_000_000_000, 1_800_000_000_000_000_000, 1_000_003_000_000))
    monkeypatch.setattr("time.time_ns", lambda: next(clock))
    made = [new_session_id() for _ in range(1000)]
    assert sorted(made) == made
    assert len(set(made)) == 1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s_",
        "s_01kdvdna0128t5cy4gnf6yy4h",
        "s_01kdvdna0128t5cy4gnf6yy4hmm",
        "S_01kdvdna0128t5cy4gnf6yy4hm",
        "s_01KDVDNA0128T5CY4GNF6YY4HM",
        "s_01kdvdna0128t5cy4gnf6yy4hi",
        "s_01kdvdna0128t5cy4gnf6yy4hl",
        "s_01kdvdna0128t5cy4gnf6yy4ho",
        "s_01kdvdna0128t5cy4gnf6yy4hu",
        "s_01kdvdna0128t5cy4gnf6yy4hm\n",
        " s_01kdvdna0128t5cy4gnf6yy4hm",
        "abcd_01kdvdna0128t5cy4gnf6yy4hm",
        "../01kdvdna0128t5cy4gnf6yy4hm",
        "s_../../../etc/passwd0000000000",
        "--01kdvdna0128t5cy4gnf6yy4hm",
        "s_01kdvdna0128t5cy4gnf6yy4h\u0663",
    ],
)
def test_nothing_else_is_taken_for_an_id(text: str) -> None:
    assert not is_id(text)


def test_a_good_id_is_taken() -> None:
    assert is_id("s_01kdvdna0128t5cy4gnf6yy4hm")
