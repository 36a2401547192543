"""From a tool use to its decision: policy, gates, and where they say so the person.

Rule: every use leaves exactly one `permission.decided`, on disk before anything of risk *write* or above runs.
Silence, a closed view, an interrupt, a rule that cannot be read: deny.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import anyio
import msgspec

from enginehouse_core.hooks import Hooks
from enginehouse_core.masking import Masker
from enginehouse_core.permissions.policy import Judgement
from enginehouse_protocol.errors import (
    AlreadyDecided,
    EnginehouseError,
    RequestNotFound,
    StaleDigest,
)
from enginehouse_protocol.events import (
    AnyBody,
    Notice,
    PermissionDecided,
    PermissionRequested,
    ToolUse,
)
from enginehouse_protocol.hookspecs import SessionFacts, Tighten
from enginehouse_protocol.ids import RequestId, SessionId, TurnId, new_request_id
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
    strictest,
)

NOBODY_THERE = (
    "nobody is there to ask; run this from a terminal, or allow it beforehand with `enginehouse permissions allow`"
)
_CANONICAL = msgspec.json.Encoder(order="deterministic")
_REMEMBERED = 256


class Desk(Protocol):
    """What the flow needs of its session."""

    @property
    def session_id(self) -> SessionId: ...

    @property
    def masker(self) -> Masker: ...

    def facts(self) -> SessionFacts: ...

    def judge(self, use: ToolUse) -> Judgement: ...

    def can_be_answered(self) -> bool:
        """Whether anybody who can answer is attached."""
        ...

    async def put(self, body: AnyBody, turn_id: TurnId | None) -> int:
        """Returns the seq."""
        ...

    async def synced(self, seq: int) -> None: ...

    def pending_changed(self) -> None: ...


class _Settled(NamedTuple):
    decision: Decision
    by: DecidedBy
    rule: str | None = None
    host: str | None = None


@dataclass
class _Pending:
    use: ToolUse
    turn_id: TurnId | None
    shown: PendingRequest
    judgement: Judgement
    offered: bool = False
    """Whether the request is on disk, so that views may know of it."""
    claimed_by: str = ""
    """The host whose answer came first, from when it came."""
    settled: _Settled | None = None
    woken: anyio.Event = field(default_factory=anyio.Event)

    def settle(self, outcome: _Settled) -> None:
        if self.settled is None:
            self.settled = outcome
            self.woken.set()


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
        self._pending: dict[RequestId, _Pending] = {}
        self._decided: OrderedDict[RequestId, str] = OrderedDict()  # request → what became of it
        # Keyed, so that a short secret in an input cannot be guessed from its digest in the record.
        self._digest_key = secrets.token_bytes(32)

    @property
    def pending(self) -> list[PendingRequest]:
        return [waiting.shown for waiting in self._pending.values() if waiting.offered and waiting.settled is None]

    async def decide(self, use: ToolUse, turn_id: TurnId | None) -> Decision:
        """May this use run? Returns once the decision is recorded, and on disk where that matters.

        Raises:
            TranscriptUnavailable: it cannot be recorded, so it cannot run.
        """
        digest = self.digest(use.input)
        judgement, by = await self._judged(use, turn_id)
        if judgement.verdict == "ask":
            return await self._ask_person(use, turn_id, judgement, digest)
        decision: Decision = Allow() if judgement.verdict == "allow" else Deny(reason=_why(judgement))
        return await self._record(use, turn_id, _Settled(decision, by, judgement.rule), judgement.risk, digest)

    def digest(self, tool_input: JsonObject) -> str:
        return hashlib.blake2b(_CANONICAL.encode(tool_input), key=self._digest_key, digest_size=16).hexdigest()

    # --- policy and gates -----------------------------------------------------------------------------------------

    async def _judged(self, use: ToolUse, turn_id: TurnId | None) -> tuple[Judgement, DecidedBy]:
        judgement = self._desk.judge(use)
        if use.kind not in ("read", "search"):
            name = self._desk.masker.has_mask(msgspec.json.encode(use.input).decode())
            if name is not None:
                reason = (
                    f"the input contains the mask of the secret {name!r}, not its value: a mask must not reach a file "
                    "or a command; refer to the secret another way, for example by the name of its variable"
                )
                return replace(judgement, verdict="deny", reasons=(reason,), rule=None), "gate"
        by: DecidedBy = judgement.by
        if judgement.verdict == "deny":
            return judgement, by
        async for outcome in self._hooks.gates(self._desk.facts(), use, judgement.verdict, judgement.risk):
            if outcome.problem:
                text = f"the gate of plugin {outcome.plugin} failed ({outcome.problem}), so this is asked"
                await self._desk.put(Notice(level="warning", code="hook.failed", text=text), turn_id)
            tightened = outcome.value or Tighten(verdict="ask", reason=f"a gate of {outcome.plugin} failed")
            verdict = strictest(judgement.verdict, tightened.verdict)
            if verdict != judgement.verdict:
                judgement, by = replace(judgement, verdict=verdict, reasons=(tightened.reason,), rule=None), "gate"
        return judgement, by

    # --- the person -----------------------------------------------------------------------------------------------

    async def _ask_person(
        self,
        use: ToolUse,
        turn_id: TurnId | None,
        judgement: Judgement,
        digest: str,
        *,
        edited_by: _Settled | None = None,
    ) -> Decision:
        if not self._desk.can_be_answered():
            return await self._record(
                use, turn_id, _Settled(Expired(reason=NOBODY_THERE), "expiry"), judgement.risk, digest
            )
        waiting, request = self._request(use, turn_id, judgement, digest, differs=edited_by is not None)
        request_id = waiting.shown.request_id
        try:
            await self._desk.synced(await self._desk.put(request, turn_id))
            waiting.offered = True
            self._desk.pending_changed()
            with anyio.move_on_after(self._expires_after_s):
                await waiting.woken.wait()
            waiting.settle(_Settled(Expired(reason="nobody answered in time"), "expiry"))
        except BaseException:
            waiting.settle(_Settled(Expired(reason="the engine withdrew its question"), "expiry"))
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await self._close(waiting, digest)
            raise
        assert waiting.settled is not None
        answer = waiting.settled
        if isinstance(answer.decision, Allow) and answer.decision.input is not None and answer.by == "person":
            return await self._edited(waiting, answer.decision.input, answer, request_id, again=edited_by is not None)
        return await self._close(waiting, digest)

    def _request(
        self, use: ToolUse, turn_id: TurnId | None, judgement: Judgement, digest: str, *, differs: bool
    ) -> tuple[_Pending, PermissionRequested]:
        expires_at_ms = time.time_ns() // 1_000_000 + round(self._expires_after_s * 1_000)
        shown = PendingRequest(
            session_id=self._desk.session_id,
            request_id=new_request_id(),
            call_id=use.call_id,
            kind=use.kind,
            title=self._desk.masker.text(use.title),
            input=self._desk.masker.value(use.input),
            risk=judgement.risk,
            reasons=tuple(map(self._desk.masker.text, judgement.reasons)),
            digest=digest,
            expires_at_ms=expires_at_ms,
            always_rule=judgement.always_rule if judgement.can_always else None,
        )
        waiting = _Pending(use, turn_id, shown, judgement)
        self._pending[shown.request_id] = waiting
        request = PermissionRequested(
            request_id=shown.request_id,
            call_id=use.call_id,
            kind=use.kind,
            title=use.title,
            risk=judgement.risk,
            reasons=judgement.reasons,
            input_digest=digest,
            expires_at_ms=expires_at_ms,
            input=use.input if differs else None,
            always_rule=shown.always_rule,
        )
        return waiting, request

    async def _edited(
        self, waiting: _Pending, tool_input: JsonObject, answer: _Settled, request_id: RequestId, *, again: bool
    ) -> Decision:
        """The person changed the input: judged again. Deny wins, a higher risk is asked once more."""
        use = msgspec.structs.replace(
            waiting.use, input=tool_input, paths=_edited_paths(waiting.use, tool_input), preview=()
        )
        digest = self.digest(tool_input)
        judgement, by = await self._judged(use, waiting.turn_id)
        if judgement.verdict == "deny":
            waiting.settled = _Settled(Deny(reason=f"as edited: {_why(judgement)}"), by, judgement.rule)
            return await self._close(waiting, digest)
        if not self.takes_edits:
            proposal = msgspec.json.encode(tool_input).decode()
            waiting.settled = answer._replace(
                decision=Deny(reason=f"the person proposes this input instead: {proposal}")
            )
            return await self._close(waiting, digest)
        if RISKS.index(judgement.risk) > RISKS.index(waiting.judgement.risk) and not again:
            reason = f"edited; the risk is now {judgement.risk}, asked once more"
            waiting.settled = _Settled(Expired(reason=reason), "person", None, answer.host)
            # No decision yet: the request is replaced by the one about the edited input.
            self._forget(request_id, reason)
            decision = await self._ask_person(use, waiting.turn_id, judgement, digest, edited_by=answer)
            return Allow(input=tool_input) if decision == Allow() else decision
        waiting.settled = answer
        return await self._close(waiting, digest)

    async def _close(self, waiting: _Pending, digest: str) -> Decision:
        assert waiting.settled is not None
        request_id = waiting.shown.request_id
        decision = waiting.settled.decision
        self._forget(request_id, f"{decision.__struct_config__.tag} by {waiting.settled.host or waiting.settled.by}")
        return await self._record(
            waiting.use, waiting.turn_id, waiting.settled, waiting.judgement.risk, digest, request_id
        )

    def _forget(self, request_id: RequestId, outcome: str) -> None:
        self._pending.pop(request_id, None)
        self._decided[request_id] = outcome
        while len(self._decided) > _REMEMBERED:
            self._decided.popitem(last=False)
        self._desk.pending_changed()

    async def _record(
        self,
        use: ToolUse,
        turn_id: TurnId | None,
        settled: _Settled,
        risk: Risk,
        digest: str,
        request_id: RequestId | None = None,
    ) -> Decision:
        seq = await self._desk.put(
            PermissionDecided(
                call_id=use.call_id,
                decision=settled.decision,
                by=settled.by,
                risk=risk,
                input_digest=digest,
                request_id=request_id,
                rule=settled.rule,
                host=settled.host,
            ),
            turn_id,
        )
        if risk != "safe" or request_id is not None:
            await self._desk.synced(seq)
        return settled.decision

    # --- answers --------------------------------------------------------------------------------------------------

    async def answer(self, answer: Answer, host: str) -> None:
        """A person's answer. The first one wins.

        Raises:
            RequestNotFound, AlreadyDecided, StaleDigest
        """
        waiting = self._pending.get(answer.request_id)
        if waiting is None or waiting.settled is not None or waiting.claimed_by:
            outcome = self._decided.get(answer.request_id)
            if waiting is None and outcome is None:
                raise RequestNotFound(f"there is no permission request {answer.request_id} in this session")
            raise AlreadyDecided(f"this request is settled: {outcome or 'somebody else answered first'}")
        if not secrets.compare_digest(answer.digest, waiting.shown.digest):
            raise StaleDigest("this answer is about another input than the one being asked about; look again")
        waiting.claimed_by = host
        if answer.always and isinstance(answer.decision, Allow) and waiting.shown.always_rule:
            # First the rule, then the run: the next use of its kind must not be asked again.
            await self._always(waiting.shown.always_rule, waiting.turn_id)
        waiting.settle(_Settled(answer.decision, "person", None, host))

    async def _always(self, rule: str, turn_id: TurnId | None) -> None:
        try:
            await self._store_rule(rule)
        except EnginehouseError as error:
            # This one is allowed all the same; the person is told that it will be asked again.
            text = f"allowed once only, the rule {rule} could not be stored: {error}"
            await self._desk.put(Notice(level="warning", code="rule.not_stored", text=text), turn_id)

    def rejudge(self) -> None:
        """Rules or the mode changed: what no longer needs a person is settled."""
        for waiting in [waiting for waiting in self._pending.values() if not waiting.claimed_by]:
            judgement = self._desk.judge(waiting.use)
            if judgement.verdict == "allow":
                waiting.settle(_Settled(Allow(), judgement.by, judgement.rule))
            elif judgement.verdict == "deny":
                waiting.settle(_Settled(Deny(reason=_why(judgement)), judgement.by, judgement.rule))

    def expire_all(self, reason: str) -> None:
        """The turn ends: nothing that waits can be answered any more."""
        for waiting in self._pending.values():
            waiting.settle(_Settled(Expired(reason=reason), "expiry"))


def _why(judgement: Judgement) -> str:
    return "; ".join(judgement.reasons) or "not allowed"


def _edited_paths(use: ToolUse, tool_input: JsonObject) -> tuple[str, ...]:
    """The paths of an edited input: whatever text stands where the original named one, or is new."""
    changed = {
        value
        for key, value in tool_input.items()
        if isinstance(value, str) and value != use.input.get(key) and "\n" not in value and len(value) < 4096
    }
    kept = {path for path in use.paths if path in tool_input.values()}
    named = {key for key, value in use.input.items() if value in use.paths}
    replaced = {tool_input[key] for key in named if isinstance(tool_input.get(key), str)}
    return tuple(sorted(kept | replaced if named else changed | set(use.paths)))
