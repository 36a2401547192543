"""Who is on the other side of one connection, and the views they have.

Rule: a host is who it said it was in `initialize`, and nobody before that. What it writes into a request about who it
is does not count.
"""

import itertools
import os

import anyio
import msgspec
from anyio.abc import TaskGroup

from enginehouse_hosts.gateway.pump import Crowd, Pump
from enginehouse_protocol.errors import ConnectionLost, UsageError
from enginehouse_protocol.hub import Attach, HubApi, Nothing
from enginehouse_protocol.methods import (
    METHODS,
    PROTOCOL_VERSION,
    Attached,
    HostInfo,
    HubInfo,
    Initialize,
    Initialized,
    ViewId,
    ViewRef,
    dispatch,
)
from enginehouse_protocol.rpc import Peer, Reply

VIEWS_AT_ONCE = 1024
"""Of one connection. Each is a task here and a cursor in the hub."""
HOST_ID_CHARACTERS = 200
"""It is written into transcripts."""
_SIGNED = frozenset(
    name for name, method in METHODS.items() if method.owner == "hub" and "host" in method.params.__struct_fields__
)
"""Requests that carry the name of the host."""


class HostConnection:
    """The `Connection` of the method table. `handler` may be used once `open` was called."""

    def __init__(self, hub: HubApi, version: str, crowd: Crowd) -> None:
        self._hub = hub
        self._version = version
        self._crowd = crowd
        self._turn = anyio.Lock(fast_acquire=True)
        self._said: Initialize | None = None
        self._closed: str | None = None
        self._pumps: dict[ViewId, Pump] = {}
        self._numbers = itertools.count(1)
        self.handler = dispatch(hub, self, self._admit)

    def open(self, peer: Peer, tasks: TaskGroup) -> None:
        """`tasks` end before the peer does."""
        self._peer = peer
        self._tasks = tasks

    def close(self, reason: str) -> None:
        """Refuse every further request."""
        self._closed = reason

    def _admit(self, name: str, params: msgspec.Struct) -> msgspec.Struct:
        if self._closed is not None:
            raise ConnectionLost(self._closed)
        if isinstance(params, Initialize):
            return params
        if self._said is None:
            raise UsageError(f"{name} came before `initialize`, which is the first request of a connection")
        if name in _SIGNED:
            return msgspec.structs.replace(params, host=self._said.host.id)
        return params

    async def initialize(self, params: Initialize) -> Initialized:
        if self._said is not None:
            raise UsageError(f"this connection is initialized already, as host {self._said.host.id!r}")
        if params.protocol_version != PROTOCOL_VERSION:
            raise UsageError(
                f"no common protocol version: the host speaks {params.protocol_version}, this hub (version "
                f"{self._version}) speaks {PROTOCOL_VERSION}; use a host and a hub of the same version"
            )
        _check(params.host)
        self._said = params
        return Initialized(protocol_version=PROTOCOL_VERSION, hub=HubInfo(version=self._version, pid=os.getpid()))

    async def sessions_attach(self, params: Attach) -> Reply:
        assert self._said is not None  # admitted
        if len(self._pumps) >= VIEWS_AT_ONCE:
            raise UsageError(f"this connection has {VIEWS_AT_ONCE} views already; detach some")
        if params.can_answer and not self._said.can_answer:
            params = msgspec.structs.replace(params, can_answer=False)
        view_id = ViewId(f"v{next(self._numbers)}")
        pump = Pump(self._peer, view_id, self._crowd, self._turn, over=lambda: self._pumps.pop(view_id, None))
        self._pumps[view_id] = pump
        try:
            await self._tasks.start(pump.run, self._hub, params)
        except BaseException:
            self._pumps.pop(view_id, None)  # cancelled before it ran
            raise
        return Reply(Attached(view_id=view_id), then=pump.begin)

    async def sessions_detach(self, params: ViewRef) -> Nothing:
        """A view that ended by itself meanwhile is no mistake: that may cross the request."""
        if params.view_id in self._pumps:
            await self._pumps[params.view_id].stop()
        return Nothing()


def _check(host: HostInfo) -> None:
    if not 0 < len(host.id) <= HOST_ID_CHARACTERS:
        raise UsageError(f"a host's id has 1 to {HOST_ID_CHARACTERS} characters, not {len(host.id)}")
    if not host.id.isprintable():
        raise UsageError("a host's id is made of characters that can be shown")
