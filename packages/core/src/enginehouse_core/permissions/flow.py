"""From a tool use to its decision: policy, gates, and where they say so the person.

Rule: every request ends in one `permission.decided`, and so does every use that needed none; the last one about a use
counts. It is on disk before anything of risk *write* or above runs. Silence, a closed view, an interrupt, a rule that
cannot be read: deny.
"""

import contextlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import anyio
import msgspec

from enginehouse_core.hooks import Hooks
from enginehouse_core.permissions.cases import Case, DecidingTurn, case_of, edited_case, is_recorded
from enginehouse_core.permissions.judging import Judged, JudgingDesk, judge_case, shortened
from enginehouse_core.permissions.policy import Judgement
from enginehouse_protocol.codec import refuse_nonfinite, well_formed
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.errors import (
    AlreadyDecided,
    EnginehouseError,
    RequestNotFound,
    StaleDigest,
    TranscriptUnavailable,
)
from enginehouse_protocol.events import Notice, PermissionDecided, PermissionRequested, ToolUse
from enginehouse_protocol.ids import CallId, RequestId, SessionId, TurnId, new_request_id
from enginehouse_protocol.permissions import (
    RISKS,
    Allow,
    Answer,
    DecidedBy,
    Decision,
    Deny,
    Expired,
    JsonObject,
    PendingRequest,
    Risk,
)

NOBODY_THERE = (
    "nobody is there to ask; run this from a terminal, or allow it beforehand with `enginehouse permissions allow`"
)
REPLACED = "replaced by the request about the edited input"
WITHDRAWN = "the engine withdrew its question"
CLOSING_S = 1.0
"""How long recording what was cut off may hold up whoever cut it off."""
_ANSWER_CHARACTERS = 64 << 10
_REMEMBERED = 256


class Desk(JudgingDesk, Protocol):
    """What the flow needs of its session."""

    @property
    def session_id(self) -> SessionId: ...

    def can_be_answered(self) -> bool:
        """Whether anybody who can answer is attached, or is waited for."""
        ...

    def recorded_use(self, call_id: CallId) -> ToolUse | None:
        """The use as the record has it (masked, its long texts spilled) until it has its result."""
        ...

    async def synced(self, seq: int) -> None: ...

    def pending_changed(self) -> None: ...


class _Settled(NamedTuple):
    decision: Decision
    by: DecidedBy
    rule: str | None = None
    host: str | None = None


@dataclass(eq=False)
class _Pending:
    case: Case
    judged: Judged
    shown: PendingRequest
    requested: bool = False
    """Whether the request is in the record."""
    offered: bool = False
    """Whether it is on disk, so that views may know of it."""
    claimed_by: str = ""
    """The host whose answer came first, from when it came."""
    settled: _Settled | None = None
    closed: bool = False
    """Whether its decision is in the record."""
    kept: bool = False
    """Whether that is on disk."""
    over: anyio.Event = field(default_factory=anyio.Event)
    """Set when nothing more is done about this request."""
    woken: anyio.Event = field(default_factory=anyio.Event)

    def expired(self) -> bool:
        return self.settled is not None and isinstance(self.settled.decision, Expired)

    def settle(self, outcome: _Settled) -> bool:
        """False: it was settled already."""
        if self.settled is not None:
            return False
        self.settled = outcome
        self.woken.set()
        return True


