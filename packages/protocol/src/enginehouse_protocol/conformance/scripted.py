"""A harness over the scripted engine: the suite's own proof, and an example to write another one by.

Rule: the script is the model. Each reply becomes steps of a turn, and nothing of the engine is told about the suite.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import get_args

import anyio
import msgspec

from enginehouse_protocol.capabilities import EngineAbilities, EngineDescription
from enginehouse_protocol.codec import refuse_nonfinite
from enginehouse_protocol.conformance.harness import (
    Ability,
    ModelUse,
    RawArguments,
    Reply,
    RunCommand,
    WriteFile,
)
from enginehouse_protocol.engine import Access, Opening, Secret, Turn
from enginehouse_protocol.errors import EngineError, MalformedData
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
    """With a `store` the engine keeps sessions itself, else the history is all it knows."""

    can: frozenset[Ability] = frozenset(get_args(Ability))

    def __init__(self, store: NativeStore | None = None) -> None:
        self.access = Access(secret=Secret("KEY", "sk-0123456789abcdef"))
        self.settings = SessionSettings(model="script")
        self._store = store
        self._replies: dict[str, list[Reply]] = {}
        self._calls = 0
        self._called = anyio.Event()
        self._engine = ScriptedEngine()
        self.engine_type: type[ScriptedEngine] = ScriptedEngine
        self.problem: str | None = None

    def make_engine(self) -> ScriptedEngine:
        description = EngineDescription(
            name=EngineName("scripted"),
            title="Scripted engine",
            version="1",
            problem=self.problem,
            abilities=EngineAbilities(edited_input=True, native_resume=self._store is not None),
        )
        self._engine = self.engine_type(self._turn, native_store=self._store, description=description)
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
        self.problem = "the script is torn; write another one"
        yield self.access
        self.problem = None

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
            refuse_nonfinite(given)
        except (msgspec.DecodeError, MalformedData, RecursionError) as error:
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
