"""The SDK's side of the pipe: it gets control frames and nothing else.

Rule: this module imports the SDK, so it is imported when a session opens and not before. The SDK's own message stream
stays empty: it drops frames and fields it does not know, and lets answers wait behind content.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import Transport

from enginehouse_engines.claude.stream import Stream
from enginehouse_protocol.errors import EngineExited


class ControlTransport(Transport):
    """Over a process that runs already and that somebody else ends."""

    def __init__(self, stream: Stream, log: logging.Logger) -> None:
        self._stream = stream
        self._log = log
        self.connected = False
        """Set by whoever connects the SDK: from then on it waits for no answer, and an end is not an error to it."""

    async def connect(self) -> None:
        """Nothing: the process runs already."""

    async def write(self, data: str) -> None:
        """What the SDK answers after the end is nobody's loss, and its tasks have nobody to tell."""
        try:
            await self._stream.send_line(data.encode())  # the SDK writes ASCII
        except EngineExited:
            self._log.debug("an answer of the SDK came after the end of its process")

    def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        return self._control_frames()

    async def close(self) -> None:
        """Nothing: whoever started the process ends it."""

    def is_ready(self) -> bool:
        return self._stream.why_ended is None

    async def end_input(self) -> None:
        """Nothing: see `close`."""

    async def _control_frames(self) -> AsyncIterator[dict[str, Any]]:
        async for frame in self._stream.control:
            yield frame
        if self.connected:
            return
        # Without an error the SDK would let who waits for its first answer wait on.
        raise self._stream.why_ended or EngineExited("claude's output ended")
