"""One scripted task on Claude and on an OpenAI-compatible model: whoever reads along cannot tell them apart."""

import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from enginehouse_engines.claude import create as create_claude
from enginehouse_engines.openai_compatible import create as create_openai_compatible
from enginehouse_protocol.engine import Access, Engine, EngineHome, Fresh, Opening, Provider, Secret
from enginehouse_protocol.events import (
    MessageAssistant,
    MessageUser,
    PermissionDecided,
    StepStarted,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnStarted,
)
from enginehouse_protocol.permissions import Allow, Decision, Deny
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import RecordingPort, TempWorkspace
from model_server import Answer, ChatRequest, MessagesServer, ModelServer, call, reply

from .conftest import KEY, home_in

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Side:
    """One engine with its own server, and what its tools are called."""

    engine: Engine
    access: Access
    server: ModelServer
    bash: str
    write: str
    path: str


@asynccontextmanager
async def claude(folder: Path) -> AsyncGenerator[Side]:
    async with MessagesServer(reply("hi")) as server, create_claude(home_in(folder)) as engine:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        provider = Provider(name="scripted", base_url=server.address, options={"isolated": True})
        access = Access(provider=provider, secret=Secret("KEY", KEY), environment=environment)
        yield Side(engine, access, server, "Bash", "Write", "file_path")


@asynccontextmanager
async def openai_compatible(folder: Path) -> AsyncGenerator[Side]:
    home = EngineHome(state=folder / "state", kept=list, log=logging.getLogger("test.openai_compatible"))
    async with ModelServer(reply("hi")) as server, create_openai_compatible(home) as engine:
        access = Access(provider=Provider(name="scripted", base_url=server.base_url), secret=Secret("KEY", KEY))
        yield Side(engine, access, server, "bash", "write_file", "path")


async def judged(use: ToolUse) -> Decision:
    return Deny(reason="not that one") if "forbidden" in str(use.input) else Allow()


def outline(port: RecordingPort, folder: Path) -> list[object]:
    """Who said and did what, in the words every engine shares."""
    lines: list[object] = []
    for body in port.bodies:
        match body:
            case TurnStarted():
                lines.append("turn")
            case MessageUser() | MessageAssistant():
                lines.append((type(body).__name__, str(getattr(body, "text", "")), getattr(body, "complete", True)))
            case StepStarted(step=step):
                lines.append(("step", step))
            case ToolUse(kind=kind, paths=paths):
                lines.append(("use", kind, tuple(os.path.relpath(folder / path, folder) for path in paths)))
            case PermissionDecided(decision=decision, by=by):
                lines.append(("decided", type(decision).__name__, by))
            case ToolResult(status=status):
                lines.append(("result", status))
            case TurnCompleted(stop=stop):
                lines.append(("end", stop))
            case _:
                pass
    return lines


async def played(side: Side, model: str, folder: Path) -> list[object]:
    def script(request: ChatRequest) -> Answer:
        uses: list[tuple[str, dict[str, Any]]] = [
            (side.write, {side.path: "notes/a.txt", "content": "plum\n"}),
            (side.bash, {"command": "touch forbidden"}),
            (side.bash, {"command": "cat notes/a.txt; exit 3"}),
        ]
        step = request.steps_this_turn
        if "and then" in str(request.messages[-1]) or step == len(uses):
            return reply("That is all.")
        return reply(f"Step {step}.", calls=[call(*uses[step])])

    side.server.script = script
    place = TempWorkspace(folder / "project")
    port = RecordingPort(policy=judged)
    opening = Opening(
        session_id=port.history.session_id,
        roots=place.roots,
        start=Fresh(),
        settings=SessionSettings(model=model),
        instructions="",
        access=side.access,
        port=port,
        workspace=place,
        history=port.history,
    )
    async with side.engine.open(opening) as session:
        for words in ("go", "and then?"):
            await port.run(session, words)
    assert port.violations == []
    assert (place.directory / "notes" / "a.txt").read_text() == "plum\n"
    return outline(port, place.directory)


async def test_the_same_task_has_the_same_outline_on_both_engines(tmp_path: Path) -> None:
    with anyio.fail_after(40):
        async with claude(tmp_path / "one") as side:
            (tmp_path / "one").mkdir(exist_ok=True)
            first = await played(side, "claude-sonnet-4-5", tmp_path / "one")
        async with openai_compatible(tmp_path / "two") as side:
            second = await played(side, "scripted", tmp_path / "two")
    assert first == second
    assert ("use", "edit", ("notes/a.txt",)) in first
    assert [line for line in first if isinstance(line, tuple) and line[0] == "result"] == [
        ("result", "ok"),
        ("result", "denied"),
        ("result", "error"),
    ]
