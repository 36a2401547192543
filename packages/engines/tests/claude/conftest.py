"""A session of the real CLI against a scripted Messages API, as the tests of this engine need it."""

import importlib.util
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio
import msgspec
import pytest

from enginehouse_core.keeper import command_kept  # what the app gives; only a machine without namespaces needs it
from enginehouse_engines.claude import create
from enginehouse_protocol.engine import Access, EngineHome, EngineSession, Fresh, Opening, Provider, Secret, Start
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import RecordingPort, TempWorkspace
from model_server import MessagesServer, Script

KEY = "sk-ant-test-0123456789abcdef"
MODEL = "claude-sonnet-4-5"
SCRIPTED = SessionSettings(model=MODEL)
FRESH = Fresh()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Loud, once for each test: without the extra there is no CLI to run."""
    if importlib.util.find_spec("claude_agent_sdk") is None:
        missing = pytest.mark.skip(reason="the extra `claude` is not installed")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(missing)


@dataclass(frozen=True)
class Live:
    """A session under way, with what stands on both sides of it."""

    session: EngineSession
    port: RecordingPort
    workspace: TempWorkspace
    server: MessagesServer
    home: EngineHome
    access: Access
    configuration: Path
    """The CLI's own folder."""

    def said(self, number: int = -1) -> str:
        """Everything of the conversation in one request, as one text."""
        return str((self.server.chats[number].json or {})["messages"])


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a test changes about a session."""

    settings: SessionSettings = SCRIPTED
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    user_settings: Mapping[str, Any] | None = None
    """The person's own `settings.json`."""
    start: Start = FRESH
    instructions: str = ""
    port: RecordingPort | None = None
    limit_s: float = 40.0


class Opener(Protocol):
    def __call__(self, script: Script | MessagesServer, setup: Setup = ...) -> AbstractAsyncContextManager[Live]: ...


@pytest.fixture
def live(tmp_path: Path) -> Opener:
    """Start a session against a script; the test's whole life is bounded."""

    @asynccontextmanager
    async def start(script: Script | MessagesServer, setup: Setup = Setup()) -> AsyncGenerator[Live]:
        server = script if isinstance(script, MessagesServer) else MessagesServer(script)
        place = TempWorkspace(tmp_path / "project")
        port = setup.port or RecordingPort()
        configuration = configured(tmp_path, setup.user_settings)
        home = home_in(tmp_path)
        with anyio.fail_after(setup.limit_s):
            async with server, create(home) as engine:
                access = access_to(server.address, tmp_path, setup.options, setup.environment)
                opening = Opening(
                    session_id=port.history.session_id,
                    roots=place.roots,
                    start=setup.start,
                    settings=setup.settings,
                    instructions=setup.instructions,
                    access=access,
                    port=port,
                    workspace=place,
                    history=port.history,
                )
                async with engine.open(opening) as session:
                    yield Live(session, port, place, server, home, access, configuration)
        assert port.violations == []
        assert server.problems == []

    return start


def home_in(folder: Path) -> EngineHome:
    return EngineHome(state=folder / "state", kept=command_kept, log=logging.getLogger("test.claude"))


def configured(folder: Path, user_settings: Mapping[str, Any] | None) -> Path:
    """The person's own folder of Claude."""
    configuration = folder / ".claude"
    configuration.mkdir(exist_ok=True)
    if user_settings is not None:
        (configuration / "settings.json").write_bytes(msgspec.json.encode(user_settings))
    return configuration


def access_to(
    address: str, folder: Path, options: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> Access:
    return Access(
        provider=Provider(name="scripted", base_url=address, options={"max_retries": 1} | dict(options or {})),
        secret=Secret("ANTHROPIC_API_KEY", KEY),
        environment={"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"} | dict(environment or {}),
    )
