"""A model server for tests: real HTTP on loopback, the Chat Completions wire format, answers from a script.

Rule: the script lives here, not in the client under test. It therefore survives whatever is done to the
client, and the server sees exactly what a provider would see.
"""

import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

import anyio
import msgspec
from anyio.abc import SocketAttribute, SocketStream

from model_server.connection import BadHttp, ClientLeft, Connection, HttpRequest
from model_server.gates import Gates
from model_server.performance import Performance, perform, whole
from model_server.programs import Script, program_of
from model_server.recording import RecordedRequest
from model_server.request import ChatRequest
from model_server.script import Cut, Hold, Pause, error_body
from model_server.validation import Refused, check

_CONTROL = "/_server/"


class _CutHere(Exception):
    """The script closes the connection."""


class ModelServer:
    """`async with ModelServer(script) as server:` serves until the block ends, then closes every connection.

    `script` may be replaced meanwhile; the next request meets the new one. `api_key` None accepts any key.
    `tolerated`: keys accepted beside the published ones, at the top of a request or in an assistant message.
    `controlled`: answer another process, too (`process.py`).
    """

    def __init__(
        self,
        script: Script,
        *,
        models: Collection[str] = ("scripted",),
        api_key: str | None = None,
        tolerated: Collection[str] = ("reasoning_content",),
        port: int = 0,
        controlled: bool = False,
    ) -> None:
        self.script = script
        self.requests: list[RecordedRequest] = []
        """Every request in order of arrival, also refused ones and `/v1/models`."""
        self.problems: list[str] = []
        """What went wrong in the script itself or was not HTTP. A test of a working client asserts there are
        none."""
        self._models = tuple(models)
        self._api_key = api_key
        self._tolerated = tuple(tolerated)
        self._port = port
        self._controlled = controlled
        self._gates = Gates()
        self._serving = AsyncExitStack()

    async def __aenter__(self) -> Self:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self._port)
        self._port = listener.extra(SocketAttribute.local_port)
        self._serving.push_async_callback(listener.aclose)
        tasks = await self._serving.enter_async_context(anyio.create_task_group())
        self._serving.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(listener.serve, self._serve)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The block's own error is not handed to the task group: a failed assertion must not become one.
        await self._serving.aclose()

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL, with `/v1`."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def chats(self) -> list[RecordedRequest]:
        return [request for request in self.requests if request.number]

    def release(self, gate: str) -> None:
        """Open the gate for everything that waits at it and for all that comes later."""
        self._gates.release(gate)

    async def reached(self, gate: str) -> None:
        """Return once an answer waits, or has waited, at the gate. What stands before it has been sent."""
        await self._gates.reached(gate)

    async def received(self, chats: int) -> list[RecordedRequest]:
        """Return the chat requests once there are that many. Their answers may still be under way."""
        await self._gates.until(lambda: len(self.chats) >= chats)
        return self.chats

    async def quiet(self) -> None:
        """Return once no answer is under way."""
        await self._gates.until(lambda: all(request.outcome != "open" for request in self.requests))

    # -- one connection --------------------------------------------------------------------------------

    async def _serve(self, stream: SocketStream) -> None:
        async with stream:
            connection = Connection(stream)
            try:
                while request := await connection.next_request():
                    await self._answer(connection, request)
                    if not request.keep_alive:
                        return
            except BadHttp as error:
                self.problems.append(f"not HTTP: {error}")
            except (ClientLeft, _CutHere):
                return

    async def _answer(self, connection: Connection, request: HttpRequest) -> None:
        url = urlsplit(request.target)
        if self._controlled and url.path.startswith(_CONTROL):
            await self._control(connection, url.path.removeprefix(_CONTROL), url.query)
            return
        chat = self._is_chat(request.method, url.path)
        record = RecordedRequest(
            number=len(self.chats) + 1 if chat else 0,
            method=request.method,
            path=url.path,
            headers=request.headers,
            body=request.body,
            arrived_ns=time.monotonic_ns(),
        )
        self.requests.append(record)
        self._gates.tell()
        try:
            await self._play(connection, record, self._performance(record))
            record.outcome = "complete"
        except ClientLeft:
            record.outcome = "client_left"
            raise
        finally:
            if record.outcome == "open":  # the script's cut, or this server closing
                record.outcome = "cut"
            record.completed_ns = time.monotonic_ns()
            self._gates.tell()

    def _is_chat(self, method: str, path: str) -> bool:
        return (method, path) == ("POST", "/v1/chat/completions")

    def _performance(self, record: RecordedRequest) -> Performance:
        try:
            return self._decide(record)
        except Refused as refused:
            return Performance(refused.status, [whole(refused.status, refused.body)])
        except Exception as error:  # noqa: BLE001 - whatever a test's script raises is told to both sides
            self.problems.append(f"request {record.number}: {error!r}")
            body = msgspec.json.encode(error_body(f"The script failed: {error!r}", kind="script_error"))
            return Performance(400, [whole(400, body)])

    def _decide(self, record: RecordedRequest) -> Performance:
        if self._api_key is not None and record.headers.get("authorization") != f"Bearer {self._api_key}":
            raise Refused("Incorrect API key provided.", code="invalid_api_key", status=401)
        if record.number:
            body = check(record.body, models=self._models, tolerated=self._tolerated)
            chat = ChatRequest(number=record.number, body=body, raw=record.body, headers=record.headers)
            return perform(program_of(self.script)(chat), chat)
        if (record.method, record.path) == ("GET", "/v1/models"):
            listed = [{"id": id, "object": "model", "created": 0, "owned_by": "script"} for id in self._models]
            return Performance(200, [whole(200, msgspec.json.encode({"object": "list", "data": listed}))])
        raise Refused(f"Invalid URL ({record.method} {record.path}).", status=404)

    async def _play(self, connection: Connection, record: RecordedRequest, performance: Performance) -> None:
        for act in performance.acts:
            match act:
                case bytes():
                    record.status = performance.status
                    await connection.send(act)
                    record.first_byte_ns = record.first_byte_ns or time.monotonic_ns()
                case Hold(gate):
                    await connection.outlast(self._gates.pass_, gate)
                case Pause(seconds):
                    await connection.outlast(anyio.sleep, seconds)
                case Cut(partial, reset):
                    if partial:
                        await connection.send(b"%x\r\n%b" % (len(partial) + 1024, partial))
                    if reset:
                        connection.reset_on_close()
                    raise _CutHere

    # -- what a test in another process asks (`process.py`) --------------------------------------------

    async def _control(self, connection: Connection, path: str, query: str) -> None:
        options = {name: values[-1] for name, values in parse_qs(query).items()}
        waits: dict[str, Callable[[str], Awaitable[object]]] = {
            "reached": self.reached,
            "received": lambda chats: self.received(int(chats)),
            "quiet": lambda _: self.quiet(),
        }
        verb, _, subject = path.partition("/")
        if verb == "release":
            self.release(unquote(subject))
        in_time = True
        if verb in waits:
            with anyio.move_on_after(float(options["within_s"])) as scope:
                await connection.outlast(waits[verb], unquote(subject))
            in_time = not scope.cancelled_caught
        answer = {"in_time": in_time, "requests": self.requests, "problems": self.problems}
        await connection.send(whole(200, msgspec.json.encode(answer)))
