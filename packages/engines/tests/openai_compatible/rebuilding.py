"""Requests built again from the record alone, as anybody who has only the transcript would.

Rule: it uses nothing of the session that sent them.
"""

from collections.abc import Iterable

from enginehouse_engines.openai_compatible.render import Conversation, request_body
from enginehouse_protocol.events import Event, StepStarted


def rebuild(events: Iterable[Event], step: Event) -> bytes:
    """The exact body that `step`, a `step.started` of these events, announced."""
    events = list(events)
    assert isinstance(step.body, StepStarted)
    last_seq = step.body.history_seq
    assert last_seq is not None
    before = [event for event in events if event.seq <= last_seq]
    headers = [e.body.header for e in events if e.seq <= step.seq and isinstance(e.body, StepStarted) and e.body.header]
    conversation = Conversation()
    if not conversation.feed(before):
        conversation = conversation.started_over()
        conversation.feed(before)
    return request_body(headers[-1], conversation.messages(headers[-1].system))
