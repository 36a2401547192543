"""Requests built again from the record alone, as anybody who has only the transcript would.

Rule: it uses nothing of the session that sent them.
"""

import hashlib
import itertools
from collections.abc import Iterable, Mapping

from enginehouse_engines.openai_compatible.render import Conversation, request_body
from enginehouse_protocol.events import Event, StepStarted


def rebuild(events: Iterable[Event], step: Event, images: Mapping[str, bytes] | None = None) -> bytes:
    """The exact body that `step`, a `step.started` of these events, announced."""
    events = list(events)
    assert isinstance(step.body, StepStarted)
    last_seq = step.body.history_seq
    assert last_seq is not None
    before = [event for event in events if event.seq <= last_seq]
    headers = [e.body.header for e in events if e.seq <= step.seq and isinstance(e.body, StepStarted) and e.body.header]
    conversation = Conversation(dialect=headers[-1].dialect, images=images)
    if not conversation.feed(before):
        conversation = conversation.started_over()
        conversation.feed(before)
    return request_body(headers[-1], conversation.messages(headers[-1].system))


def rebuilt(events: Iterable[Event], sent: Iterable[bytes], images: Mapping[str, bytes] | None = None) -> None:
    """Every request that was `sent` is one announced, in order, and the record alone gives it again. The same bytes
    again are a retry, and no step of their own."""
    events = list(events)
    sent = [body for body, _ in itertools.groupby(sent)]
    announced = [event for event in events if isinstance(event.body, StepStarted)]
    assert [rebuild(events, step, images) for step in announced] == sent
    hashes = [event.body.request_sha256 for event in announced if isinstance(event.body, StepStarted)]
    assert hashes == [hashlib.sha256(body).hexdigest() for body in sent]
