"""The CLI's stdout, read to its end: control frames apart from content, and control requests of our own.

Rule: the reader always reads. An answer to a control request never waits behind content, and content never waits for
anybody: who gets the frames must not wait, and merges what piles up.
"""

import json
import logging
import math
import re
from collections.abc import Callable
from typing import Any, Final

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from enginehouse_engines.claude.depth import shallow
from enginehouse_engines.claude.process import Cli
from enginehouse_protocol.errors import EngineError, EngineExited
from enginehouse_protocol.permissions import JsonObject

MAX_LINE_BYTES: Final = 64 << 20
_CHUNK: Final = 1 << 18
_OURS: Final = "enginehouse-"
_TYPE: Final = re.compile(rb'\{"type":"([a-z_]+)"')


class _Head(msgspec.Struct):
    """Enough of a frame to know whose it is."""

    type: str = ""


class _Response(msgspec.Struct):
    subtype: str = ""
    request_id: str = ""
    response: Any = None
    error: str = ""


class _ControlResponse(msgspec.Struct):
    response: _Response


_head = msgspec.json.Decoder(_Head)
_control_response = msgspec.json.Decoder(_ControlResponse)
_object = msgspec.json.Decoder(JsonObject)
_encoder = msgspec.json.Encoder()


class LineTooLong(Exception):
    """The stream cannot be followed any further: the client behind it is as good as dead."""


class Stream:
    """Made for one process. `read` is the reader; everything else may be called from any task."""

    def __init__(self, cli: Cli, on_frame: Callable[[bytes], None], log: logging.Logger) -> None:
        """`on_frame` gets each line that is no control frame; it must not wait."""
        self._cli = cli
        self._on_frame = on_frame
        self._log = log
        self._to_sdk, self._for_sdk = anyio.create_memory_object_stream[JsonObject](math.inf)
        self._writing = anyio.Lock()
        self._waiting: dict[str, tuple[anyio.Event, list[_Response]]] = {}
        self._count = 0
        self.why_ended: EngineError | None = None
        """Set once nothing more will come."""

    @property
    def control(self) -> MemoryObjectReceiveStream[JsonObject]:
        """Control frames that are not answers to us. It ends with the process."""
        return self._for_sdk

    async def read(self) -> str:
        """Read until the stream ends, and say why it did. Only control frames wait, and only in memory."""
        why = ""
        try:
            await self._read_lines()
        except LineTooLong as error:
            why = str(error)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        why = why or await self._cli.last_words()
        self.why_ended = EngineExited(why)
        for answered, _ in self._waiting.values():
            answered.set()
        self._to_sdk.close()
        return why

    def close(self) -> None:
        """Nobody reads control frames any more."""
        self._to_sdk.close()
        self._for_sdk.close()

    async def tell(self, subtype: str) -> None:
        """A control request whose answer does not matter. Returns once it is written."""
        self._count += 1
        await self.send(
            {"type": "control_request", "request_id": f"{_OURS}{self._count}", "request": {"subtype": subtype}}
        )

    async def request(self, subtype: str, *, deadline_s: float, **fields: object) -> JsonObject:
        """A control request of our own, and its answer.

        Raises:
            EngineError: it was refused, or not answered in time; EngineExited when the process ended first.
        """
        self._count += 1
        request_id = f"{_OURS}{self._count}"
        answered, answers = self._waiting[request_id] = (anyio.Event(), [])
        try:
            await self.send(
                {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **fields}}
            )
            with anyio.move_on_after(deadline_s):
                await answered.wait()
        finally:
            del self._waiting[request_id]
        if not answers:
            raise self.why_ended or EngineError(f"claude did not answer {subtype} within {deadline_s:g} s")
        if answers[0].subtype == "error":
            raise EngineError(f"claude refused {subtype}: {answers[0].error}", code="engine.refused")
        return answers[0].response if isinstance(answers[0].response, dict) else {}

    async def send(self, frame: JsonObject) -> None:
        """Raises `EngineExited` when nobody is there to read it."""
        await self.send_line(_encoder.encode(frame) + b"\n")

    async def send_line(self, line: bytes) -> None:
        if self.why_ended is not None:
            raise self.why_ended
        try:
            async with self._writing:
                await self._cli.write(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise EngineExited("claude does not listen any more") from error

    async def _read_lines(self) -> None:
        pending: list[bytes] = []
        size = 0
        while True:
            try:
                chunk = await self._cli.stdout.receive(_CHUNK)
            except anyio.EndOfStream:
                return
            first, *others = chunk.split(b"\n")
            pending.append(first)
            size += len(first)
            if size > MAX_LINE_BYTES:
                raise LineTooLong(f"claude sent a line of more than {MAX_LINE_BYTES >> 20} MiB")
            for following in others:
                self._line(b"".join(pending) if len(pending) > 1 else pending[0])
                pending, size = [following], len(following)

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            if line.strip():
                self._log.debug("claude wrote what is no frame: %s", line[:200])
            return
        line = shallow(line)
        try:
            kind = _head.decode(line).type
        except (msgspec.DecodeError, UnicodeDecodeError):
            named = _TYPE.match(line)
            kind = named[1].decode() if named is not None else ""
        if not kind.startswith("control_"):
            self._on_frame(line)
        elif kind != "control_response" or not self._is_ours(line):
            try:
                self._to_sdk.send_nowait(_decoded(line))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._log.debug("a control frame came after the SDK had left")
            except ValueError:
                self._log.exception("claude sent a control frame that cannot be read")

    def _is_ours(self, line: bytes) -> bool:
        response = _control_response.decode(line).response
        if not response.request_id.startswith(_OURS):
            return False
        if waiting := self._waiting.get(response.request_id):
            waiting[1].append(response)
            waiting[0].set()
        return True


def _decoded(line: bytes) -> JsonObject:
    """A lone surrogate in a tool's input is no reason to lose the question about it."""
    try:
        return _object.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded: JsonObject = json.loads(line)
        return decoded
