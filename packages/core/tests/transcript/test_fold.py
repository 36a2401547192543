"""What a model may still see after parts of its history were replaced."""

import pytest
from transcript.sample import SESSION

from enginehouse_core.transcript.fold import SessionFold
from enginehouse_protocol.events import Event, HistoryReplaced


@pytest.mark.parametrize(
    "replaced, start",
    [
        ([], 1),
        ([(1, 59)], 60),
        ([(30, 41)], 1),
        ([(30, 41), (1, 29)], 42),
        ([(1, 59), (60, 99)], 100),
        ([(1, 59), (70, 80)], 60),
        ([(5, 90), (1, 10), (20, 30)], 91),
        ([(9, 3)], 1),
    ],
)
def test_history_starts_at_the_first_event_that_no_replacement_covers(
    replaced: list[tuple[int, int]], start: int
) -> None:
    fold = SessionFold()
    for seq, (first, last) in enumerate(replaced, start=200):
        body = HistoryReplaced(first_seq=first, last_seq=last, by=seq, reason="rewind")
        fold.apply(Event(session_id=SESSION, seq=seq, at_ms=1, turn_id=None, body=body))
    assert fold.history_start == start
