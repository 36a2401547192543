"""The permission flow as a session lives it: recorded, answered once, never hanging."""

from pathlib import Path

import anyio
import msgspec
import pytest
from sessions.house import House, house

from enginehouse_core.permissions.flow import REPLACED
from enginehouse_core.transcript.file import read_transcript
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.engine import Opening, Turn
from enginehouse_protocol.errors import AlreadyDecided, RequestNotFound, StaleDigest
from enginehouse_protocol.events import (
    Body,
    Notice,
    PermissionDecided,
    PermissionRequested,
    SessionStateChanged,
    ToolResult,
    ToolUse,
    TurnCompleted,
)
from enginehouse_protocol.hookspecs import SessionFacts, Tighten, hookimpl
from enginehouse_protocol.hub import AnswerPermission, SessionRef, SetSession
from enginehouse_protocol.ids import CallId, RequestId, SessionId
from enginehouse_protocol.permissions import Allow, Answer, Deny, Expired, JsonObject, PendingRequest, Risk, Verdict
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import Do, Say, ScriptedEngine, Together, UseTool

pytestmark = pytest.mark.anyio

WRITE = UseTool("write_file", {"path": "a.txt", "content": "hello"}, kind="edit", paths=("a.txt",))
RUN = UseTool("bash", {"command": "echo hi > b.txt"}, kind="execute")


def decided(bodies: list[Body]) -> list[PermissionDecided]:
    return [body for body in bodies if isinstance(body, PermissionDecided)]


def results(bodies: list[Body]) -> list[str]:
    return [body.status for body in bodies if isinstance(body, ToolResult)]


async def answer_with(home: House, request: PendingRequest, digest: str, decision: Allow | Deny) -> None:
    answer = Answer(request_id=request.request_id, digest=digest, decision=decision)
    await home.hub.permissions_answer(
        AnswerPermission(session_id=SessionId(request.session_id), answer=answer, host="second")
    )


async def test_a_write_is_asked_and_runs_only_after_the_person_allowed_it(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("done")]])) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            request = await home.pending()
            assert (request.kind, request.risk, request.input) == ("edit", "write", WRITE.input)
            await ear.hear(SessionStateChanged, where=lambda body: body.state == "awaiting_permission")
            assert not (home.project / "a.txt").exists()
            await home.answer(request, Allow())
            await ear.hear(TurnCompleted)
        assert (home.project / "a.txt").read_text() == "hello"
        assert [
            type(body).__name__ for body in ear.bodies(ToolUse, PermissionRequested, PermissionDecided, ToolResult)
        ] == [
            "ToolUse",
            "PermissionRequested",
            "PermissionDecided",
            "ToolResult",
        ]
        (decision,) = ear.bodies(PermissionDecided)
        assert (decision.decision, decision.by, decision.host) == (Allow(), "person", "test")
        assert decision.input_digest == request.digest


async def test_a_deny_reaches_the_model_with_its_reason_and_nothing_runs(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]])) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            await home.answer(await home.pending(), Deny(reason="use b.txt"))
            result = await ear.hear(ToolResult)
            assert result.status == "denied"
            assert "use b.txt" in str(result.content)
            await ear.hear(TurnCompleted)
        assert not (home.project / "a.txt").exists()


async def test_with_nobody_there_it_is_denied_at_once_and_says_so(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]])) as home:
        bodies = await home.say(await home.session("default"), "go")
        (decision,) = decided(bodies)
        assert isinstance(decision.decision, Expired)
        assert decision.by == "expiry"
        assert "nobody is there" in decision.decision.reason
        assert results(bodies) == ["denied"]


async def test_the_first_answer_wins_and_the_second_is_told(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]])) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            request = await home.pending()
            with pytest.raises(StaleDigest):
                await answer_with(home, request, "0" * 32, Allow())
            await home.answer(request, Allow())
            with pytest.raises(AlreadyDecided):
                await answer_with(home, request, request.digest, Deny(reason="no"))
            await ear.hear(TurnCompleted)
            with pytest.raises(AlreadyDecided, match="allow"):
                await answer_with(home, request, request.digest, Deny(reason="no"))
        with pytest.raises(RequestNotFound):
            await answer_with(home, msgspec.structs.replace(request, request_id=RequestId("p_no")), "", Allow())
        assert (home.project / "a.txt").exists()


