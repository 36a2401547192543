"""`--json`: one event a line, durable and transient, as the hub encoded it.

Rule: the bytes are not touched, so the durable lines are the transcript's, and nothing else goes to stdout.
"""

from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_protocol.events import TurnFailed
from enginehouse_protocol.hub import Delivery


class JsonLines:
    """Satisfies `Presenter`."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def show(self, batch: tuple[Delivery, ...]) -> None:
        await self._streams.write_bytes(b"".join(delivery.line + b"\n" for delivery in batch))
        for delivery in batch:
            if isinstance(delivery.event.body, TurnFailed):
                await self._streams.say(f"enginehouse: the turn failed: {one_line(delivery.event.body.message)}")

    async def end(self) -> None:
        """Every line was written when it came."""
