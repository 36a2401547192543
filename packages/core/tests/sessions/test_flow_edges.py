"""The permission flow and the questions at their edges: edits, gates, cut-off answers, slow disks, a turn's end."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.lowlevel
import msgspec
import pytest

from enginehouse_core.hooks import Hooks
from enginehouse_core.masking import Masker
from enginehouse_core.permissions.flow import REPLACED, WITHDRAWN, PermissionFlow
from enginehouse_core.permissions.policy import Judgement
from enginehouse_core.sessions.questions import Questions
from enginehouse_core.transcript.blobs import digest_of
from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.content import SpilledText
from enginehouse_protocol.errors import AlreadyDecided, MalformedData, RuleRefused
from enginehouse_protocol.events import (
    AnyBody,
    Body,
    Notice,
    PermissionDecided,
    PermissionRequested,
    QuestionAnswered,
    QuestionAsked,
    QuestionOption,
    SessionChanged,
    ToolUse,
)
from enginehouse_protocol.hookspecs import SessionFacts, Tighten, hookimpl
from enginehouse_protocol.ids import CallId, EngineName, QuestionId, SessionId, TurnId
from enginehouse_protocol.permissions import (
    Allow,
    Answer,
    Decision,
    Deny,
    Expired,
    JsonObject,
    PendingRequest,
    Risk,
    Verdict,
)
from enginehouse_protocol.settings import Mode, SessionSettings
from enginehouse_protocol.testing import Gate

pytestmark = pytest.mark.anyio

B = TypeVar("B", bound=Body)
TURN = TurnId("t_1")
SECRET = "correct-horse-battery-7"


class PaperDesk:
    """A session's side of the flow and of the questions, its record a list. The test may hold its disk."""

    session_id = SessionId("s_1")

    def __init__(self) -> None:
        self.masker = Masker({"KEY": SECRET})
        self.bodies: list[Body] = []
        self.recorded: dict[CallId, ToolUse] = {}
        self.verdict: Verdict = "ask"
        self.always_rule: str | None = None
        self.mode: Mode = "plan"
        self.disk_takes_s = 0.0
        self.holds: type[Body] | None = None
        """A body of this kind is not taken until `held` is open."""
        self.held = Gate()
        self._changed = anyio.Event()

    def facts(self) -> SessionFacts:
        return SessionFacts(session_id=self.session_id, engine=EngineName("e"), directory="/w", mode="default")

    def judge(self, use: ToolUse) -> Judgement:
        risk: Risk = "critical" if "rm -rf" in str(use.input) else "dangerous"
        offered = self.always_rule is not None and self.verdict == "ask"
        return Judgement(
            self.verdict, risk, ("it runs",), can_always=offered, always_rule=self.always_rule if offered else None
        )

    def can_be_answered(self) -> bool:
        return True

    def recorded_use(self, call_id: CallId) -> ToolUse | None:
        return self.recorded.get(call_id)

    async def put(self, body: AnyBody, turn_id: TurnId | None) -> int:
        await anyio.lowlevel.checkpoint()
        if self.holds is not None and isinstance(body, self.holds):
            await self.held.passed()
        self.bodies.append(body)
        self._tell()
        return len(self.bodies)

    async def synced(self, seq: int) -> None:
        await anyio.sleep(self.disk_takes_s)

    def pending_changed(self) -> None:
        self._tell()

    async def leave_plan_mode(self) -> None:
        if self.mode == "plan":
            settings = SessionSettings(mode="default")
            await self.put(SessionChanged(settings=settings, reason="plan_approved"), TURN)
            self.mode = "default"

    def all(self, kind: type[B]) -> list[B]:
        return [body for body in self.bodies if isinstance(body, kind)]

    async def until(self, there: Callable[[], bool]) -> None:
        with anyio.fail_after(5):
            while not there():
                await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Asked:
    """A use being decided in a task of its own."""

    def __init__(self, desk: PaperDesk, flow: PermissionFlow) -> None:
        self.desk = desk
        self.flow = flow
        self.scope = anyio.CancelScope()
        self._decision: Decision | None = None
        self._done = anyio.Event()

    async def run(self, use: ToolUse) -> None:
        try:
            with self.scope:
                self._decision = await self.flow.decide(use, TURN)
        finally:
            self._done.set()

    async def pending(self) -> PendingRequest:
        await self.desk.until(lambda: bool(self.flow.pending))
        return self.flow.pending[0]

    async def answer(self, decision: Allow | Deny, *, always: bool = False) -> None:
        await self.flow.answer(answer_to(await self.pending(), decision, always=always), "host")

    async def decision(self) -> Decision | None:
        """None when it was cancelled."""
        with anyio.fail_after(5):
            await self._done.wait()
        return self._decision


