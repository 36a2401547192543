"""A session of the engine against a scripted model server, as the tests of the loop need it."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest

from enginehouse_engines.openai_compatible import create
from enginehouse_protocol.engine import Access, EngineHome, EngineSession, Fresh, Opening, Provider, Secret
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import MemoryHistory, RecordingPort, TempWorkspace
from model_server import ModelServer, Script

KEY = "sk-test-0123456789abcdef"
SCRIPTED = SessionSettings(model="scripted")
IMPATIENT = {"retry_wait_s": 0.01}
"""Retries that a test does not wait for."""


@dataclass(frozen=True)
class Live:
    """A session under way, with what stands on both sides of it."""

    session: EngineSession
    port: RecordingPort
    workspace: TempWorkspace
    server: ModelServer

    def sent(self, number: int = -1) -> list[dict[str, Any]]:
        """The messages of one request."""
        return (self.server.chats[number].json or {})["messages"]


class Start(Protocol):
    def __call__(
        self,
        script: Script | ModelServer,
        *,
        settings: SessionSettings = ...,
        options: dict[str, Any] | None = ...,
        history: MemoryHistory | None = ...,
        instructions: str = ...,
        base_url: str | None = ...,
        workspace: Callable[[Path], TempWorkspace] = ...,
        port: Callable[[MemoryHistory | None], RecordingPort] = ...,
    ) -> AbstractAsyncContextManager[Live]: ...


@pytest.fixture
def home(tmp_path: Path) -> EngineHome:
    return EngineHome(state=tmp_path / "state", kept=list, log=logging.getLogger("test.openai_compatible"))


@pytest.fixture
def live(tmp_path: Path, home: EngineHome) -> Start:
    """Start a session against a script; the test's whole life is bounded."""

    @asynccontextmanager
    async def start(
        script: Script | ModelServer,
        *,
        settings: SessionSettings = SCRIPTED,
        options: dict[str, Any] | None = None,
        history: MemoryHistory | None = None,
        instructions: str = "",
        base_url: str | None = None,
        workspace: Callable[[Path], TempWorkspace] = TempWorkspace,
        port: Callable[[MemoryHistory | None], RecordingPort] = RecordingPort,
    ) -> AsyncGenerator[Live]:
        recording = port(history)
        place = workspace(tmp_path / "project")
        server = script if isinstance(script, ModelServer) else ModelServer(script)
        with anyio.fail_after(20):
            async with server, create(home) as engine:
                provider = Provider(
                    name="scripted", base_url=base_url or server.base_url, options=IMPATIENT | (options or {})
                )
                opening = Opening(
                    session_id=recording.history.session_id,
                    roots=place.roots,
                    start=Fresh(),
                    settings=settings,
                    instructions=instructions,
                    access=Access(provider=provider, secret=Secret("OPENAI_API_KEY", KEY)),
                    port=recording,
                    workspace=place,
                    history=recording.history,
                )
                async with engine.open(opening) as session:
                    yield Live(session, recording, place, server)
        assert recording.violations == []
        assert server.problems == []

    return start
