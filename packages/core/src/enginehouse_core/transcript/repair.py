"""What has to be appended so that a conversation cut off in the middle is whole again.

Rule: repair adds, it never rewrites, and adding again adds nothing. A use that was not allowed never ran; one that
was may have, and nobody knows how it ended.
"""

from enginehouse_core.transcript.fold import SessionFold
from enginehouse_core.transcript.scan import Scan
from enginehouse_protocol.content import Text
from enginehouse_protocol.events import (
    DurableBody,
    Notice,
    PermissionDecided,
    QuestionAnswered,
    ToolResult,
    TurnFailed,
)
from enginehouse_protocol.ids import TurnId
from enginehouse_protocol.permissions import Expired

_REASON = "Enginehouse ended while this was under way"
_NEVER_RAN = "This did not run: Enginehouse ended before it was decided."
_NOBODY_KNOWS = "Enginehouse ended while this was running. It may have done all, some or none of its work: check."


def repairs(fold: SessionFold, scan: Scan | None) -> list[tuple[TurnId | None, DurableBody]]:
    """(turn, body) in the order to append them; nothing for a conversation that is whole.

    `scan` is what was found on opening, before the torn tail was set aside; None for a file without damage.
    """
    bodies = _closing(fold)
    for damage in scan.damage if scan else ():
        if damage.kind == "torn_tail":
            text = f"{damage.size_bytes} bytes of a half-written record were set aside"
            bodies.append((None, Notice(level="warning", code="transcript.repaired", text=text)))
    return bodies


def _closing(fold: SessionFold) -> list[tuple[TurnId | None, DurableBody]]:
    """What ends everything that was under way."""
    bodies: list[tuple[TurnId | None, DurableBody]] = []
    for request in fold.requests.values():
        use = fold.open_uses.get(request.call_id)
        expired = PermissionDecided(
            call_id=request.call_id,
            request_id=request.request_id,
            decision=Expired(reason=_REASON),
            by="expiry",
            risk=request.risk,
            input_digest=request.input_digest,
        )
        bodies.append((use.turn_id if use else fold.open_turn, expired))
    bodies += [(fold.open_turn, QuestionAnswered(question_id=question_id)) for question_id in fold.questions]
    for call_id, use in fold.open_uses.items():
        result = ToolResult(
            call_id=call_id,
            status="unknown" if use.allowed else "interrupted",
            content=(Text(text=_NOBODY_KNOWS if use.allowed else _NEVER_RAN),),
            parent_call_id=use.use.parent_call_id,
        )
        bodies.append((use.turn_id, result))
    if fold.open_turn is not None:
        bodies.append((fold.open_turn, TurnFailed(code="interrupted", message=_REASON)))
    return bodies
