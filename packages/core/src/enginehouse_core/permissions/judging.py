"""Judges one case: policy, then masks of secrets, then the gates of plugins.

Rule: each step can only tighten what the one before it said. A gate that fails counts as *ask*, and a turn that ends
does not wait for one that thinks.
"""

from dataclasses import replace
from typing import NamedTuple, Protocol

import anyio
import msgspec

from enginehouse_core.hooks import Hooks
from enginehouse_core.masking import Masker
from enginehouse_core.permissions.cases import Case
from enginehouse_core.permissions.policy import Judgement
from enginehouse_protocol.events import AnyBody, Notice, ToolUse
from enginehouse_protocol.hookspecs import SessionFacts, Tighten
from enginehouse_protocol.ids import TurnId
from enginehouse_protocol.permissions import DecidedBy, strictest

REASON_CHARACTERS = 2_000
_NOT_TEXT = "the input holds text that is no valid Unicode, so what would run is not what can be judged"


class JudgingDesk(Protocol):
    """What judging needs of its session."""

    @property
    def masker(self) -> Masker: ...

    def facts(self) -> SessionFacts: ...

    def judge(self, use: ToolUse) -> Judgement:
        """What policy says."""
        ...

    async def put(self, body: AnyBody, turn_id: TurnId | None) -> int:
        """Returns the seq."""
        ...


class Judged(NamedTuple):
    judgement: Judgement
    by: DecidedBy
    gated: bool = False
    """A gate asked for care (or failed): policy alone cannot allow this any more."""


async def judge_case(desk: JudgingDesk, hooks: Hooks, case: Case, *, takes_edits: bool) -> Judged:
    """`takes_edits`: whether the engine can run another input than the one it holds."""
    use, judgement = case.use, desk.judge(case.use)
    if use.kind not in ("read", "search"):
        name = desk.masker.has_mask(msgspec.json.encode(use.input).decode())
        if name is not None:
            reason = (
                f"the input contains the mask of the secret {name!r}, not its value: a mask must not reach a file "
                "or a command; refer to the secret another way, for example by the name of its variable"
            )
            return Judged(replace(judgement, verdict="deny", reasons=(reason,), rule=None), "gate")
    if judgement.verdict == "deny" or case.turn.ended:
        return Judged(judgement, judgement.by)
    if case.instead is not None and not takes_edits:
        return Judged(replace(judgement, verdict="deny", reasons=(_NOT_TEXT,), rule=None), "gate")
    with anyio.CancelScope() as scope:
        case.turn.gates.add(scope)
        try:
            judged = await _through_gates(desk, hooks, case, judgement)
            now = desk.judge(case.use)  # the mode or the rules may have changed while a gate was thinking
            if strictest(now.verdict, judged.judgement.verdict) != judged.judgement.verdict:
                return Judged(now, now.by, judged.gated)
            return judged
        finally:
            case.turn.gates.discard(scope)
    return Judged(judgement, judgement.by)  # the turn ended while a gate was thinking


async def _through_gates(desk: JudgingDesk, hooks: Hooks, case: Case, judgement: Judgement) -> Judged:
    by: DecidedBy = judgement.by
    gated = False
    async for outcome in hooks.gates(desk.facts(), case.use, judgement.verdict, judgement.risk):
        gated = True
        if outcome.problem:
            problem = shortened(outcome.problem, desk.masker)
            text = f"the gate of plugin {outcome.plugin} failed ({problem}), so this is asked"
            await desk.put(Notice(level="warning", code="hook.failed", text=text), case.turn_id)
        tightened = outcome.value or Tighten(verdict="ask", reason=f"a gate of {outcome.plugin} failed")
        verdict = strictest(judgement.verdict, tightened.verdict)
        if verdict != judgement.verdict:
            reasons = (shortened(tightened.reason, desk.masker),)
            judgement, by = replace(judgement, verdict=verdict, reasons=reasons, rule=None), "gate"
    return Judged(judgement, by, gated)


def shortened(text: str, masker: Masker, most: int = REASON_CHARACTERS) -> str:
    """Masked before it is cut: half a secret would not be recognised."""
    return text if len(text) <= most else masker.text(text)[: most - 1] + "…"
