"""Connections for the tests of the JSON-RPC peer: in memory and over a real local socket."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import ByteStream

from enginehouse_protocol.rpc import memory_pair
from enginehouse_protocol.rpc.framing import LineSplitter

Ends = tuple[ByteStream, ByteStream]


@pytest.fixture(params=["memory", "socket"])
async def ends(request: pytest.FixtureRequest) -> AsyncGenerator[Ends]:
    """Both ends of one connection."""
    if request.param == "memory":
        first, second = memory_pair()
        async with first, second:
            yield first, second
        return
    async with socket_ends() as both:
        yield both


@asynccontextmanager
async def socket_ends() -> AsyncGenerator[Ends]:
    with tempfile.TemporaryDirectory() as folder:  # short: a socket's path has a limit
        path = Path(folder) / "socket"
        async with await anyio.create_unix_listener(path) as listener:
            first = await anyio.connect_unix(path)
            second = await listener.accept()
            async with first, second:
                yield first, second


class Plain:
    """A side that writes bytes and reads lines, and knows nothing of JSON-RPC."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._splitter = LineSplitter()
        self._lines: list[bytes] = []

    async def say(self, *messages: dict[str, Any]) -> None:
        await self.stream.send(b"".join(msgspec.json.encode(message) + b"\n" for message in messages))

    async def heard(self) -> dict[str, Any]:
        """The next line."""
        while not self._lines:
            self._lines += [
                line for line in self._splitter.feed(await self.stream.receive()) if isinstance(line, bytes)
            ]
        return msgspec.json.decode(self._lines.pop(0), type=dict[str, Any])


@pytest.fixture
def plain(ends: Ends) -> Plain:
    """The first end, by hand; the second is the peer's."""
    return Plain(ends[0])
