"""One connection from its first to its last byte.

Rule: whatever happens in a connection ends there. A connection that is cancelled still says that the hub ends, so that
who is attached does not take it for a crash and start another one.
"""

import logging

import anyio
from anyio.abc import ByteStream

from enginehouse_hosts.gateway.connection import HostConnection
from enginehouse_hosts.gateway.pump import GATHER_S, Crowd
from enginehouse_protocol.errors import ConnectionLost
from enginehouse_protocol.hub import HubApi
from enginehouse_protocol.methods import HubEnding
from enginehouse_protocol.rpc import Peer

ENDING_S = 1.0
"""For a host that reads slowly to take the news that the hub ends."""
ENDING = HubEnding(reason="the hub was told to end")

_log = logging.getLogger(__name__)


class Gateway:
    """One for each hub process; `serve` is called once for each connection."""

    def __init__(self, hub: HubApi, *, version: str, gather_s: float = GATHER_S) -> None:
        """`version` is what hosts are told; `gather_s` is for tests."""
        self._hub = hub
        self._version = version
        self._crowd = Crowd(gather_s)

    async def serve(self, stream: ByteStream) -> None:
        """Until the connection ends. Cancelled: the host is told that the hub ends. The stream is closed either way.

        Raises nothing but cancellation.
        """
        told_to_end, over = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._converse, stream, told_to_end, over)
            try:
                await over.wait()
            finally:
                told_to_end.set()

    async def _converse(self, stream: ByteStream, told_to_end: anyio.Event, over: anyio.Event) -> None:
        # Shielded: the writer must outlive a cancelled `serve` by the one notification. All that is waited for after
        # `told_to_end` is bounded.
        with anyio.CancelScope(shield=True):
            try:
                await self._connected(stream, told_to_end)
            except Exception:  # noqa: BLE001 – a connection's end
                _log.exception("a connection failed and was closed")
            finally:
                over.set()

    async def _connected(self, stream: ByteStream, told_to_end: anyio.Event) -> None:
        connection = HostConnection(self._hub, self._version, self._crowd)
        async with Peer(stream, connection.handler) as peer:
            async with anyio.create_task_group() as views:

                async def end_with_the_peer() -> None:
                    await peer.ended()
                    views.cancel_scope.cancel()

                connection.open(peer, views)
                views.start_soon(end_with_the_peer)
                await told_to_end.wait()
                connection.close(ENDING.reason)
                views.cancel_scope.cancel()
            if told_to_end.is_set():
                with anyio.move_on_after(ENDING_S):
                    await _say_the_end(peer)


async def _say_the_end(peer: Peer) -> None:
    try:
        await peer.notify("hub.ending", ENDING)
    except ConnectionLost:
        pass  # it was faster
