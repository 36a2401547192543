"""Interrupt: the turn ends within two seconds wherever it is, and the session is usable afterwards."""

from pathlib import Path

import anyio
import pytest

from enginehouse_protocol.conformance.harness import EngineHarness, Reply, RunCommand
from enginehouse_protocol.conformance.opened import Opened, is_running, need, opened, until
from enginehouse_protocol.conformance.tools import paired
from enginehouse_protocol.engine import Applied, EngineSession, Turn, TurnEnd
from enginehouse_protocol.errors import EngineError, TranscriptUnavailable
from enginehouse_protocol.events import (
    MessageAssistant,
    MessageDelta,
    MessageReset,
    PermissionDecided,
    PermissionRequested,
    ToolUse,
)
from enginehouse_protocol.ids import TurnId, new_turn_id
from enginehouse_protocol.permissions import Allow, Decision
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing.answers import allow, never
from enginehouse_protocol.testing.port import RecordingPort

KILL_LIMIT_S = 1.0
SLEEPING = RunCommand("sleep 60 & echo $$ $! > pids.new; mv pids.new pids; sleep 60; touch late")


async def pids_of(it: Opened) -> list[int]:
    """Wait for `SLEEPING` to be under way; its shell and its child."""
    file = it.workspace.directory / "pids"
    await until(file.exists)
    return [int(pid) for pid in file.read_text(encoding="utf-8").split()]


async def dead(pids: list[int]) -> None:
    """All of them, at once: the kernel needs a moment to carry out a kill, not more."""
    await until(lambda: not any(is_running(pid) for pid in pids), deadline_s=KILL_LIMIT_S)


class _InterruptedFirst:
    """Interrupts a turn before its `run` has taken a step."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session

    async def run(self, turn: Turn) -> TurnEnd:
        await self._session.interrupt(turn.id)
        return await self._session.run(turn)

    async def interrupt(self, turn_id: TurnId) -> None:
        await self._session.interrupt(turn_id)

    async def apply(self, change: SessionSettings) -> Applied:
        return await self._session.apply(change)


class Interrupts:
    """Part of `EngineConformance`."""

    async def test_an_interrupt_before_the_first_step_ends_the_turn(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """`interrupt` may come before `run`: nothing is done then, and only that turn is meant."""
        need(harness, "run_command")
        harness.expect(Reply(uses=(RunCommand("touch ran"),)), Reply(pieces=("too far",)))
        async with opened(harness, tmp_path) as it:
            with anyio.fail_after(5):
                end = await it.port.run(_InterruptedFirst(it.session), "go")
            assert end.stop == "interrupted"
            assert it.port.all(ToolUse) == []
            await it.still_works()

    async def test_an_interrupt_before_the_first_word_ends_the_turn(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """A model that was called and says nothing can be stopped."""
        need(harness, "hang")
        harness.expect(Reply(then="hang"))
        async with opened(harness, tmp_path) as it:
            assert (await it.interrupted("go", lambda: harness.called(1))).stop == "interrupted"
            await it.still_works()

    async def test_an_interrupt_while_the_model_speaks_keeps_what_was_shown(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """The cut text becomes a message with `complete=False`, or is taken back; it is never left hanging."""
        need(harness, "hang")
        harness.expect(Reply(pieces=("half ", "a ", "sentence"), then="hang"))
        async with opened(harness, tmp_path) as it:
            end = await it.interrupted("go", lambda: it.port.heard(MessageDelta))
            assert end.stop == "interrupted"
            shown = {delta.message_id for delta in it.port.all(MessageDelta)}
            cut = it.port.all(MessageAssistant, lambda message: message.message_id in shown)
            void = {reset.message_id for reset in it.port.all(MessageReset)}
            assert shown <= {message.message_id for message in cut} | void
            for message in cut:
                assert not message.complete
                assert "half a sentence".startswith(str(message.text))
            await it.still_works()

    async def test_an_interrupt_kills_the_command_that_runs(self, harness: EngineHarness, tmp_path: Path) -> None:
        """The command and its children are dead when `run` returns, and what came after them never happens."""
        need(harness, "run_command")
        harness.expect(Reply(uses=(SLEEPING,)), Reply(pieces=("too far",)))
        async with opened(harness, tmp_path) as it:
            pids: list[int] = []

            async def running() -> None:
                pids.extend(await pids_of(it))

            end = await it.interrupted("go", running)
            assert end.stop == "interrupted"
            await dead(pids)
            assert [result.status for _, result in paired(it.port)] == ["interrupted"]
            assert not (it.workspace.directory / "late").exists()
            await it.still_works()

    @pytest.mark.parametrize("count", [1, 3])
    async def test_an_interrupt_ends_requests_nobody_answers(
        self, harness: EngineHarness, tmp_path: Path, count: int
    ) -> None:
        """Pending requests expire; each use gets its one result and nothing runs."""
        need(harness, "run_command")
        harness.expect(Reply(uses=(RunCommand("touch ran"),) * count), Reply(pieces=("too far",)))
        async with opened(harness, tmp_path, port=RecordingPort(policy=never)) as it:
            end = await it.interrupted("go", lambda: it.port.heard(PermissionRequested))
            assert end.stop == "interrupted"
            assert {decided.by for decided in it.port.all(PermissionDecided)} == {"expiry"}
            assert {result.status for _, result in paired(it.port)} <= {"interrupted", "denied"}
            assert not (it.workspace.directory / "ran").exists()
            it.port.policy = allow
            await it.still_works()

    async def test_interrupting_again_and_too_late_changes_nothing(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """`interrupt` is idempotent; one for an old or an unknown turn does not touch the next."""
        need(harness, "hang")
        harness.expect(Reply(pieces=("half ",), then="hang"))
        async with opened(harness, tmp_path) as it:
            end = await it.interrupted("go", lambda: it.port.heard(MessageDelta), times=3)
            assert end.stop == "interrupted"
            old = it.port.history.events[-1].turn_id
            assert old is not None
            with anyio.fail_after(5):
                await it.session.interrupt(old)
                await it.session.interrupt(new_turn_id())
            await it.still_works()

    async def test_a_turn_that_is_cancelled_leaves_no_command_behind(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """Core cancels `run` when an interrupt missed its deadline, and leaves the session: everything is dead."""
        need(harness, "run_command")
        harness.expect(Reply(uses=(SLEEPING,)), Reply(pieces=("too far",)))
        pids: list[int] = []
        async with opened(harness, tmp_path) as it, anyio.create_task_group() as tasks:
            tasks.start_soon(it.run, "go")
            pids += await pids_of(it)
            tasks.cancel_scope.cancel()
        await dead(pids)
        assert not (it.workspace.directory / "late").exists()

    async def test_a_record_that_cannot_be_written_stops_the_turn(self, harness: EngineHarness, tmp_path: Path) -> None:
        """`emit` raising `TranscriptUnavailable` ends the turn soon, without running anything more."""
        need(harness, "run_command")
        async with opened(harness, tmp_path) as it:

            async def allow_and_break(_use: ToolUse) -> Decision:
                it.port.broken = "no space left"
                return Allow()

            it.port.policy = allow_and_break
            harness.expect(
                Reply(uses=(RunCommand("true"),)),
                Reply(uses=(RunCommand("touch ran"),)),
                Reply(pieces=("too far",)),
            )
            with anyio.fail_after(5):
                try:
                    await it.run("go")
                except (TranscriptUnavailable, EngineError):
                    pass  # or it returns: all three stop the turn
            it.port.violations.clear()  # the use stays open, its result could not be recorded: core repairs that
            assert not (it.workspace.directory / "ran").exists()