async def test_an_edited_input_is_what_runs_and_is_recorded(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]])) as home:
        session_id = await home.session("default")
        edited = {"path": "c.txt", "content": "changed"}
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            await home.answer(await home.pending(), Allow(input=edited))
            assert (await ear.hear(PermissionDecided)).decision == Allow(input=edited)
            await ear.hear(TurnCompleted)
        assert (home.project / "c.txt").read_text() == "changed"
        assert not (home.project / "a.txt").exists()


async def test_an_edit_that_raises_the_risk_is_asked_once_more_with_a_new_digest(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[RUN, Say("ok")]])) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            first = await home.pending()
            await home.answer(first, Allow(input={"command": "rm -rf /"}))
            second = await ear.hear(PermissionRequested, where=lambda body: body.request_id != first.request_id)
            assert (second.risk, second.input) == ("critical", {"command": "rm -rf /"})
            assert second.input_digest != first.digest
            await home.answer(await home.pending(), Deny(reason="oh no"))
            await ear.hear(TurnCompleted)
        replaced, last = ear.bodies(PermissionDecided)
        assert (replaced.request_id, replaced.decision) == (first.request_id, Expired(reason=REPLACED))
        assert (last.request_id, last.decision) == (second.request_id, Deny(reason="oh no"))
        assert last.input == {"command": "rm -rf /"}
        assert [result.status for result in ear.bodies(ToolResult)] == ["denied"]


async def test_what_runs_is_in_the_record_also_when_it_is_not_what_was_emitted(tmp_path: Path) -> None:
    use = ToolUse(call_id=CallId("c_1"), name="bash", kind="execute", title="$ ls", input={"command": "ls"})
    other: JsonObject = {"command": "ls -l build"}

    async def ask_another(opening: Opening, _: Turn) -> None:
        await opening.port.emit(use)
        decision = await opening.port.ask(msgspec.structs.replace(use, title="$ ls -l build", input=other))
        await opening.port.emit(ToolResult(call_id=use.call_id, status="ok" if decision == Allow() else "denied"))

    async with house(tmp_path, ScriptedEngine([[Do(ask_another)]])) as home:
        bodies = await home.say(await home.session("yolo"), "go")
        (decision,) = decided(bodies)
        assert (decision.decision, decision.input) == (Allow(), other)
        assert results(bodies) == ["ok"]


async def test_always_stores_the_rule_for_this_project_and_settles_what_waits(tmp_path: Path) -> None:
    command = UseTool("bash", {"command": "git status"}, kind="execute")
    engine = ScriptedEngine([[Together(command, command), Say("ok")], [command, Say("ok")]])
    async with house(tmp_path, engine) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            await ear.hear(PermissionRequested)
            await ear.hear(PermissionRequested)
            request = await home.pending()
            assert request.always_rule
            await home.answer(request, Allow(), always=True)
            await ear.hear(TurnCompleted)
            first, second = ear.bodies(PermissionDecided)
            assert {first.by, second.by} == {"person", "rule"}
        (third,) = decided(await home.say(session_id, "again"))
        assert (third.by, third.rule) == ("rule", request.always_rule)
        assert str(home.project) in (tmp_path / "profile" / "permissions.toml").read_text()


async def test_an_interrupt_withdraws_the_request_and_a_late_answer_is_harmless(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[WRITE], [Say("ok")]])) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            request = await home.pending()
            with anyio.fail_after(2):
                await home.hub.sessions_interrupt(SessionRef(session_id=session_id))
            assert isinstance((await ear.hear(PermissionDecided)).decision, Expired)
            assert (await ear.hear(TurnCompleted)).stop == "interrupted"
            with pytest.raises(AlreadyDecided, match="expired"):
                await home.answer(request, Allow())
        assert not (home.project / "a.txt").exists()
        assert isinstance((await home.say(session_id, "next"))[-1], TurnCompleted)


async def test_a_wider_mode_settles_what_waits(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]])) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            await home.pending()
            await home.hub.sessions_set(
                SetSession(session_id=session_id, settings=SessionSettings(mode="accept_edits"))
            )
            decision = await ear.hear(PermissionDecided)
            assert (decision.decision, decision.by) == (Allow(), "mode")
            await ear.hear(TurnCompleted)


async def test_an_unanswered_request_expires_as_a_deny(tmp_path: Path) -> None:
    settings = "[permissions]\nexpires_after_s = 1\n"
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]]), settings=settings) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            assert (await ear.hear(PermissionDecided)).decision == Expired(reason="nobody answered in time")
            assert (await ear.hear(ToolResult)).status == "denied"