def answer_to(request: PendingRequest, decision: Allow | Deny, *, always: bool = False) -> Answer:
    return Answer(request_id=request.request_id, digest=request.digest, decision=decision, always=always)


async def stored(_: str) -> None:
    pass


def a_use(command: str = "make", **also: object) -> ToolUse:
    return ToolUse(
        call_id=CallId("c_1"), name="bash", kind="execute", title=f"$ {command}", input={"command": command} | also
    )


@asynccontextmanager
async def asked(
    use: ToolUse, *plugins: object, desk: PaperDesk | None = None, recorded: ToolUse | None = None
) -> AsyncGenerator[Asked]:
    desk = desk or PaperDesk()
    desk.recorded[use.call_id] = recorded or use
    flow = PermissionFlow(desk, Hooks(plugins), expires_after_s=60, store_rule=stored)
    flow.takes_edits = True
    async with anyio.create_task_group() as tasks:
        it = Asked(desk, flow)
        tasks.start_soon(it.run, use)
        yield it
        tasks.cancel_scope.cancel()


class CarefulGate:
    """Always wants a person to look."""

    def __init__(self, reason: str = "production") -> None:
        self.reason = reason

    @hookimpl
    async def tool_gate(self, session: SessionFacts, use: ToolUse, verdict: Verdict, risk: Risk) -> Tighten | None:
        return Tighten(verdict="ask", reason=self.reason)


class BrokenGate:
    @hookimpl
    async def tool_gate(self, session: SessionFacts, use: ToolUse, verdict: Verdict, risk: Risk) -> Tighten | None:
        raise RuntimeError("x" * 10_000)


class SlowGate:
    """Thinks for as long as the test wants."""

    def __init__(self) -> None:
        self.gate = Gate()

    @hookimpl
    async def tool_gate(self, session: SessionFacts, use: ToolUse, verdict: Verdict, risk: Risk) -> Tighten | None:
        await self.gate.passed()
        return None


# --- gates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allow", "ask"])
@pytest.mark.parametrize("plugin", [CarefulGate(), BrokenGate()], ids=["careful", "broken"])
async def test_what_a_gate_wants_asked_is_not_allowed_by_new_rules(policy: Verdict, plugin: object) -> None:
    desk = PaperDesk()
    desk.verdict = policy
    async with asked(a_use(), plugin, desk=desk) as it:
        await it.pending()
        desk.verdict = "allow"
        it.flow.rejudge()
        assert len(it.flow.pending) == 1
        desk.verdict = "deny"
        it.flow.rejudge()
        assert isinstance(await it.decision(), Deny)


async def test_a_long_reason_is_cut_and_no_half_of_a_secret_is_left_of_it() -> None:
    desk = PaperDesk()
    desk.verdict = "allow"
    async with asked(a_use(), CarefulGate("x" * 1_990 + SECRET + "y" * 5_000), desk=desk) as it:
        (reason,) = (await it.pending()).reasons
        assert len(reason) == 2_000
        assert "correct" not in reason
        assert desk.all(PermissionRequested)[0].reasons == (reason,)


async def test_the_failure_of_a_gate_is_told_in_bounds() -> None:
    async with asked(a_use(), BrokenGate()) as it:
        await it.pending()
        assert len(it.desk.all(Notice)[0].text) < 2_200


# --- another input than the record's ----------------------------------------------------------------------------------


async def test_an_input_that_differs_from_the_recorded_one_is_in_the_request_and_in_the_decision() -> None:
    async with asked(a_use("rm -rf build"), recorded=a_use("ls")) as it:
        await it.answer(Allow())
        assert await it.decision() == Allow()
        (request,), (decided,) = it.desk.all(PermissionRequested), it.desk.all(PermissionDecided)
        assert (request.title, request.input) == ("$ rm -rf build", {"command": "rm -rf build"})
        assert (decided.decision, decided.input) == (Allow(), {"command": "rm -rf build"})


