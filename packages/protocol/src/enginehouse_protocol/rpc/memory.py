"""A connection inside one process, for tests and for a hub in process.

Rule: it behaves as a socket does: bytes without borders, a bounded buffer, an end that the other side notices.
"""

import anyio
from anyio.abc import ByteStream, ObjectReceiveStream, ObjectSendStream

CHUNK_BYTES = 64 * 1024
BUFFERED_CHUNKS = 4


class MemoryStream(ByteStream):
    def __init__(self, outgoing: ObjectSendStream[bytes], incoming: ObjectReceiveStream[bytes]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._rest = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        chunk = self._rest or await self._incoming.receive()
        self._rest = chunk[max_bytes:]
        return chunk[:max_bytes]

    async def send(self, item: bytes) -> None:
        for start in range(0, len(item), CHUNK_BYTES):
            await self._outgoing.send(item[start : start + CHUNK_BYTES])

    async def send_eof(self) -> None:
        await self._outgoing.aclose()

    async def aclose(self) -> None:
        await self._outgoing.aclose()
        await self._incoming.aclose()


def memory_pair() -> tuple[ByteStream, ByteStream]:
    """Two ends of one connection. Each end is closed by whoever uses it."""
    to_second, from_first = anyio.create_memory_object_stream[bytes](BUFFERED_CHUNKS)
    to_first, from_second = anyio.create_memory_object_stream[bytes](BUFFERED_CHUNKS)
    return MemoryStream(to_second, from_second), MemoryStream(to_first, from_first)
