"""The engine contract, proven with the real `claude` program against a scripted Messages API."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from enginehouse_engines.claude import create
from enginehouse_protocol.conformance import (
    Ability,
    EngineConformance,
    ModelUse,
    RawArguments,
    Reply,
    RunCommand,
    WriteFile,
)
from enginehouse_protocol.engine import Access, Engine
from enginehouse_protocol.permissions import JsonObject
from model_server import ChatRequest, MessagesRequest, MessagesServer, Usage, call, cut, fault, raw, reply, stall
from model_server.script import Answer, Call, Piece

from .conftest import SCRIPTED, access_to, configured, home_in
from .pids import INNER, translate


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

    def __init__(self, server: MessagesServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._expected: dict[str, list[Reply]] = {}
        self.access = access_to(server.address, folder)
        self.settings = SCRIPTED
        configured(folder, None)
        server.script = self._answer

    def make_engine(self) -> Engine:
        return create(home_in(self._folder))

    def expect(self, *replies: Reply, about: str = "") -> None:
        if not about:
            self._expected.clear()
        self._expected[about] = list(replies)

    async def called(self, count: int) -> None:
        await self._server.received(count)

    def calls(self) -> int:
        return len(self._server.chats)

    def prompt(self) -> str:
        last = self._server.chats[-1]
        return MessagesRequest(number=last.number, body=last.json or {}, raw=last.body, headers={}).all_text

    def input_for(self, use: ModelUse) -> JsonObject:
        match use:
            case RunCommand(command):
                return {"command": _as_claude_takes_it(command)}
            case WriteFile(path, content):
                return {"file_path": path, "content": content}
            case RawArguments():
                raise ValueError("raw arguments are no input")

    @asynccontextmanager
    async def broken(self) -> AsyncGenerator[Access]:
        yield access_to("http://127.0.0.1:9", self._folder)

    def _answer(self, request: ChatRequest) -> Answer:
        assert isinstance(request, MessagesRequest)
        about = next((words for words in self._expected if words and words in request.all_text), "")
        expected = self._expected.get(about, [])
        if not expected:
            return fault(400, "the suite expects no more calls")
        if expected[0].then == "fail":
            return fault(500, "the model is ill")  # and it stays ill, however often it is asked again
        return self._wire(expected.pop(0))

    def _wire(self, wanted: Reply) -> Answer:
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
        name = "Write" if isinstance(use, WriteFile) else "Bash"
        arguments = use.text if isinstance(use, RawArguments) else self.input_for(use)
        # Ids differ within one reply even then: the real API makes them, and refuses a conversation that repeats one.
        return call(name, arguments, id=f"toolu_same_{number}" if same else f"toolu_{self.calls()}_{number}")


def _as_claude_takes_it(command: str) -> str:
    """Claude refuses to sleep in front of something else, and its commands count processes from one."""
    return command.replace("sleep 60", "timeout 60 tail -f /dev/null").replace(" pids;", f" pids{INNER};")


def _piece(text: str) -> Piece:
    """Ill-formed text goes out as JSON escapes, the way a careless server sends it."""
    try:
        msgspec.json.encode(text)
    except (UnicodeEncodeError, msgspec.MsgspecError):
        event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        return raw(b"event: content_block_delta\ndata: " + json.dumps(event).encode() + b"\n\n")
    return text


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncGenerator[Harness]:
    async with MessagesServer(fault(400, "nothing is expected")) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(translate, tmp_path)
        yield Harness(server, tmp_path)
        tasks.cancel_scope.cancel()


class TestClaude(EngineConformance):
    """Every test of the suite."""
