"""Bytes of a `text/event-stream` body in, payloads out. Does no I/O and knows nothing of models.

Rule: a payload is handed out the moment its event ends, however the bytes were cut; what follows the standard is
followed, and what real servers do beside it is forgiven.
"""

from collections.abc import Iterator

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_OTHER_BYTES = 16 * 1024 * 1024
_MAX_LINE_BYTES = 64 * 1024 * 1024


class EventLines:
    """Splits a body into events. Feed it the bytes as they come; it keeps what is not complete yet.

    Lines end with LF, CRLF or CR. Comments and fields other than `data` carry nothing for us and are dropped.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._other: list[bytes] = []
        self._other_bytes = 0
        self._started = False

    @property
    def other_text(self) -> bytes:
        """Lines that belong to no event: the body of a server that answered with plain JSON or a page."""
        return b"\n".join(self._other)

    @property
    def hopeless(self) -> bool:
        """No server of models sends that much without one event: reading on would only fill the memory."""
        return self._other_bytes >= _MAX_OTHER_BYTES or len(self._rest) > _MAX_LINE_BYTES

    def feed(self, data: bytes) -> Iterator[tuple[bytes, ...]]:
        """The `data` lines of every event that ended within these bytes."""
        waiting_cr = self._rest.endswith(b"\r")
        self._rest += data
        if not waiting_cr and b"\n" not in data and b"\r" not in data:
            return  # a long line in many pieces is not searched again for each of them
        text = bytes(self._rest)
        if not self._started:
            self._started = True
            text = text.removeprefix(_BYTE_ORDER_MARK)
        lines = text.splitlines(keepends=True)
        # A CR at the very end may be the first half of a CRLF: its line waits for the next bytes.
        self._rest = bytearray(lines.pop() if lines and not lines[-1].endswith(b"\n") else b"")
        for line in lines:
            if event := self._take(line.rstrip(b"\r\n")):
                yield event

    def end(self) -> Iterator[tuple[bytes, ...]]:
        """The last event, which some servers leave without its empty line."""
        rest, self._rest = bytes(self._rest), bytearray()
        for line in rest.removeprefix(b"" if self._started else _BYTE_ORDER_MARK).splitlines():
            if event := self._take(line):
                yield event
        if event := self._take(b""):
            yield event

    def _take(self, line: bytes) -> tuple[bytes, ...] | None:
        if line[:6] == b"data: ":
            self._data.append(line[6:])
        elif line[:5] == b"data:":
            self._data.append(line[5:])
        elif not line:
            if self._data:
                event = tuple(self._data)
                self._data.clear()
                return event
        elif line == b"data":
            self._data.append(b"")
        elif not line.startswith((b":", b"event:", b"id:", b"retry:")) and self._other_bytes < _MAX_OTHER_BYTES:
            self._other.append(line)
            self._other_bytes += len(line)
        return None