class Gate:
    """A plugin whose gate answers what it is told to."""

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome

    @hookimpl
    async def tool_gate(self, session: SessionFacts, use: ToolUse, verdict: Verdict, risk: Risk) -> object:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def test_a_gate_can_tighten_and_its_reason_is_given(tmp_path: Path) -> None:
    gate = Gate(Tighten(verdict="deny", reason="house rule"))
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]]), plugins=[gate]) as home:
        (decision,) = decided(await home.say(await home.session("yolo"), "go"))
        assert (decision.decision, decision.by) == (Deny(reason="house rule"), "gate")


@pytest.mark.parametrize("nonsense", [RuntimeError("boom"), "yes", Tighten(verdict="ask", reason="look")])
async def test_a_gate_that_fails_or_talks_nonsense_counts_as_ask(tmp_path: Path, nonsense: object) -> None:
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]]), plugins=[Gate(nonsense)]) as home:
        bodies = await home.say(await home.session("yolo"), "go")
        (decision,) = decided(bodies)
        assert isinstance(decision.decision, Expired)  # it was asked, and nobody was there
        failed = not isinstance(nonsense, Tighten)
        assert [body.code for body in bodies if isinstance(body, Notice)] == (["hook.failed"] if failed else [])


async def test_a_gate_cannot_loosen(tmp_path: Path) -> None:
    gate = Gate(Tighten(verdict="ask", reason="please"))
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]]), plugins=[gate]) as home:
        (decision,) = decided(await home.say(await home.session("plan"), "go"))
        assert isinstance(decision.decision, Deny)


async def test_rules_that_cannot_be_read_make_everything_be_asked(tmp_path: Path) -> None:
    async with house(tmp_path, ScriptedEngine([[WRITE, Say("ok")]])) as home:
        session_id = await home.session("yolo")
        (tmp_path / "profile" / "permissions.toml").write_text("[[rule]\n")
        bodies = await home.say(session_id, "go")
        assert isinstance(decided(bodies)[0].decision, Expired)
        assert "profile.invalid" in [body.code for body in bodies if isinstance(body, Notice)]


async def test_concurrent_requests_are_told_apart(tmp_path: Path) -> None:
    uses = [
        UseTool("write_file", {"path": f"{n}.txt", "content": str(n)}, kind="edit", paths=(f"{n}.txt",))
        for n in range(5)
    ]
    async with house(tmp_path, ScriptedEngine([[Together(*uses), Say("ok")]])) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            for _ in uses:
                await ear.hear(PermissionRequested)
            for _ in uses:
                request = await home.pending()
                number = request.input["content"]
                await home.answer(request, Allow() if number in "024" else Deny(reason="odd"))
                await ear.hear(PermissionDecided)
            await ear.hear(TurnCompleted)
        assert sorted(path.name for path in home.project.iterdir()) == ["0.txt", "2.txt", "4.txt"]


async def test_a_preview_made_after_the_use_was_recorded_is_in_the_request(tmp_path: Path) -> None:
    later = FileChange(path="a.txt", change="modified", diff="@@ -1 +1 @@\n-one\n+two\n")

    async def ask(opening: Opening, turn: Turn) -> None:
        name = "write_file"
        use = ToolUse(call_id=CallId("c_1"), name=name, kind="edit", title=name, input=WRITE.input, paths=("a.txt",))
        await opening.port.emit(use)
        await opening.port.ask(msgspec.structs.replace(use, preview=(later,)))

    async with house(tmp_path, ScriptedEngine([[Do(ask)]])) as home:
        session_id = await home.session("default")
        async with home.watching(session_id, can_answer=True) as ear:
            await home.send(session_id, "go")
            requested = await ear.hear(PermissionRequested)
            assert (requested.preview, requested.input) == ((later,), None)
            await home.answer(await home.pending(), Deny(reason="no"))
            await ear.hear(TurnCompleted)


async def test_an_answer_that_was_taken_is_in_the_record(tmp_path: Path) -> None:
    engine = ScriptedEngine(
        [[UseTool("rm", {"command": "rm -rf x"}, kind="execute", result="gone")] for _ in range(20)]
    )
    async with house(tmp_path, engine) as home:
        session_id = await home.session(mode="default")
        async with home.watching(session_id, can_answer=True) as ear:
            for _ in range(20):
                await home.send(session_id, "clean up")
                await home.answer(await home.pending(), Allow())
                records = read_transcript(tmp_path / "profile" / "transcripts" / session_id, session_id).records
                events = [record.event for record in records]
                last = decided([event.body for event in events])[-1]
                assert last.by == "person"
                assert last.call_id == [event.body.call_id for event in events if isinstance(event.body, ToolUse)][-1]
                await ear.hear(TurnCompleted)
