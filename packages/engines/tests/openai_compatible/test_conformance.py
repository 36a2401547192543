"""The engine contract, proven against a scripted model server over real HTTP."""

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from enginehouse_engines.openai_compatible import create
from enginehouse_protocol.conformance import (
    Ability,
    EngineConformance,
    ModelUse,
    RawArguments,
    Reply,
    RunCommand,
    WriteFile,
)
from enginehouse_protocol.engine import Access, Engine, EngineHome, Provider, Secret
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.settings import SessionSettings
from model_server import ChatRequest, ModelServer, Usage, call, cut, fault, raw, reply, stall, text_of
from model_server.script import Answer, Call, Piece

KEY = "sk-conformance-0123456789"


class Harness:
    """The engine with a model behind it that says what the suite expects."""

    can: frozenset[Ability] = frozenset(
        {
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
        }
    )

    def __init__(self, server: ModelServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._expected: dict[str, list[Reply]] = {}
        self.access = Access(
            provider=Provider(name="scripted", base_url=server.base_url, options={"retry_wait_s": 0.01}),
            secret=Secret("OPENAI_API_KEY", KEY),
        )
        self.settings = SessionSettings(model="scripted")
        server.script = self._answer

    def make_engine(self) -> Engine:
        return create(EngineHome(state=self._folder / "state", kept=list, log=logging.getLogger("test.engine")))

    def expect(self, *replies: Reply, about: str = "") -> None:
        if not about:
            self._expected.clear()
        self._expected[about] = list(replies)

    async def called(self, count: int) -> None:
        await self._server.received(count)

    def calls(self) -> int:
        return len(self._server.chats)

    def prompt(self) -> str:
        messages: list[JsonObject] = (self._server.chats[-1].json or {})["messages"]
        return "\n".join(text_of(message) for message in messages)

    def input_for(self, use: ModelUse) -> JsonObject:
        match use:
            case RunCommand(command):
                return {"command": command}
            case WriteFile(path, content):
                return {"path": path, "content": content}
            case RawArguments():
                raise ValueError("raw arguments are no input")

    @asynccontextmanager
    async def broken(self) -> AsyncGenerator[Access]:
        yield Access(
            provider=Provider(name="gone", base_url="http://127.0.0.1:9/v1"), secret=Secret("OPENAI_API_KEY", KEY)
        )

    def _answer(self, request: ChatRequest) -> Answer:
        said = "\n".join(request.user_texts)
        about = next((words for words in self._expected if words and words in said), "")
        expected = self._expected.get(about, [])
        if not expected:
            return fault(400, "the suite expects no more calls")
        return self._wire(expected.pop(0))

    def _wire(self, wanted: Reply) -> Answer:
        if wanted.then == "fail":
            return fault(500, "the model is ill")
        deltas: list[Piece] = [_piece(piece) for piece in wanted.pieces]
        if wanted.then == "hang":
            deltas.append(stall())
        if wanted.then == "drop":
            deltas.append(cut())
        return reply(
            deltas=deltas,
            calls=[self._call(use, number, same=wanted.same_provider_ids) for number, use in enumerate(wanted.uses)],
            usage="omit" if wanted.usage is None else Usage(prompt=wanted.usage[0], completion=wanted.usage[1]),
            flush_each=True,
        )

    def _call(self, use: ModelUse, number: int, *, same: bool) -> Call:
        name = "write_file" if isinstance(use, WriteFile) else "bash"
        arguments = use.text if isinstance(use, RawArguments) else self.input_for(use)
        return call(name, arguments, id="call_same" if same else f"call_{self.calls()}_{number}")


def _piece(text: str) -> Piece:
    """Ill-formed text goes out as JSON escapes, the way a careless server sends it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
        return raw(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    return text


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncGenerator[Harness]:
    async with ModelServer(fault(400, "nothing is expected")) as server:
        yield Harness(server, tmp_path)


class TestOpenAICompatible(EngineConformance):
    """Every test of the suite."""
