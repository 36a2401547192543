"""Engines that break one rule each: the suite must see it. A test that cannot fail is a defect."""

import inspect
import os
import shlex
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from enginehouse_protocol.capabilities import EngineDescription
from enginehouse_protocol.codec import map_text
from enginehouse_protocol.conformance import EngineConformance, ScriptedHarness
from enginehouse_protocol.engine import Access, Fresh, Opening, SessionPort, Turn, TurnEnd
from enginehouse_protocol.errors import EngineError, TranscriptUnavailable
from enginehouse_protocol.events import (
    EngineBody,
    MessageAssistant,
    MessageDelta,
    Notice,
    QuestionAsked,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.ids import TurnId, new_message_id
from enginehouse_protocol.permissions import Allow, Decision, Expired
from enginehouse_protocol.testing import (
    MemoryHistory,
    NativeStore,
    ScriptedEngine,
    ScriptedSession,
    TempWorkspace,
)
from enginehouse_protocol.workspace import CommandResult, OnOutput

pytestmark = pytest.mark.anyio


class BadPort:
    """Between an engine and its real port: what passes through is changed as a careless adapter would."""

    def __init__(self, port: SessionPort) -> None:
        self.port = port

    async def emit(self, body: EngineBody) -> None:
        await self.port.emit(body)

    async def ask(self, use: ToolUse) -> Decision:
        return await self.port.ask(use)

    async def question(self, question: QuestionAsked) -> tuple[str, ...] | None:
        return await self.port.question(question)

    def request_turn(self, origin: str) -> None:
        self.port.request_turn(origin)


class RunsBeforeAsking(BadPort):
    async def ask(self, use: ToolUse) -> Decision:
        await self.port.emit(use)
        return Allow()


class IgnoresDenies(BadPort):
    async def ask(self, use: ToolUse) -> Decision:
        await self.port.ask(use)
        return Allow()


class IgnoresEdits(BadPort):
    async def ask(self, use: ToolUse) -> Decision:
        decision = await self.port.ask(use)
        return Allow() if isinstance(decision, Allow) else decision


class HidesReasons(BadPort):
    async def ask(self, use: ToolUse) -> Decision:
        decision = await self.port.ask(use)
        return decision if isinstance(decision, Allow) else Expired(reason="no")


class ForgetsResults(BadPort):
    async def emit(self, body: EngineBody) -> None:
        if not isinstance(body, ToolResult):
            await self.port.emit(body)


class SaysAllIsWell(BadPort):
    async def emit(self, body: EngineBody) -> None:
        if isinstance(body, ToolResult):
            body = ToolResult(call_id=body.call_id, status="ok", content=body.content)
        await self.port.emit(body)


class SaysOtherWords(BadPort):
    async def emit(self, body: EngineBody) -> None:
        await self.port.emit(map_text(body, str.swapcase) if isinstance(body, MessageDelta) else body)


class GivesOtherIds(BadPort):
    async def emit(self, body: EngineBody) -> None:
        if isinstance(body, MessageDelta):
            body = MessageDelta(message_id=new_message_id(), text=body.text)
        await self.port.emit(body)


class NeverSaysItWasCut(BadPort):
    async def emit(self, body: EngineBody) -> None:
        if isinstance(body, MessageAssistant):
            body = MessageAssistant(message_id=body.message_id, reply_id=body.reply_id, text=body.text)
        await self.port.emit(body)


class CountsTwice(BadPort):
    async def emit(self, body: EngineBody) -> None:
        await self.port.emit(body)
        if isinstance(body, UsageUpdated):
            await self.port.emit(body)


class LeaksTheSecret(BadPort):
    async def emit(self, body: EngineBody) -> None:
        await self.port.emit(body)
        if isinstance(body, ToolResult):
            await self.port.emit(Notice(level="info", code="request", text="Bearer sk-0123456789abcdef"))


class SwallowsBrokenRecords(BadPort):
    async def emit(self, body: EngineBody) -> None:
        try:
            await self.port.emit(body)
        except TranscriptUnavailable:
            pass

    async def ask(self, use: ToolUse) -> Decision:
        try:
            return await self.port.ask(use)
        except TranscriptUnavailable:
            return Allow()


class Careless(ScriptedEngine):
    """Opens its sessions as `changed` says."""

    def changed(self, opening: Opening) -> Opening:
        return opening

    def open(self, opening: Opening) -> AbstractAsyncContextManager[ScriptedSession]:
        return super().open(self.changed(opening))


def careless(port: type[BadPort]) -> type[ScriptedEngine]:
    class CarelessPort(Careless):
        def changed(self, opening: Opening) -> Opening:
            return replace(opening, port=port(opening.port))

    return CarelessPort


class Forgetful(Careless):
    def changed(self, opening: Opening) -> Opening:
        return replace(opening, history=MemoryHistory())


class Mixing(Careless):
    def changed(self, opening: Opening) -> Opening:
        ports = _SHARED.setdefault("ports", [])
        ports.append(opening.port)
        return replace(opening, port=ports[0])


_SHARED: dict[str, list[SessionPort]] = {}


class TakesAnyNativeId(Careless):
    def changed(self, opening: Opening) -> Opening:
        return replace(opening, start=Fresh())


class LeavesCommands(Careless):
    """Its commands leave the group that is killed."""

    def changed(self, opening: Opening) -> Opening:
        class Leaving(TempWorkspace):
            async def run(
                self, command: str, *, cwd: str = ".", time_limit_s: float, on_output: OnOutput | None = None
            ) -> CommandResult:
                away = f"setsid sh -c {shlex.quote(command)} & wait"
                return await super().run(away, cwd=cwd, time_limit_s=time_limit_s, on_output=on_output)

        return replace(opening, workspace=Leaving(Path(opening.roots[0].path)))


class RaisesDescriptions(ScriptedEngine):
    async def describe(self, access: Access) -> EngineDescription:
        description = await super().describe(access)
        if description.problem:
            raise ConnectionError(description.problem)
        return description


class Deaf(ScriptedEngine):
    """Its sessions hear no interrupt."""

    def open(self, opening: Opening) -> AbstractAsyncContextManager[ScriptedSession]:
        return self._deaf(opening)

    @asynccontextmanager
    async def _deaf(self, opening: Opening) -> AsyncGenerator[ScriptedSession]:
        async with super().open(opening) as session:

            async def interrupt(turn_id: TurnId) -> None:
                """Hear nothing."""

            session.interrupt = interrupt
            yield session


class StopsTheNextTurn(ScriptedEngine):
    """An interrupt that comes too late hits the turn after."""

    def open(self, opening: Opening) -> AbstractAsyncContextManager[ScriptedSession]:
        return self._late(opening)

    @asynccontextmanager
    async def _late(self, opening: Opening) -> AsyncGenerator[ScriptedSession]:
        async with super().open(opening) as session:
            runs, interrupts, late = session.run, session.interrupt, set[TurnId]()

            async def run(turn: Turn) -> TurnEnd:
                if late:
                    await interrupts(turn.id)
                return await runs(turn)

            async def interrupt(turn_id: TurnId) -> None:
                late.add(turn_id)
                await interrupts(turn_id)

            session.run, session.interrupt = run, interrupt
            yield session


class RaisesOtherErrors(ScriptedEngine):
    """What its provider says reaches core as it came."""

    def open(self, opening: Opening) -> AbstractAsyncContextManager[ScriptedSession]:
        return self._raw(opening)

    @asynccontextmanager
    async def _raw(self, opening: Opening) -> AsyncGenerator[ScriptedSession]:
        async with super().open(opening) as session:
            runs = session.run

            async def run(turn: Turn) -> TurnEnd:
                try:
                    return await runs(turn)
                except EngineError as error:
                    raise ConnectionError(str(error)) from error

            session.run = run
            yield session


SUITE = EngineConformance()
Rule = Callable[..., Awaitable[None]]
FOUND = (AssertionError, TimeoutError, ConnectionError, BaseExceptionGroup, pytest.fail.Exception)


@pytest.mark.parametrize(
    "engine_type,rule",
    [
        (careless(RunsBeforeAsking), SUITE.test_several_uses_of_one_reply_each_get_their_own_result),
        (careless(IgnoresDenies), SUITE.test_a_denied_use_does_not_run_and_the_model_learns_why),
        (careless(IgnoresDenies), SUITE.test_silence_is_a_deny),
        (careless(IgnoresDenies), SUITE.test_one_denied_use_does_not_take_its_neighbours_along),
        (careless(HidesReasons), SUITE.test_a_denied_use_does_not_run_and_the_model_learns_why),
        (careless(IgnoresEdits), SUITE.test_an_edited_input_is_what_runs),
        (careless(ForgetsResults), SUITE.test_a_failing_command_is_an_error_the_model_sees),
        (careless(ForgetsResults), SUITE.test_an_interrupt_kills_the_command_that_runs),
        (careless(SaysAllIsWell), SUITE.test_a_failing_command_is_an_error_the_model_sees),
        (careless(SaysAllIsWell), SUITE.test_a_command_ended_by_a_signal_is_no_success),
        (careless(SaysOtherWords), SUITE.test_words_are_streamed_before_they_are_said_and_are_the_same),
        (careless(GivesOtherIds), SUITE.test_words_are_streamed_before_they_are_said_and_are_the_same),
        (careless(NeverSaysItWasCut), SUITE.test_an_interrupt_while_the_model_speaks_keeps_what_was_shown),
        (careless(CountsTwice), SUITE.test_usage_counts_each_request_once),
        (careless(LeaksTheSecret), SUITE.test_a_failing_command_is_an_error_the_model_sees),
        (careless(SwallowsBrokenRecords), SUITE.test_a_record_that_cannot_be_written_stops_the_turn),
        (Forgetful, SUITE.test_a_session_opened_again_knows_what_was_said),
        (Mixing, SUITE.test_sessions_at_the_same_time_do_not_mix),
        (RaisesDescriptions, SUITE.test_a_broken_provider_is_described_not_raised),
        (RaisesOtherErrors, SUITE.test_a_provider_that_fails_is_an_engine_error_and_the_session_goes_on),
        (StopsTheNextTurn, SUITE.test_interrupting_again_and_too_late_changes_nothing),
        (Deaf, SUITE.test_an_interrupt_before_the_first_word_ends_the_turn),
        (Deaf, SUITE.test_an_interrupt_before_the_first_step_ends_the_turn),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_an_engine_that_breaks_a_rule_is_found_out(
    tmp_path: Path, engine_type: type[ScriptedEngine], rule: Rule
) -> None:
    _SHARED.clear()
    assert await is_kept(ScriptedHarness(), tmp_path / "kept", rule)
    harness = ScriptedHarness()
    harness.engine_type = engine_type
    assert not await is_kept(harness, tmp_path / "broken", rule)


async def test_an_engine_that_takes_any_native_id_is_found_out(tmp_path: Path) -> None:
    harness = ScriptedHarness(NativeStore(tmp_path / "store"))
    rule = SUITE.test_a_native_id_that_is_lost_is_said_on_opening
    assert await is_kept(harness, tmp_path, rule)
    harness.engine_type = TakesAnyNativeId
    assert not await is_kept(harness, tmp_path, rule)


async def test_a_command_that_outlives_its_turn_is_found_out(tmp_path: Path) -> None:
    harness = ScriptedHarness()
    harness.engine_type = LeavesCommands
    try:
        assert not await is_kept(harness, tmp_path, SUITE.test_an_interrupt_kills_the_command_that_runs)
    finally:
        for pid in (tmp_path / "project/pids").read_text(encoding="utf-8").split():
            os.kill(int(pid), signal.SIGKILL)


async def is_kept(harness: ScriptedHarness, folder: Path, rule: Rule) -> bool:
    """Whether the suite's test passes. A skip is neither, and ends the test that asked."""
    given = {"harness": harness, "tmp_path": folder}
    wanted = inspect.signature(rule).parameters
    try:
        await rule(**{name: value for name, value in given.items() if name in wanted})
    except FOUND:
        return False
    return True
