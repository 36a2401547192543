"""The conformance suite against the rehearsal engine. It has no model and no provider: what needs one skips."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from enginehouse_engines.rehearsal import RehearsalEngine
from enginehouse_engines.rehearsal.scenario import EditFile, Say, Scene, Step
from enginehouse_engines.rehearsal.scenario import RunCommand as RunStep
from enginehouse_protocol.conformance import (
    Ability,
    EngineConformance,
    ModelUse,
    RawArguments,
    Reply,
    RunCommand,
    WriteFile,
)
from enginehouse_protocol.engine import Access, Provider, Secret
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.settings import SessionSettings

FOR_EVER_S = 3600.0


class RehearsalHarness:
    """Whatever somebody says finds the scene made of the expected replies."""

    can: frozenset[Ability] = frozenset(
        ("run_command", "write_file", "hang", "ill_formed_text", "route", "broken_provider")
    )

    def __init__(self) -> None:
        self.access = Access(secret=Secret("KEY", "sk-0123456789abcdef"))
        self.settings = SessionSettings()
        self.prompts: tuple[str, ...] = ()
        self._scenes: dict[str, Scene] = {}
        self._calls = 0
        self._called = anyio.Event()

    def find(self, text: str) -> Scene | None:
        self._calls += 1
        self._called.set()
        self._called = anyio.Event()
        return self._scenes.get(text) or self._scenes.get("")

    def make_engine(self) -> RehearsalEngine:
        return RehearsalEngine(self, pace_s=0)

    def expect(self, *replies: Reply, about: str = "") -> None:
        steps: list[Step] = []
        for reply in replies:
            pause_s = FOR_EVER_S if reply.then == "hang" else None
            if reply.pieces or pause_s:
                steps.append(Say(text="".join(reply.pieces) or "…", pause_s=pause_s))
            steps += [self._step(use) for use in reply.uses]
        self._scenes[about] = Scene(prompt=about, steps=tuple(steps))

    async def called(self, count: int) -> None:
        while self._calls < count:
            await self._called.wait()

    def calls(self) -> int:
        return self._calls

    def prompt(self) -> str:
        return ""  # nothing is ever given to a model here

    def input_for(self, use: ModelUse) -> JsonObject:
        match use:
            case RunCommand():
                return {"command": use.command}
            case WriteFile():
                return {"path": use.path, "old": "", "new": use.content}
            case RawArguments():
                return {}

    @asynccontextmanager
    async def broken(self) -> AsyncGenerator[Access]:
        yield Access(provider=Provider(name="torn", options={"pace_s": "slow"}), secret=self.access.secret)

    def _step(self, use: ModelUse) -> Step:
        match use:
            case RunCommand():
                return RunStep(command=use.command)
            case WriteFile():
                return EditFile(path=use.path, old="", new=use.content)
            case RawArguments():
                pytest.fail("there are no arguments without a model")


class TestRehearsal(EngineConformance):
    @pytest.fixture
    def harness(self) -> RehearsalHarness:
        return RehearsalHarness()
