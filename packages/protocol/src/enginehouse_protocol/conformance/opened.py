"""Opens sessions for the suite, and checks at the end of each what must hold in every test.

Rule: a session is closed, its record read and the secret looked for, whatever the test was about.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
import pytest

from enginehouse_protocol.capabilities import EngineDescription
from enginehouse_protocol.conformance.harness import Ability, EngineHarness, Reply
from enginehouse_protocol.engine import EngineSession, Fresh, Opening, Start, TurnEnd, TurnLimits
from enginehouse_protocol.testing.port import RecordingPort
from enginehouse_protocol.testing.workspace import TempWorkspace

TEST_LIMIT_S = 30.0
INTERRUPT_LIMIT_S = 2.0
"""What a person is promised."""


@dataclass(frozen=True)
class Opened:
    """One live session with all that stands around it."""

    harness: EngineHarness
    session: EngineSession
    port: RecordingPort
    workspace: TempWorkspace
    description: EngineDescription

    async def run(self, text: str, *, limits: TurnLimits | None = None) -> TurnEnd:
        return await self.port.run(self.session, text, limits=limits)

    async def interrupted(self, text: str, when: Callable[[], Awaitable[object]], *, times: int = 1) -> TurnEnd:
        """Run a turn, interrupt it as soon as `when` returns, and see that it ends in time."""
        ends: list[TurnEnd] = []
        ended = anyio.Event()

        async def turn() -> None:
            ends.append(await self.run(text))
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turn)
            await when()
            turn_id = self.port.turn_id
            assert turn_id is not None, "the turn was over before it could be interrupted"
            with anyio.fail_after(INTERRUPT_LIMIT_S):
                for _ in range(times):
                    await self.session.interrupt(turn_id)
                self.port.expire_pending()
                await ended.wait()
        return ends[0]

    async def still_works(self) -> None:
        """The next turn is an ordinary one."""
        self.harness.expect(Reply(pieces=("still ", "here")))
        assert (await self.run("are you there?")).stop == "end"
        assert self.port.texts()[-1] == "still here"


@asynccontextmanager
async def opened(
    harness: EngineHarness,
    folder: Path,
    *,
    port: RecordingPort | None = None,
    start: Start | None = None,
) -> AsyncGenerator[Opened]:
    """A session of a new engine in `folder`."""
    port = port or RecordingPort()
    workspace = TempWorkspace(folder / "project")
    opening = Opening(
        session_id=port.history.session_id,
        roots=workspace.roots,
        start=start or Fresh(),
        settings=harness.settings,
        instructions="",
        access=harness.access,
        port=port,
        workspace=workspace,
        history=port.history,
    )
    with anyio.fail_after(TEST_LIMIT_S):
        try:
            async with harness.make_engine() as engine:
                description = await engine.describe(harness.access)
                async with engine.open(opening) as session:
                    yield Opened(harness, session, port, workspace, description)
        finally:
            no_secret(harness, port)
    assert port.violations == []


def no_secret(harness: EngineHarness, port: RecordingPort) -> None:
    secret = harness.access.secret
    if secret is not None:
        leaks = [body for body in port.bodies if secret.reveal().encode() in msgspec.json.encode(body)]
        assert leaks == [], "the provider's secret is in what the engine emitted"


def need(harness: EngineHarness, *abilities: Ability) -> None:
    """Skip, loudly, what this harness cannot make happen."""
    if missing := sorted(set(abilities) - harness.can):
        pytest.skip(f"this engine's harness cannot: {', '.join(missing)}")


async def until(condition: Callable[[], bool], *, deadline_s: float = 5.0) -> None:
    """Wait for what another process does."""
    with anyio.fail_after(deadline_s):
        while not condition():  # noqa: ASYNC110 - nothing here could signal it
            await anyio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return not Path("/proc/self").exists()  # a system without /proc; else it is gone meanwhile
    return state != "Z"