async def test_an_input_that_differs_is_in_the_decision_also_when_nobody_is_asked() -> None:
    desk = PaperDesk()
    desk.verdict = "allow"
    async with asked(a_use("rm -rf build"), recorded=a_use("ls"), desk=desk) as it:
        await it.decision()
        assert desk.all(PermissionDecided)[0].input == {"command": "rm -rf build"}


async def test_one_and_true_are_not_the_same_input() -> None:
    async with asked(a_use(depth=1), recorded=a_use(depth=True)) as it:
        await it.pending()
        assert it.desk.all(PermissionRequested)[0].input == {"command": "make", "depth": 1}


async def test_an_input_that_is_only_masked_or_spilled_in_the_record_is_not_recorded_again() -> None:
    long = "x" * 20_000
    spilled = SpilledText(head=long[:10], tail=long[-10:], size_bytes=len(long), sha256=digest_of(long.encode()))
    recorded = a_use("echo «secret:KEY»", text=msgspec.to_builtins(spilled), list=["a"])
    async with asked(a_use(f"echo {SECRET}", text=long, list=["a"]), recorded=recorded) as it:
        await it.answer(Deny(reason="no"))
        await it.decision()
        assert it.desk.all(PermissionRequested)[0].input is None
        assert it.desk.all(PermissionDecided)[0].input is None
    other = msgspec.structs.replace(spilled, sha256="0" * 64)
    recorded = a_use(f"echo {long}", text=msgspec.to_builtins(other))
    async with asked(a_use(f"echo {long}", text=long), recorded=recorded) as it:
        await it.pending()
        assert it.desk.all(PermissionRequested)[0].input is not None


# --- edits ------------------------------------------------------------------------------------------------------------


async def test_a_riskier_edit_replaces_its_request_and_the_last_record_has_its_input_and_risk() -> None:
    edited: JsonObject = {"command": "rm -rf build"}
    async with asked(a_use()) as it:
        first = await it.pending()
        await it.answer(Allow(input=edited))
        await it.desk.until(lambda: bool(it.flow.pending) and it.flow.pending[0].request_id != first.request_id)
        second = await it.pending()
        await it.answer(Allow())
        assert await it.decision() == Allow(input=edited)
        replaced, last = it.desk.all(PermissionDecided)
        assert (replaced.request_id, replaced.decision) == (first.request_id, Expired(reason=REPLACED))
        assert (replaced.by, replaced.host, replaced.risk) == ("person", "host", "dangerous")
        assert (last.request_id, last.decision, last.risk) == (second.request_id, Allow(input=edited), "critical")
        assert last.input_digest == second.digest
        assert [request.request_id for request in it.desk.all(PermissionRequested)] == [
            first.request_id,
            second.request_id,
        ]


async def test_a_new_mode_allows_the_edited_input_and_not_the_first_one() -> None:
    edited: JsonObject = {"command": "rm -rf build"}
    async with asked(a_use()) as it:
        first = await it.pending()
        await it.answer(Allow(input=edited))
        await it.desk.until(lambda: bool(it.flow.pending) and it.flow.pending[0].request_id != first.request_id)
        it.desk.verdict = "allow"
        it.flow.rejudge()
        assert await it.decision() == Allow(input=edited)


