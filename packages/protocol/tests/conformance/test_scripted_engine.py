"""The conformance suite against the scripted engine: with a store of its own, and with the history alone."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from enginehouse_protocol.capabilities import EngineDescription
from enginehouse_protocol.conformance import (
    Ability,
    EngineConformance,
    ModelUse,
    RawArguments,
    Reply,
    RunCommand,
    WriteFile,
)
from enginehouse_protocol.engine import Access, Opening, Secret, Turn
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.ids import EngineName
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import (
    Crash,
    Do,
    Fail,
    Gate,
    NativeStore,
    Say,
    ScriptedEngine,
    Step,
    Together,
    Usage,
    UseTool,
    Wait,
    last_text,
)


class ScriptedHarness:
    """The script is the model: each reply becomes steps of a turn."""

    can: frozenset[Ability] = frozenset(
        (
            "run_command",
            "write_file",
            "raw_arguments",
            "hang",
            "fail",
            "drop",
            "usage",
            "ill_formed_text",
            "route",
            "broken_provider",
            "prompt",
        )
    )

    def __init__(self, store: NativeStore | None) -> None:
        self.access = Access(secret=Secret("KEY", "sk-0123456789abcdef"))
        self.settings = SessionSettings(model="script")
        self._store = store
        self._replies: dict[str, list[Reply]] = {}
        self._calls = 0
        self._called = anyio.Event()
        self._engine = ScriptedEngine()
        self._problem: str | None = None

    def make_engine(self) -> ScriptedEngine:
        description = EngineDescription(
            name=EngineName("scripted"),
            title="Scripted engine",
            version="1",
            problem=self._problem,
            edited_input=True,
            native_resume=self._store is not None,
        )
        self._engine = ScriptedEngine(self._turn, native_store=self._store, description=description)
        return self._engine

    def expect(self, *replies: Reply, about: str = "") -> None:
        self._replies[about] = list(replies)

    async def called(self, count: int) -> None:
        while self._calls < count:
            await self._called.wait()

    def calls(self) -> int:
        return self._calls

    def prompt(self) -> str:
        return "\n".join(self._engine.known)

    def input_for(self, use: ModelUse) -> JsonObject:
        match use:
            case RunCommand():
                return {"command": use.command}
            case WriteFile():
                return {"path": use.path, "content": use.content}
            case RawArguments():
                return msgspec.json.decode(use.text, type=JsonObject)

    @asynccontextmanager
    async def broken(self) -> AsyncGenerator[Access]:
        self._problem = "the script is torn; write another one"
        yield self.access
        self._problem = None

    async def _call(self, _opening: Opening, _turn: Turn) -> None:
        self._calls += 1
        self._called.set()
        self._called = anyio.Event()

    def _turn(self, turn: Turn) -> Sequence[Step]:
        queue = self._replies.get(last_text(turn)) or self._replies[""]
        steps: list[Step] = []
        while True:
            reply = queue.pop(0)
            steps += [Do(self._call), *self._steps(reply)]
            if not reply.uses:
                return steps

    def _steps(self, reply: Reply) -> list[Step]:
        text = "".join(reply.pieces)
        match reply.then:
            case "fail":
                return [Fail(EngineError("the provider is overloaded", code="overloaded", http_status=529))]
            case "drop":
                return [Crash(text)]
            case "hang":
                return [Say(text, pieces=reply.pieces, hold=Gate()) if reply.pieces else Wait(Gate())]
            case "end":
                steps: list[Step] = [Say(text, pieces=reply.pieces)] if reply.pieces else []
                steps.append(Usage(*(reply.usage or (None, None))))
                uses = tuple(
                    self._use(use, "call_0" if reply.same_provider_ids else f"call_{number}")
                    for number, use in enumerate(reply.uses)
                )
                return [*steps, Together(*uses)] if uses else steps

    def _use(self, use: ModelUse, provider_call_id: str) -> UseTool:
        refused = ""
        try:
            given = self.input_for(use)
        except msgspec.DecodeError as error:
            given, refused = {}, f"the arguments make no sense: {error}"
        kind = "edit" if isinstance(use, WriteFile) else "execute"
        title = "" if kind == "edit" else f"$ {str(given.get('command', '')).splitlines()[:1]}"
        return UseTool(
            "write" if kind == "edit" else "bash",
            given,
            kind=kind,
            title=title,
            refused=refused,
            provider_call_id=provider_call_id,
        )


class TestScriptedEngine(EngineConformance):
    @pytest.fixture
    def harness(self) -> ScriptedHarness:
        return ScriptedHarness(None)


class TestScriptedEngineWithAStore(EngineConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> ScriptedHarness:
        return ScriptedHarness(NativeStore(tmp_path / "store"))
