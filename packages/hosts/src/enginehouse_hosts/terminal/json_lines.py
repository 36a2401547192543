"""`--json`: one event a line, durable and transient, as the hub encoded it.

Rule: the bytes are not touched, so the durable lines are the transcript's, and nothing else goes to stdout.
"""

from enginehouse_protocol.hub import Delivery

from enginehouse_hosts.terminal.streams import Streams


class JsonLines:
    """Satisfies `Presenter`."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def show(self, batch: tuple[Delivery, ...]) -> None:
        await self._streams.write_bytes(b"".join(delivery.line + b"\n" for delivery in batch))

    async def end(self) -> None:
        """Every line was written when it came."""