async def test_an_ask_cut_off_while_its_edit_is_judged_leaves_no_request_open() -> None:
    plugin = SlowGate()
    plugin.gate.open()
    async with asked(a_use(), plugin) as it:
        await it.pending()
        plugin.gate = Gate()

        async def answer_too_late() -> None:
            with pytest.raises(AlreadyDecided):
                await it.answer(Allow(input={"command": "make -n"}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_too_late)
            await plugin.gate.reached()
            it.scope.cancel()
            assert await it.decision() is None
        (decided,) = it.desk.all(PermissionDecided)
        assert decided.decision == Expired(reason=WITHDRAWN)


# --- what may be offered and judged -----------------------------------------------------------------------------------


async def test_a_rule_with_a_secret_in_it_is_not_offered() -> None:
    desk = PaperDesk()
    desk.always_rule = f"execute(curl -H {SECRET} *)"
    async with asked(a_use(f"curl -H {SECRET} a"), desk=desk) as it:
        assert (await it.pending()).always_rule is None
        assert desk.all(PermissionRequested)[0].always_rule is None


async def test_ill_formed_text_is_repaired_before_it_is_judged_and_that_is_what_may_run() -> None:
    repaired: JsonObject = {"command": "echo \ufffd"}
    async with asked(a_use("echo \ud800"), recorded=a_use("echo \ufffd")) as it:
        assert (await it.pending()).input == repaired
        await it.answer(Allow())
        assert await it.decision() == Allow(input=repaired)
        assert it.desk.all(PermissionDecided)[0].decision == Allow(input=repaired)


async def test_ill_formed_text_does_not_run_where_the_engine_cannot_take_the_repaired_one() -> None:
    desk = PaperDesk()
    desk.verdict = "allow"
    flow = PermissionFlow(desk, Hooks(), expires_after_s=60, store_rule=stored)
    decision = await flow.decide(a_use("echo \ud800"), TURN)
    assert isinstance(decision, Deny)
    assert "Unicode" in decision.reason


async def test_an_edited_input_is_well_formed_as_well() -> None:
    async with asked(a_use()) as it:
        await it.answer(Allow(input={"command": "echo \udfff"}))
        assert await it.decision() == Allow(input={"command": well_formed("echo \udfff")})


async def test_numbers_json_cannot_carry_are_refused_in_an_ask_and_in_an_answer() -> None:
    async with asked(a_use()) as it:
        with pytest.raises(MalformedData):
            await it.flow.decide(a_use(depth=float("nan")), TURN)
        with pytest.raises(MalformedData):
            await it.answer(Allow(input={"depth": float("inf")}))
        await it.answer(Allow())
        assert await it.decision() == Allow()


# --- answers that are cut off -----------------------------------------------------------------------------------------


async def test_an_answer_cut_off_while_its_rule_is_stored_stands_and_the_rule_is_said_to_be_missing() -> None:
    desk, storing = PaperDesk(), Gate()
    desk.always_rule = "execute(make *)"
    desk.recorded[CallId("c_1")] = a_use()

    async def never(_: str) -> None:
        await storing.passed()

    flow = PermissionFlow(desk, Hooks(), expires_after_s=60, store_rule=never)
    it = Asked(desk, flow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(it.run, a_use())
        request = await it.pending()
        async with anyio.create_task_group() as host:
            host.start_soon(flow.answer, answer_to(request, Allow(), always=True), "host")
            await storing.reached()
            host.cancel_scope.cancel()
        assert await it.decision() == Allow()
        with pytest.raises(AlreadyDecided):
            await flow.answer(answer_to(request, Allow()), "other")
    (decided,) = desk.all(PermissionDecided)
    assert (decided.by, decided.host) == ("person", "host")
    assert [notice.code for notice in desk.all(Notice)] == ["rule.not_stored"]


async def test_an_answer_that_came_too_late_to_count_is_told_so() -> None:
    desk, storing = PaperDesk(), Gate()
    desk.always_rule = "execute(make *)"

    async def slowly(_: str) -> None:
        await storing.passed()
        raise RuleRefused("no")

    flow = PermissionFlow(desk, Hooks(), expires_after_s=60, store_rule=slowly)
    it, told = Asked(desk, flow), anyio.Event()

    async def host(request: PendingRequest) -> None:
        with pytest.raises(AlreadyDecided):
            await flow.answer(answer_to(request, Allow(), always=True), "host")
        told.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.run, a_use())
            tasks.start_soon(host, await it.pending())
            await storing.reached()
            flow.expire_all("the turn was interrupted")
            storing.open()
            await told.wait()
    assert await it.decision() == Expired(reason="the turn was interrupted")


# --- the end of a turn ------------------------------------------------------------------------------------------------


async def test_nothing_asked_after_a_turn_is_over_is_allowed_until_the_next_one() -> None:
    desk = PaperDesk()
    desk.verdict = "allow"
    flow = PermissionFlow(desk, Hooks(), expires_after_s=60, store_rule=stored)
    flow.begin_turn()
    assert await flow.decide(a_use(), TURN) == Allow()
    flow.expire_all("the turn was interrupted")
    flow.expire_all("the turn ended")
    assert await flow.decide(a_use(), TURN) == Expired(reason="the turn was interrupted")
    assert desk.all(PermissionDecided)[-1].by == "expiry"
    flow.begin_turn()
    assert await flow.decide(a_use(), TURN) == Allow()


async def test_an_interrupt_does_not_wait_for_a_gate_that_thinks() -> None:
    plugin, desk = SlowGate(), PaperDesk()
    desk.verdict = "allow"
    async with asked(a_use(), plugin, desk=desk) as it:
        await plugin.gate.reached()
        it.flow.expire_all("the turn was interrupted")
        it.flow.begin_turn()
        assert await it.decision() == Expired(reason="the turn was interrupted")


async def test_a_turn_can_wait_until_what_expired_is_recorded() -> None:
    async with asked(a_use()) as it:
        await it.pending()
        it.flow.expire_all("the turn ended")
        await it.flow.settle_all()
        assert [decided.by for decided in it.desk.all(PermissionDecided)] == ["expiry"]


async def test_a_turn_does_not_wait_for_ever_for_a_disk_that_hangs() -> None:
    async with asked(a_use()) as it:
        await it.pending()
        it.desk.holds = PermissionDecided
        it.flow.expire_all("the turn ended")
        with anyio.fail_after(5):
            await it.flow.settle_all()
        assert it.desk.all(PermissionDecided) == []


# --- questions --------------------------------------------------------------------------------------------------------

PLAN = QuestionAsked(
    question_id=QuestionId("q_1"), text="1. do it", kind="plan", options=(QuestionOption(label="yes"),)
)


class Questioner:
    """Asks in a task of its own and notes what was recorded when the answer arrived."""

    def __init__(self, desk: PaperDesk) -> None:
        self.desk = desk
        self.questions = Questions(desk, expires_after_s=60)
        self.scope = anyio.CancelScope()
        self.answers: tuple[str, ...] | None = None
        self.recorded: list[Body] = []

    async def run(self) -> None:
        with self.scope:
            self.answers = await self.questions.ask(PLAN, TURN)
            self.recorded = [*self.desk.bodies]

    async def offered(self) -> None:
        await self.desk.until(lambda: bool(self.questions.pending))


async def test_an_approved_plan_is_not_lost_to_a_slow_disk_and_the_mode_is_recorded_before_the_engine_hears() -> None:
    it = Questioner(PaperDesk())
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.run)
            await it.offered()
            it.desk.disk_takes_s = 1.3
            await it.questions.answer(PLAN.question_id, ("yes",), "host")
    assert it.answers == ("yes",)
    assert [type(body) for body in it.recorded] == [QuestionAsked, QuestionAnswered, SessionChanged]


