"""A session's model calls as its transcript tells them: which there were, and the exact request of each.

Rule: the record alone decides. What is rebuilt is compared with the sha256 that was recorded before the request left,
and a difference is said, never hidden.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from enginehouse_engines.openai_compatible.render import RENDERER, Conversation, request_body
from enginehouse_protocol.events import Event, StepHeader, StepStarted
from enginehouse_protocol.ids import TurnId


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One model call."""

    number: int
    """Counts through the session, from 1."""
    seq: int
    turn_id: TurnId | None
    step: int
    """Counts within its turn."""
    started: StepStarted
    header: StepHeader | None
    """The one in force; None: the engine that made this call records none."""


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    sha256: str
    recorded_sha256: str | None
    renderer: int
    """The version that rendered it then."""
    renderer_now: int = RENDERER

    @property
    def same(self) -> bool:
        return self.sha256 == self.recorded_sha256


def recorded_steps(events: Iterable[Event]) -> list[RecordedStep]:
    """Every model call of this session itself, in order; those of native subagents are not its own."""
    steps: list[RecordedStep] = []
    header: StepHeader | None = None
    for event in events:
        body = event.body
        if not isinstance(body, StepStarted) or body.parent_call_id is not None:
            continue
        header = body.header or header
        steps.append(
            RecordedStep(
                number=len(steps) + 1,
                seq=event.seq,
                turn_id=event.turn_id,
                step=body.step,
                started=body,
                header=header,
            )
        )
    return steps


def rebuilt(events: Sequence[Event], step: RecordedStep, images: Mapping[str, bytes] | None = None) -> Rebuilt | None:
    """The request of `step`, one of `recorded_steps(events)`. None: the record does not say what it was made of, so it
    was another engine's. `images`: the blobs that `images_in(events)` names, as far as they are there."""
    last_seq, header = step.started.history_seq, step.header
    if last_seq is None or header is None:
        return None
    before = [event for event in events if event.seq <= last_seq]
    conversation = Conversation(dialect=header.dialect, images=images)
    if not conversation.feed(before):
        conversation = conversation.started_over()
        conversation.feed(before)
    body = request_body(header, conversation.messages(header.system))
    return Rebuilt(
        body=body,
        sha256=hashlib.sha256(body).hexdigest(),
        recorded_sha256=step.started.request_sha256,
        renderer=header.renderer,
    )
