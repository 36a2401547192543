"""The first line each way: hello, then welcome or a refusal with a stable code.

Rule: these lines are the one thing every version understands for ever. Fields are added, never renamed or removed;
unknown ones are ignored. What follows them is not this package's business.
"""

from typing import Literal, TypeVar

import msgspec
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteStream

from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.local_socket.edition import Edition, Span

LINE_MAX_BYTES = 4096

_Message = TypeVar("_Message")

Want = Literal["attach", "status", "stop", "stop_if_idle"]


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """What a client says first.

    `exact_version`: refuse me (`other_version`) rather than welcome me to a service of another version. Only
    `attach` needs a common protocol; the other wants work across all versions.
    """

    name: str
    token: str
    version: str
    protocol: Span
    want: Want = "attach"
    exact_version: bool = True

    def __repr__(self) -> str:
        return f"Hello({self.name!r}, {self.version!r}, {self.protocol}, want={self.want!r})"  # no token, ever


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="welcome"):
    """The service agrees. After `attach` the stream is the caller's; after anything else it ends here.

    `protocol` is the one to speak. `idle`: nobody is attached and nothing is busy; the asking connection does not
    count.
    """

    name: str
    version: str
    protocol: int
    pid: int
    since_ms: int
    idle: bool
    connections: int


RefusalCode = Literal[
    "other_user",
    "too_many_connections",
    "hello_timeout",
    "malformed_hello",
    "other_service",
    "wrong_token",
    "stopping",
    "protocol_too_old",
    "protocol_too_new",
    "other_version",
    "not_idle",
]
"""Stable. `protocol_too_old` and `protocol_too_new` are said of the client."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refused"):
    """The service says no and closes. All but `code` and `message` is told only to who had the right token."""

    code: str
    message: str
    version: str | None = None
    protocol: Span | None = None
    pid: int | None = None
    idle: bool = False

    @property
    def edition(self) -> Edition | None:
        if self.version is None or self.protocol is None:
            return None
        return Edition(version=self.version, protocol=self.protocol)


_encoder = msgspec.json.Encoder()
_hello = msgspec.json.Decoder(Hello)
_reply = msgspec.json.Decoder(Welcome | Refusal)


def line(message: Hello | Welcome | Refusal) -> bytes:
    return _encoder.encode(message) + b"\n"


async def send_line(stream: ByteStream, message: Hello | Welcome | Refusal) -> None:
    await stream.send(line(message))


async def receive_hello(stream: BufferedByteStream) -> Hello:
    """Read the first line and no more; what came with it stays in the stream.

    Raises:
        MalformedData: not a hello.
        anyio.DelimiterNotFound: no end of line within 4096 bytes.
        anyio.IncompleteRead, anyio.BrokenResourceError: the other side went away.
    """
    return _parse(_hello, await stream.receive_until(b"\n", LINE_MAX_BYTES))


async def receive_reply(stream: BufferedByteStream) -> Welcome | Refusal:
    """Raises: as `receive_hello`."""
    return _parse(_reply, await stream.receive_until(b"\n", LINE_MAX_BYTES))


def _parse(decoder: "msgspec.json.Decoder[_Message]", text: bytes) -> _Message:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedData(f"not a first line: {error}") from error  # names the field, never its value
