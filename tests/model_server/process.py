"""The same server in a thread or in a process of its own, for tests that cannot share an event loop with it.

Rule: both forms offer one face, `Distant`, whose calls block and have a deadline. From an async test they are
called in a worker thread, as any blocking call.
"""

import http.client
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Protocol
from urllib.parse import quote, urlsplit

import anyio
import anyio.from_thread
import msgspec

from model_server.programs import Script
from model_server.recording import RecordedRequest
from model_server.server import ModelServer

_ROOT = Path(__file__).parent.parent


class Distant(Protocol):
    """A server somewhere else. Each wait raises `TimeoutError` after `within_s`."""

    base_url: str

    def release(self, gate: str) -> None: ...
    def reached(self, gate: str, within_s: float = 5) -> None: ...
    def received(self, chats: int, within_s: float = 5) -> list[RecordedRequest]:
        """The chat requests, once there are that many; with 0, those so far."""
        ...

    def quiet(self, within_s: float = 5) -> list[RecordedRequest]:
        """The chat requests, once no answer is under way."""
        ...

    def problems(self) -> list[str]: ...


@contextmanager
def server_in_thread(
    script: Script,
    *,
    models: Collection[str] = ("scripted",),
    api_key: str | None = None,
    kind: type[ModelServer] = ModelServer,
) -> Iterator[Distant]:
    """Serve from a thread with an event loop of its own."""
    with anyio.from_thread.start_blocking_portal() as portal:
        server = kind(script, models=models, api_key=api_key, controlled=True)
        with portal.wrap_async_context_manager(server):
            yield _Controlled(server.base_url)


@contextmanager
def server_in_process(
    script: Path, *, models: Collection[str] = ("scripted",), api_key: str | None = None
) -> Iterator[Distant]:
    """Serve from a process of its own, which ends with this block or with the process that runs it.

    `script`: a Python file whose global `script` is what `ModelServer` takes.
    """
    command = [sys.executable, "-m", "model_server", f"--script={script}", "--until-stdin-closes"]
    command += [f"--model={model}" for model in models]
    search = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": search}
    if api_key is not None:
        environment["MODEL_SERVER_API_KEY"] = api_key  # not an argument: those show in every process list
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not select([process.stdout], [], [], 20)[0] or not (line := process.stdout.readline()):
            raise RuntimeError(f"the model server did not announce itself; exit code {process.poll()}")
        yield _Controlled(msgspec.json.decode(line)["base_url"])
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class _Answer(msgspec.Struct):
    in_time: bool
    requests: list[RecordedRequest]
    problems: list[str]


class _Controlled:
    """Speaks to a server started with `controlled`."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._address = urlsplit(base_url).netloc

    def release(self, gate: str) -> None:
        self._ask(f"release/{quote(gate, safe='')}")

    def reached(self, gate: str, within_s: float = 5) -> None:
        self._ask(f"reached/{quote(gate, safe='')}", within_s)

    def received(self, chats: int, within_s: float = 5) -> list[RecordedRequest]:
        return self._chats(f"received/{chats}", within_s)

    def quiet(self, within_s: float = 5) -> list[RecordedRequest]:
        return self._chats("quiet/", within_s)

    def problems(self) -> list[str]:
        return self._ask("now").problems

    def _chats(self, path: str, within_s: float) -> list[RecordedRequest]:
        return [request for request in self._ask(path, within_s).requests if request.number]

    def _ask(self, path: str, within_s: float = 5) -> _Answer:
        connection = http.client.HTTPConnection(self._address, timeout=within_s + 5)
        try:
            connection.request("GET", f"/_server/{path}?within_s={within_s}", headers={"connection": "close"})
            answer = msgspec.json.decode(connection.getresponse().read(), type=_Answer)
        finally:
            connection.close()
        if not answer.in_time:
            raise TimeoutError(f"{path} did not come true within {within_s} s; problems: {answer.problems}")
        return answer
