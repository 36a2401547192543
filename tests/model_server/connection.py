"""One HTTP/1.1 connection: h11 reads the requests, the answers are written as bytes.

Rule: nothing between the script and the socket. Every byte of an answer is decided by the caller: where an
HTTP chunk ends, how much goes into one write, whether a chunk is left unfinished, whether the connection
closes in the middle. That is why there is no ASGI server here: starlette and uvicorn frame the body
themselves and always end it properly.
"""

import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import anyio
import h11
from anyio.abc import SocketAttribute, SocketStream

_T = TypeVar("_T")


class ClientLeft(Exception):
    """The client closed the connection before its answer was complete."""


class BadHttp(Exception):
    """What came is not HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool


class Connection:
    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._waiting = b""

    async def next_request(self) -> HttpRequest | None:
        """The next complete request; None when the client closed between two.

        Raises:
            BadHttp: what came is not a request, or it broke off.
        """
        reader = h11.Connection(h11.SERVER)  # answers do not go through it, so each request has its own
        if self._waiting:
            reader.receive_data(self._waiting)
        head: h11.Request | None = None
        body: list[bytes] = []
        try:
            while True:
                event = reader.next_event()
                if event is h11.NEED_DATA:
                    reader.receive_data(await self._receive())
                elif isinstance(event, h11.Request):
                    head = event
                elif isinstance(event, h11.Data):
                    body.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:
                    return None
        except h11.RemoteProtocolError as error:
            raise BadHttp(str(error)) from error
        assert head is not None
        self._waiting = bytes(reader.trailing_data[0])
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head.headers}
        return HttpRequest(
            method=head.method.decode("ascii"),
            target=head.target.decode("ascii"),
            headers=headers,
            body=b"".join(body),
            keep_alive=headers.get("connection", "").lower() != "close" and head.http_version == b"1.1",
        )

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ClientLeft from error

    async def outlast(self, wait: Callable[[_T], Awaitable[object]], argument: _T) -> None:
        """Await `wait(argument)`, but raise `ClientLeft` as soon as the client closes its side."""
        left = anyio.Event()

        async def watch(scope: anyio.CancelScope) -> None:
            while data := await self._receive():
                self._waiting += data  # a request sent ahead; it is read when its turn comes
            left.set()
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope)
            await wait(argument)
            tasks.cancel_scope.cancel()
        if left.is_set():
            raise ClientLeft

    def reset_on_close(self) -> None:
        """Make closing send RST instead of FIN, as when a proxy in between dies."""
        raw = cast(socket.socket, self._stream.extra(SocketAttribute.raw_socket))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _receive(self) -> bytes:
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return b""
