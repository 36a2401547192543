"""What arrives on one connection. The only place that reads from its stream."""

import anyio
from anyio.abc import ByteStream, SocketAttribute, UNIXSocketStream

from enginehouse_protocol.rpc.framing import LineSplitter, Oversized

CHUNK_BYTES = 64 * 1024


class Inbox:
    def __init__(self, stream: ByteStream, limit_bytes: int) -> None:
        self._stream = stream
        self._splitter = LineSplitter(limit_bytes)
        # On a local socket, waiting first and reading then takes half of what trying, failing and waiting takes. While
        # chunks come in full there is nothing to wait for.
        self._socket = stream.extra(SocketAttribute.raw_socket) if isinstance(stream, UNIXSocketStream) else None
        self._more = False

    async def lines(self) -> list[bytes | Oversized]:
        """The next lines, perhaps none.

        Raises:
            anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError
        """
        chunk = await self._chunk()
        self._more = len(chunk) == CHUNK_BYTES
        return self._splitter.feed(chunk)

    async def _chunk(self) -> bytes:
        if self._socket is None or self._more:
            return await self._stream.receive(CHUNK_BYTES)
        await anyio.wait_readable(self._socket)
        try:
            chunk = self._socket.recv(CHUNK_BYTES)
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not chunk:
            raise anyio.EndOfStream
        return chunk

    @property
    def inside_a_line(self) -> bool:
        return self._splitter.inside_a_line

    def closing(self) -> None:
        """The stream is about to be closed: stop waiting for it."""
        if self._socket is not None and self._socket.fileno() != -1:
            anyio.notify_closing(self._socket)