async def test_a_question_cut_off_while_its_answer_is_recorded_is_answered_once_and_the_plan_approved() -> None:
    it = Questioner(PaperDesk())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(it.run)
        await it.offered()
        it.desk.holds = QuestionAnswered
        tasks.start_soon(it.questions.answer, PLAN.question_id, ("yes",), "host")
        await it.desk.held.reached()
        it.scope.cancel()
        it.desk.held.open()
    assert [type(body) for body in it.desk.bodies] == [QuestionAsked, QuestionAnswered, SessionChanged]
    assert it.desk.all(QuestionAnswered)[0].answers == ("yes",)


async def test_a_withdrawn_question_is_closed_even_on_a_disk_that_hangs() -> None:
    it = Questioner(PaperDesk())
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.run)
            await it.offered()
            it.desk.holds = QuestionAnswered
            it.scope.cancel()
    assert it.questions.pending == []


async def test_a_turn_can_wait_until_its_questions_are_recorded_and_what_it_asks_later_is_not_offered() -> None:
    it = Questioner(PaperDesk())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(it.run)
        await it.offered()
        it.questions.expire_all(TURN)
        await it.questions.settle_all()
        assert it.desk.all(QuestionAnswered) == [QuestionAnswered(question_id=PLAN.question_id, answers=None)]
    with anyio.fail_after(5):
        assert await it.questions.ask(PLAN, TURN) is None