class PermissionFlow:
    """Decides the tool uses of one session. Any number may be under way at once."""

    def __init__(
        self,
        desk: Desk,
        hooks: Hooks,
        *,
        expires_after_s: float,
        store_rule: Callable[[str], Awaitable[None]],
    ) -> None:
        self.takes_edits = False
        """Whether the engine can run an edited input; where not, an edit becomes a deny that proposes it."""
        self._desk = desk
        self._hooks = hooks
        self._expires_after_s = expires_after_s
        self._store_rule = store_rule
        self._turn = DecidingTurn()
        self._owed = DecidingTurn()  # of work that goes on between turns: it ends with nothing
        self._pending: dict[RequestId, _Pending] = {}
        self._decided: OrderedDict[RequestId, str] = OrderedDict()  # request → what became of it
        # Keyed, so that a short secret in an input cannot be guessed from its digest in the record.
        self._digest_key = secrets.token_bytes(32)

    @property
    def pending(self) -> list[PendingRequest]:
        return [waiting.shown for waiting in self._pending.values() if waiting.offered and waiting.settled is None]

    async def decide(self, use: ToolUse, turn_id: TurnId | None, *, owed: bool = False) -> Decision:
        """May this use run? Returns once the decision is recorded, and on disk where that matters.

        `owed`: it belongs to detached work, which goes on when its turn has ended.

        Raises:
            TranscriptUnavailable: it cannot be recorded, so it cannot run.
            MalformedData: a number JSON cannot carry, or an input too large to be recorded.
        """
        case = case_of(use, turn_id, self._owed if owed else self._turn, self._digest_key)
        turn = case.turn
        turn.deciding += 1
        try:
            judged = await self._judged(case)
            judgement = judged.judgement
            if turn.ended:
                return await self._record(case, _Settled(Expired(reason=turn.ended), "expiry"), judgement.risk)
            if judgement.verdict == "ask":
                return await self._ask_person(case, judged)
            decision = Allow() if judgement.verdict == "allow" else self._deny(judgement)
            return await self._record(case, _Settled(decision, judged.by, judgement.rule), judgement.risk)
        finally:
            turn.deciding -= 1
            if not turn.deciding:
                turn.quiet.set()
                turn.quiet = anyio.Event()

    # --- the turn -------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """What is asked from now on may be allowed again."""
        self._turn = DecidingTurn()

    def expire_all(self, reason: str) -> None:
        """The turn ends: nothing that waits can be answered any more, and whatever else it asks expires at once."""
        self._turn.ended = self._turn.ended or reason
        for scope in self._turn.gates:
            scope.cancel()
        for waiting in self._pending.values():
            if waiting.case.turn is self._turn:
                waiting.settle(_Settled(Expired(reason=reason), "expiry"))

    def withdraw_all(self, reason: str) -> None:
        """Nobody is there any more to answer what waits."""
        for waiting in self._pending.values():
            if not waiting.claimed_by:
                waiting.settle(_Settled(Expired(reason=reason), "expiry"))

    async def settle_all(self) -> None:
        """After `expire_all`: return once what expired is in the record. Bounded, because a disk may hang."""
        turn = self._turn
        with anyio.move_on_after(CLOSING_S):
            while turn.deciding:
                await turn.quiet.wait()

    async def _judged(self, case: Case) -> Judged:
        return await judge_case(self._desk, self._hooks, case, takes_edits=self.takes_edits)

    # --- the person -----------------------------------------------------------------------------------------------

    async def _ask_person(self, case: Case, judged: Judged, *, again: bool = False) -> Decision:
        why_not = case.turn.ended or ("" if self._desk.can_be_answered() else NOBODY_THERE)
        if why_not:
            return await self._record(case, _Settled(Expired(reason=why_not), "expiry"), judged.judgement.risk)
        waiting = self._waiting(case, judged)
        try:
            answer = await self._answered(waiting)
            settled_case, settled_judged, settled = await self._with_edit(waiting, answer, again=again)
            if settled is not None:
                return await self._close(waiting, settled_case, settled, settled_judged.judgement.risk)
            replaced = _Settled(Expired(reason=REPLACED), "person", None, answer.host)
            await self._close(waiting, case, replaced, judged.judgement.risk)
        except BaseException:
            await self._withdraw(waiting)
            raise
        finally:
            waiting.over.set()
        return await self._ask_person(settled_case, settled_judged, again=True)

    def _waiting(self, case: Case, judged: Judged) -> _Pending:
        masker, use, judgement = self._desk.masker, case.use, judged.judgement
        offer = judgement.always_rule if judgement.can_always else None
        shown = PendingRequest(
            session_id=self._desk.session_id,
            request_id=new_request_id(),
            call_id=use.call_id,
            kind=use.kind,
            title=masker.text(shortened(use.title, masker)),
            input=masker.value(use.input),
            risk=judgement.risk,
            reasons=tuple(masker.text(shortened(reason, masker)) for reason in judgement.reasons),
            digest=case.digest,
            expires_at_ms=time.time_ns() // 1_000_000 + round(self._expires_after_s * 1_000),
            # A rule is stored as it is: one with a secret in it is no rule to offer.
            always_rule=offer if offer is not None and masker.text(offer) == offer else None,
        )
        waiting = self._pending[shown.request_id] = _Pending(case, judged, shown)
        return waiting

    async def _answered(self, waiting: _Pending) -> _Settled:
        """Offer the request and wait for what becomes of it."""
        shown = waiting.shown
        request = PermissionRequested(
            request_id=shown.request_id,
            call_id=shown.call_id,
            kind=shown.kind,
            title=shown.title,
            risk=shown.risk,
            reasons=shown.reasons,
            input_digest=shown.digest,
            expires_at_ms=shown.expires_at_ms,
            input=self._unrecorded_input(waiting.case.use),
            preview=self._unrecorded_preview(waiting.case.use),
            always_rule=shown.always_rule,
        )
        seq = await self._desk.put(request, waiting.case.turn_id)
        waiting.requested = True
        await self._desk.synced(seq)
        waiting.offered = True
        self._desk.pending_changed()
        with anyio.move_on_after(self._expires_after_s):
            await waiting.woken.wait()
        waiting.settle(_Settled(Expired(reason="nobody answered in time"), "expiry"))
        assert waiting.settled is not None
        return waiting.settled

    async def _with_edit(
        self, waiting: _Pending, answer: _Settled, *, again: bool
    ) -> tuple[Case, Judged, _Settled | None]:
        """What is to be recorded about which input. An edited one is judged again: deny wins, and None as the third
        means that its higher risk is asked once more."""
        case, judged = waiting.case, waiting.judged
        if answer.by != "person" or not isinstance(answer.decision, Allow) or answer.decision.input is None:
            return case, judged, answer
        edited = edited_case(case, answer.decision.input, self._digest_key)
        if not self.takes_edits:
            proposal = msgspec.json.encode(edited.use.input).decode()
            reason = f"the person proposes this input instead: {proposal}"
            return case, judged, answer._replace(decision=Deny(reason=self._bounded(reason)))
        rejudged = await self._judged(edited)
        if case.turn.ended:
            return case, judged, _Settled(Expired(reason=case.turn.ended), "expiry")
        judgement = rejudged.judgement
        if judgement.verdict == "deny":
            return edited, rejudged, _Settled(self._deny(judgement, "as edited: "), rejudged.by, judgement.rule)
        if RISKS.index(judgement.risk) > RISKS.index(judged.judgement.risk) and not again:
            reasons = (f"edited; the risk is now {judgement.risk}, asked once more", *judgement.reasons)
            return edited, rejudged._replace(judgement=replace(judgement, reasons=reasons)), None
        return edited, rejudged, answer

    def _deny(self, judgement: Judgement, said: str = "") -> Deny:
        return Deny(reason=self._bounded(said + ("; ".join(judgement.reasons) or "not allowed")))

    def _bounded(self, said: str) -> str:
        return shortened(said, self._desk.masker, _ANSWER_CHARACTERS)

    async def _withdraw(self, waiting: _Pending) -> None:
        """The asking was cut off: no request stays open, and nothing that was cut off is recorded as allowed."""
        if waiting.closed:
            return
        settled = waiting.settled
        if settled is None or isinstance(settled.decision, Allow):
            settled = waiting.settled = _Settled(Expired(reason=WITHDRAWN), "expiry")
        with (
            anyio.CancelScope(shield=True),
            anyio.move_on_after(CLOSING_S),
            contextlib.suppress(EnginehouseError),  # whoever opens the record next repairs it
        ):
            await self._close(waiting, waiting.case, settled, waiting.judged.judgement.risk)

    async def _close(self, waiting: _Pending, case: Case, settled: _Settled, risk: Risk) -> Decision:
        self._forget(waiting, settled)
        return await self._record(case, settled, risk, waiting)

    def _forget(self, waiting: _Pending, settled: _Settled) -> None:
        request_id = waiting.shown.request_id
        self._pending.pop(request_id, None)
        tag = str(settled.decision.__struct_config__.tag)
        self._decided[request_id] = f"{tag} by {settled.host or settled.by}"
        while len(self._decided) > _REMEMBERED:
            self._decided.popitem(last=False)
        self._desk.pending_changed()

    async def _record(self, case: Case, settled: _Settled, risk: Risk, waiting: _Pending | None = None) -> Decision:
        use, decision = case.use, settled.decision
        if isinstance(decision, Allow) and case.instead is not None:
            decision = Allow(input=case.instead)
        carried = isinstance(decision, Allow) and decision.input is not None
        seq = await self._desk.put(
            PermissionDecided(
                call_id=use.call_id,
                decision=decision,
                by=settled.by,
                risk=risk,
                input_digest=case.digest,
                request_id=waiting.shown.request_id if waiting and waiting.requested else None,
                rule=settled.rule,
                host=settled.host,
                input=None if carried else self._unrecorded_input(use),
            ),
            case.turn_id,
        )
        if waiting is not None:
            waiting.closed = True
        if risk != "safe" or waiting is not None:
            await self._desk.synced(seq)
            if waiting is not None:
                waiting.kept = True
            if isinstance(decision, Allow) and case.turn.ended:
                # The turn ended while the disk was slow: the last decision counts, and it must not run.
                late = _Settled(Expired(reason=case.turn.ended), "expiry")
                return await self._record(case, late, risk)
        return decision

    def _unrecorded_input(self, use: ToolUse) -> JsonObject | None:
        """The input, where the `tool.use` in the record does not say it."""
        recorded = self._desk.recorded_use(use.call_id)
        if recorded is not None and is_recorded(self._desk.masker.value(use.input), recorded.input):
            return None
        return use.input

    def _unrecorded_preview(self, use: ToolUse) -> tuple[FileChange, ...]:
        recorded = self._desk.recorded_use(use.call_id)
        return () if recorded is not None and use.preview == recorded.preview else use.preview

    # --- answers --------------------------------------------------------------------------------------------------

    async def answer(self, answer: Answer, host: str) -> None:
        """A person's answer. The first one wins. Returns once it is on disk: what somebody heard of is kept.

        Raises:
            RequestNotFound, AlreadyDecided, StaleDigest
            TranscriptUnavailable: it cannot be recorded, so it does not count.
            MalformedData: an edited input with a number JSON cannot carry.
        """
        waiting = self._pending.get(answer.request_id)
        if waiting is None or waiting.settled is not None or waiting.claimed_by:
            outcome = self._decided.get(answer.request_id)
            if waiting is None and outcome is None:
                raise RequestNotFound(f"there is no permission request {answer.request_id} in this session")
            raise AlreadyDecided(f"this request is settled: {outcome or 'somebody else answered first'}")
        if not secrets.compare_digest(answer.digest, waiting.shown.digest):
            raise StaleDigest("this answer is about another input than the one being asked about; look again")
        decision: Decision = answer.decision
        if isinstance(decision, Deny):
            decision = Deny(reason=self._bounded(well_formed(decision.reason)))
        elif decision.input is not None:
            refuse_nonfinite(decision.input)
        waiting.claimed_by = host
        counts = False
        try:
            if answer.always and isinstance(decision, Allow) and waiting.shown.always_rule:
                # First the rule, then the run: the next use of its kind must not be asked again.
                await self._always(waiting.shown.always_rule, waiting.case.turn_id)
        finally:  # whatever became of the rule or of the host, the person has answered
            counts = waiting.settle(_Settled(decision, "person", None, host))
        if counts:
            await waiting.over.wait()
        if not counts or waiting.expired():
            raise AlreadyDecided("this request was settled before the answer could count: its time or its turn ended")
        if not waiting.kept:
            raise TranscriptUnavailable("the answer could not be recorded, so it does not count")

    async def _always(self, rule: str, turn_id: TurnId | None) -> None:
        try:
            await self._store_rule(rule)
        except EnginehouseError as error:
            # This one is allowed all the same; the person is told that it will be asked again.
            await self._not_stored(f"allowed once only, the rule {rule} could not be stored: {error}", turn_id)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSING_S), contextlib.suppress(EnginehouseError):
                text = f"allowed once only, the rule {rule} was not stored: whoever answered went away meanwhile"
                await self._not_stored(text, turn_id)
            raise

    async def _not_stored(self, text: str, turn_id: TurnId | None) -> None:
        await self._desk.put(Notice(level="warning", code="rule.not_stored", text=text), turn_id)

    def rejudge(self) -> None:
        """Rules or the mode changed: what no longer needs a person is settled. What a gate asked for is no rule's."""
        for waiting in [waiting for waiting in self._pending.values() if not waiting.claimed_by]:
            judgement = self._desk.judge(waiting.case.use)
            if judgement.verdict == "deny":
                waiting.settle(_Settled(self._deny(judgement), judgement.by, judgement.rule))
            elif judgement.verdict == "allow" and not waiting.judged.gated:
                waiting.settle(_Settled(Allow(), judgement.by, judgement.rule))
