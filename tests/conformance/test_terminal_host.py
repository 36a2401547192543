"""The command line against the host suite: through the hub, and in process."""

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from conformance.terminal_driver import TerminalDriver
from enginehouse_protocol.conformance.hosts import HostConformance
from model_server import ModelServer, fault


async def driver_of(home: Path, *, hub: bool) -> AsyncGenerator[TerminalDriver]:
    async with ModelServer(fault(400, "nothing is expected")) as server:
        driver = TerminalDriver(home, server, hub=hub)
        async with anyio.create_task_group() as driver.tasks:
            yield driver
            driver.tasks.cancel_scope.cancel()
        driver.goes_home()
    assert server.problems == []


class TestThroughTheHub(HostConformance):
    @pytest.fixture
    async def driver(self, tmp_path: Path) -> AsyncGenerator[TerminalDriver]:
        async for driver in driver_of(tmp_path / "home", hub=True):
            yield driver


class TestInProcess(HostConformance):
    @pytest.fixture
    async def driver(self, tmp_path: Path) -> AsyncGenerator[TerminalDriver]:
        async for driver in driver_of(tmp_path / "home", hub=False):
            yield driver
