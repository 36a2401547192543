"""What waits to be written to one connection. The only place that writes to its stream.

Rule: bounded in bytes. Whoever has more to say waits, and a stream that takes nothing for too long is given up.
"""

from collections import deque
from collections.abc import Iterator

import anyio
from anyio.abc import ByteStream, SocketAttribute, UNIXSocketStream

from enginehouse_protocol.errors import ConnectionLost

BOUND_BYTES = 1024 * 1024
MERGED_BYTES = 256 * 1024
"""At most this much goes into one send; the deadline is for each send, so a slow reader that reads is no lost one."""


class Outbox:
    def __init__(self, stream: ByteStream, stall_deadline_s: float) -> None:
        self._stream = stream
        self._stall_deadline_s = stall_deadline_s
        # A local socket that has room takes a line at once: waking the writer first costs half a round trip. Not for
        # other streams that have a socket somewhere below: what they do on the way must not be skipped.
        self._socket = stream.extra(SocketAttribute.raw_socket) if isinstance(stream, UNIXSocketStream) else None
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        """Of the lines that wait and of what is being sent."""
        self._closed: str | None = None
        self._more = anyio.Event()
        self._room: anyio.Event | None = None
        self._empty: anyio.Event | None = None

    def post(self, line: bytes) -> None:
        """Queue without waiting. For what must not wait and whose number is bounded elsewhere."""
        if self._closed is not None:
            return
        rest = line + b"\n"
        if not self._bytes:
            rest = rest[self._sent_at_once(rest) :]
        if rest:
            self._lines.append(rest)
            self._bytes += len(rest)
            self._more.set()

    async def put(self, line: bytes) -> None:
        """Queue once there is room.

        Raises:
            ConnectionLost: there will be none.
        """
        while self._closed is None and self._bytes >= BOUND_BYTES:
            self._room = self._room or anyio.Event()
            await self._room.wait()
        if self._closed is not None:
            raise ConnectionLost(self._closed)
        self.post(line)

    def _sent_at_once(self, data: bytes) -> int:
        """How many bytes the socket took without waiting. Errors are the writer's to find."""
        if self._socket is None or len(data) > MERGED_BYTES:
            return 0
        try:
            return self._socket.send(data)
        except OSError:
            return 0

    async def write(self) -> str:
        """Write for as long as the stream takes it. Returns why it ended."""
        while True:
            while not self._lines:
                self._empty = _set(self._empty)
                if self._closed is not None:
                    return self._closed
                self._more = anyio.Event()
                await self._more.wait()
            for piece in self._merged():
                try:
                    with anyio.fail_after(self._stall_deadline_s):
                        await self._stream.send(piece)
                except TimeoutError:
                    return f"the other side has read nothing for {self._stall_deadline_s:g} s"
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return "the other side closed it"
                self._bytes -= len(piece)
                if self._bytes < BOUND_BYTES:
                    self._room = _set(self._room)

    def _merged(self) -> Iterator[bytes]:
        """Pieces of what waits now, whole lines together while they are short."""
        taken: list[bytes] = []
        size = 0
        while self._lines and size < MERGED_BYTES:
            taken.append(self._lines.popleft())
            size += len(taken[-1])
        whole = taken[0] if len(taken) == 1 else b"".join(taken)
        taken.clear()
        if size <= MERGED_BYTES:
            yield whole
        else:
            for start in range(0, size, MERGED_BYTES):
                yield whole[start : start + MERGED_BYTES]

    async def written(self) -> None:
        """Return once everything queued so far is with the stream, or never will be."""
        while self._bytes:
            self._empty = self._empty or anyio.Event()
            await self._empty.wait()

    def close(self, reason: str, *, drop: bool) -> None:
        """Nothing more is taken; whoever waits hears `reason`. What is queued is dropped, or still written."""
        self._closed = reason
        if drop:
            self._lines.clear()
            self._bytes = 0
            self._empty = _set(self._empty)
        self._more.set()
        self._room = _set(self._room)


def _set(event: anyio.Event | None) -> None:
    """Wake whoever waits; the next one who does brings a new event."""
    if event is not None:
        event.set()
