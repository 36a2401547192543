"""What became of a message while the disk was full, read from what a view heard and from the receipt."""

import pytest
from terminal.desk import M, S, live

from enginehouse_hosts.terminal.outcome import Outcome
from enginehouse_protocol.content import Text
from enginehouse_protocol.events import (
    AnyEvent,
    Event,
    MessageQueued,
    Notice,
    Passing,
    SessionStateChanged,
    TurnCompleted,
    TurnStarted,
)
from enginehouse_protocol.ids import TurnId

T = TurnId("t_0000000000000000000000000a")
BEFORE = Event(session_id=S, seq=7, at_ms=1, turn_id=None, body=Notice(level="info", code="x", text="repaired"))
QUEUED = Event(session_id=S, seq=8, at_ms=1, turn_id=None, body=MessageQueued(message_id=M, content=(Text(text="hi"),)))
STARTED = Event(session_id=S, seq=9, at_ms=1, turn_id=T, body=TurnStarted(origin="message", message_ids=(M,)))
ENDED = Event(session_id=S, seq=10, at_ms=1, turn_id=T, body=TurnCompleted(stop="end"))


def passing(body: SessionStateChanged) -> AnyEvent:
    return Passing(session_id=S, at_ms=1, turn_id=None, body=body)


FULL = passing(SessionStateChanged(state="idle", read_only="the disk is full"))
PRESENT = Passing(session_id=S, at_ms=1, turn_id=None, body=live(8, busy=True))


def outcome(*heard: AnyEvent) -> Outcome:
    found = Outcome(session_id=S, message_id=M, asked_here=False, seq=6)
    for event in heard:
        found.note(event)
    return found


@pytest.mark.parametrize("overtaken", range(5))
def test_a_receipt_that_overtakes_what_the_view_is_told_says_nothing_else(overtaken: int) -> None:
    """The disk was full, has room again, and so our message was taken."""
    told = [FULL, BEFORE, QUEUED, PRESENT, STARTED]
    found = outcome(*told[: len(told) - overtaken])
    found.sent(8)
    assert not found.over
    for event in (*told[len(told) - overtaken :], ENDED):
        found.note(event)
    assert (found.over, found.exit_code, found.problem) == (True, 0, "")


@pytest.mark.parametrize("receipt_at", range(4))
def test_a_disk_that_fills_after_the_message_was_taken_ends_it(receipt_at: int) -> None:
    found = outcome()
    for place, event in enumerate((QUEUED, STARTED, FULL)):
        if place == receipt_at:
            found.sent(8)
        found.note(event)
    if receipt_at == 3:
        found.sent(8)
    assert (found.over, found.exit_code) == (True, 1)
    assert "the disk is full" in found.problem
