"""`--json`: one event a line, durable and transient, as the hub encoded it.

Rule: the bytes are not touched, so the durable lines are the transcript's, and nothing else goes to stdout.
"""

from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_hosts.terminal.printer import why_stopped
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_protocol.events import TurnCompleted, TurnFailed
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import MessageId


class JsonLines:
    """Satisfies `Presenter`."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def begin(self, headline: str, mine: MessageId | None = None) -> None:
        """The first line says it all."""

    async def show(self, batch: tuple[Delivery, ...]) -> None:
        await self._streams.write_bytes(b"".join(delivery.line + b"\n" for delivery in batch))
        for delivery in batch:
            match delivery.event.body:
                case TurnFailed(message=message):
                    await self._streams.say(f"enginehouse: the turn failed: {one_line(message)}")
                case TurnCompleted() as body if why := why_stopped(body):
                    await self._streams.say(f"enginehouse: {why}")
                case _:
                    pass

    async def end(self) -> None:
        """Every line was written when it came."""
