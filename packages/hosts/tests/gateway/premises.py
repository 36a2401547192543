"""Where a hub's process runs, and what can become of it: killed, told to end, started again at the next knock.

Rule: killing is what a client sees of it: both directions end in the middle of whatever was going on, without a word.
"""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, NamedTuple, TypeVar

import anyio
import msgspec
from anyio.abc import ByteStream, TaskGroup, UNIXSocketStream
from gateway.ledger import LedgerHub

from enginehouse_hosts.gateway import Gateway
from enginehouse_hosts.gateway.pump import GATHER_S
from enginehouse_protocol.hub import Attach, HubApi, Nothing
from enginehouse_protocol.ids import SessionId
from enginehouse_protocol.methods import (
    PROTOCOL_VERSION,
    Attached,
    HostInfo,
    Initialize,
    Initialized,
    ViewEnded,
    ViewEvents,
    ViewId,
    ViewRef,
    call,
)
from enginehouse_protocol.rpc import Peer, memory_pair

MakePair = Callable[[], Awaitable[tuple[ByteStream, ByteStream]]]
HOST = HostInfo(id="h_1", name="a test", version="0.1")
PATIENCE_S = 10
HubT = TypeVar("HubT")


async def in_memory() -> tuple[ByteStream, ByteStream]:
    return memory_pair()


async def over_a_socket() -> tuple[ByteStream, ByteStream]:
    first, second = socket.socketpair()
    return await UNIXSocketStream.from_socket(first), await UNIXSocketStream.from_socket(second)


class _Door(NamedTuple):
    ours: ByteStream
    theirs: ByteStream
    scope: anyio.CancelScope


class Premises(Generic[HubT]):
    def __init__(
        self, hub: HubT, api: HubApi, tasks: TaskGroup, make_pair: MakePair = in_memory, *, gather_s: float = GATHER_S
    ) -> None:
        """`api` is `hub`, as its contract has it."""
        self.hub = hub
        self.gateway = Gateway(api, version="0.1", gather_s=gather_s)
        self.dials = 0
        self.closed: Exception | None = None
        """What a knock at the door is answered with."""
        self.on_dial: Callable[[], Awaitable[None]] | None = None
        """Happens as soon as somebody is at the door."""
        self._tasks = tasks
        self._make_pair = make_pair
        self._doors: list[_Door] = []
        self._changed = anyio.Event()

    async def dial(self) -> ByteStream:
        self.dials += 1
        self._tell()
        if self.closed is not None:
            raise self.closed
        ours, theirs = await self._make_pair()
        door = _Door(ours, theirs, anyio.CancelScope())
        self._doors.append(door)
        self._tasks.start_soon(self._serve, door)
        try:
            if self.on_dial is not None:
                await self.on_dial()
        except BaseException:
            await anyio.aclose_forcefully(ours)
            raise
        return ours

    async def _serve(self, door: _Door) -> None:
        with door.scope:
            await self.gateway.serve(door.theirs)
        self._doors.remove(door)
        self._tell()

    async def kill(self) -> None:
        """Every connection ends; returns once the hub's side has noticed, which a killed process need not do."""
        for door in self._doors:
            for end in (door.ours, door.theirs):
                try:
                    await end.send_eof()
                except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                    pass
        gone = list(self._doors)
        while any(door in self._doors for door in gone):
            await self._changed.wait()

    def reopen(self, hub: HubT, api: HubApi) -> None:
        """Another hub answers from now on."""
        self.hub = hub
        self.gateway = Gateway(api, version="0.1")

    def end(self) -> None:
        """The hub is told to end."""
        for door in self._doors:
            door.scope.cancel()

    async def until_dials(self, count: int) -> None:
        while self.dials < count:
            await self._changed.wait()

    async def until_connections(self, count: int) -> None:
        while len(self._doors) != count:
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


@asynccontextmanager
async def premises(
    make_pair: MakePair = in_memory, *, gather_s: float = GATHER_S
) -> AsyncGenerator[Premises[LedgerHub]]:
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            hub = LedgerHub()
            place = Premises(hub, hub.api, tasks, make_pair, gather_s=gather_s)
            yield place
            tasks.cancel_scope.cancel()


class Guest:
    """A host that speaks the protocol by hand: what it heard, in order, answers among it."""

    def __init__(self, stream: ByteStream) -> None:
        self.peer = Peer(stream, _unasked, notified=self.hear)
        self.heard: list[tuple[str, msgspec.Raw]] = []
        self._changed = anyio.Event()

    def hear(self, name: str, params: msgspec.Raw) -> None:
        self.heard.append((name, params))
        self._changed.set()
        self._changed = anyio.Event()

    def lines(self, view_id: ViewId) -> list[bytes]:
        batches = [msgspec.json.decode(raw, type=ViewEvents) for name, raw in self.heard if name == "view.events"]
        return [bytes(line) for batch in batches if batch.view_id == view_id for line in batch.lines]

    def ended(self) -> list[ViewEnded]:
        return [msgspec.json.decode(raw, type=ViewEnded) for name, raw in self.heard if name == "view.ended"]

    def names(self) -> list[str]:
        return [name for name, _ in self.heard]

    async def until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            await self._changed.wait()

    async def initialize(self, host: HostInfo = HOST, *, can_answer: bool = False) -> Initialized:
        hello = Initialize(protocol_version=PROTOCOL_VERSION, host=host, can_answer=can_answer)
        return await call(self.peer, "initialize", hello, Initialized, deadline_s=5)

    async def attach(self, session_id: SessionId, after: int = 0, *, can_answer: bool = False) -> ViewId:
        params = Attach(session_id=session_id, after=after, can_answer=can_answer)
        return (await call(self.peer, "sessions.attach", params, Attached, deadline_s=5)).view_id

    async def detach(self, view_id: ViewId) -> None:
        await call(self.peer, "sessions.detach", ViewRef(view_id=view_id), Nothing, deadline_s=5)


async def _unasked(method: str, params: msgspec.Raw) -> msgspec.Raw:
    raise AssertionError(method)


@asynccontextmanager
async def guest(place: Premises[LedgerHub], *, known: bool = True, can_answer: bool = False) -> AsyncGenerator[Guest]:
    """`known`: has said `initialize`."""
    one = Guest(await place.dial())
    async with one.peer:
        if known:
            await one.initialize(can_answer=can_answer)
        yield one
