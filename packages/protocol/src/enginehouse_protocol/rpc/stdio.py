"""This process's standard input and output as a connection.

Rules: the protocol has the descriptors for itself: what prints by mistake goes to standard error. No descriptor is
made non-blocking: that would change it for everybody who shares it, a shell among them.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.abc import ByteStream

Done = TypeVar("Done")
_WRITTEN_BYTES = 4096
"""A pipe that is writable takes this much without blocking."""


class DescriptorStream(ByteStream):
    """Two descriptors, which it owns from now on. Pipes, sockets and terminals; also files and devices."""

    def __init__(self, read_from: int, write_to: int) -> None:
        self._input: int | None = read_from
        self._output: int | None = write_to
        self._waits = {read_from: True, write_to: True}

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._input is None:
            raise anyio.ClosedResourceError
        await self._ready(self._input, anyio.wait_readable)
        try:
            data = await self._do(self._input, lambda descriptor: os.read(descriptor, max_bytes))
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        view = memoryview(item)
        while view:
            if self._output is None:
                raise anyio.ClosedResourceError
            await self._ready(self._output, anyio.wait_writable)
            piece = view[:_WRITTEN_BYTES]
            try:
                written = await self._do(self._output, lambda descriptor, piece=piece: os.write(descriptor, piece))
            except OSError as error:
                raise anyio.BrokenResourceError from error
            view = view[written:]

    async def _ready(self, descriptor: int, wait: Callable[[int], Awaitable[None]]) -> None:
        if self._waits[descriptor]:
            try:
                await wait(descriptor)
            except PermissionError:  # a file or /dev/null: the event loop cannot wait for it, and it makes nobody wait
                self._waits[descriptor] = False

    async def _do(self, descriptor: int, work: Callable[[int], Done]) -> Done:
        if self._waits[descriptor]:
            return work(descriptor)
        return await anyio.to_thread.run_sync(work, descriptor)

    async def send_eof(self) -> None:
        if self._output is not None:
            descriptor, self._output = self._output, None
            anyio.notify_closing(descriptor)
            os.close(descriptor)

    async def aclose(self) -> None:
        await self.send_eof()
        if self._input is not None:
            descriptor, self._input = self._input, None
            anyio.notify_closing(descriptor)
            os.close(descriptor)


@asynccontextmanager
async def stdio_stream() -> AsyncGenerator[ByteStream]:
    """Standard input and output for the protocol alone; meanwhile 0 is empty and 1 is standard error."""
    stream = DescriptorStream(os.dup(0), os.dup(1))
    kept = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        yield stream
    finally:
        await stream.aclose()
        for descriptor, original in enumerate(kept):
            os.dup2(original, descriptor)
            os.close(original)
