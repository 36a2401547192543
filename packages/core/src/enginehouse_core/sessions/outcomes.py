"""What became of a request or a question, for somebody whose answer comes long after."""

from enginehouse_core.transcript.log import SessionLog, last_seq_of
from enginehouse_protocol.events import AnyEvent, PermissionDecided, QuestionAnswered
from enginehouse_protocol.ids import QuestionId, RequestId
from enginehouse_protocol.permissions import Allow, Expired


async def outcome_of(asked: RequestId | QuestionId, log: SessionLog) -> str:
    """In words, as the record has it; empty when it knows of no such thing."""
    seq = 0
    while page := await log.durable_after(seq):
        for delivery in page:
            if outcome := told_by(delivery.event, asked):
                return outcome
        seq = last_seq_of(page, seq)
    return ""


def told_by(event: AnyEvent, asked: RequestId | QuestionId) -> str:
    """The same, as far as this one event tells it."""
    match event.body:
        case PermissionDecided(request_id=request_id) as body if request_id == asked:
            if isinstance(body.decision, Expired):
                return f"it expired ({body.decision.reason})"
            verb = "allowed" if isinstance(body.decision, Allow) else "denied"
            return f"{verb} by {body.host or body.by}"
        case QuestionAnswered(question_id=question_id) as body if question_id == asked:
            return f"answered from {body.host}" if body.answers is not None else "it expired without an answer"
        case _:
            return ""
