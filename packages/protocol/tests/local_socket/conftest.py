"""Real services in real folders; whatever a test leaves running is ended by its own pid."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteStream

from enginehouse_protocol.local_socket import (
    Connection,
    Edition,
    Ending,
    Guest,
    Launch,
    Lifetime,
    Place,
    Server,
    Span,
    connect,
    holder_of,
)

HERE = Path(__file__).parent
OURS = Edition(version="1.2.0", protocol=Span(min=1, max=3))
"""What the tests' clients and servers speak, unless said otherwise."""


@pytest.fixture
def place(tmp_path: Path) -> Generator[Place]:
    yield (made := Place(tmp_path / "run", "echo"))
    end_holder(made)


@pytest.fixture
def open_place() -> Generator[Place]:
    """A place other users can get at, once a test opens its folder: pytest's own folders are private."""
    folder = Path(tempfile.mkdtemp(prefix="place-"))
    folder.chmod(0o755)
    yield (made := Place(folder / "run", "echo"))
    end_holder(made)
    shutil.rmtree(folder)


def end_holder(place: Place) -> None:
    try:
        place.folder.chmod(0o700)
        holder = holder_of(place)
    except FileNotFoundError:
        return
    if holder and holder.pid and holder.pid != os.getpid():
        os.kill(holder.pid, signal.SIGKILL)


class Launches(Protocol):
    def __call__(self, place: Place, **options: object) -> Callable[[], Launch]: ...


@pytest.fixture
def launch(tmp_path: Path) -> Launches:
    """How to start an echo service at a place; the options are those of `echo_service.py`."""

    def at(place: Place, **options: object) -> Callable[[], Launch]:
        told: dict[str, Any] = {
            "folder": str(place.folder),
            "name": place.name,
            "through_proc": place.through_proc,
            "witness": f"witness:{place.folder}",
            "violations": str(tmp_path / "violations"),
            **options,
        }
        argv = [sys.executable, str(HERE / "echo_service.py"), json.dumps(told)]
        return lambda: Launch(argv, {"PATH": os.defpath, "LANG": "C.UTF-8"})

    return at


Echoes = Callable[[ByteStream, Guest], Any]


async def echo(stream: ByteStream, guest: Guest) -> None:
    """Sends back what it gets."""
    while True:
        try:
            await stream.send(await stream.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return


class Served:
    """A server in this process. `ending` is set once it has ended."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ending: Ending | None = None
        self.ended = anyio.Event()


class Serving(Protocol):
    def __call__(
        self, place: Place, on_connection: Echoes = ..., edition: Edition = ..., **options: Any
    ) -> AbstractAsyncContextManager[Served]: ...


@pytest.fixture
def serving() -> Serving:
    @asynccontextmanager
    async def at(
        place: Place, on_connection: Echoes = echo, edition: Edition = OURS, **options: Any
    ) -> AsyncGenerator[Served]:
        told: dict[str, Any] = {"idle_after_s": None, "busy": lambda: False, **options}
        with Lifetime.acquire(place, edition.version) as lifetime:
            served = Served(Server(lifetime, edition, on_connection, **told))

            async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                served.ending = await served.server.run(task_status=task_status)
                served.ended.set()

            async with anyio.create_task_group() as tasks:
                await tasks.start(run)
                yield served
                served.server.stop()

    return at


class Reach(Protocol):
    def __call__(
        self, place: Place, edition: Edition = ..., **options: Any
    ) -> AbstractAsyncContextManager[Connection]: ...


@pytest.fixture
def reach() -> Reach:
    """Connect, and close at the end."""

    @asynccontextmanager
    async def at(place: Place, edition: Edition = OURS, **options: Any) -> AsyncGenerator[Connection]:
        told: dict[str, Any] = {"start": None, **options}
        connection = await connect(place, edition, **told)
        async with connection.stream:
            yield connection

    return at


class Ask(Protocol):
    async def __call__(self, connection: Connection, line: str) -> Any: ...


@pytest.fixture
def ask() -> Ask:
    """Send the echo service a line, get its answer."""

    async def of(connection: Connection, line: str) -> Any:
        await connection.stream.send(line.encode() + b"\n")
        return json.loads(await BufferedByteStream(connection.stream).receive_until(b"\n", 65_536))

    return of


async def gone(pid: int) -> None:
    """Wait until a process is no more."""
    with anyio.fail_after(10):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await anyio.sleep(0.01)
