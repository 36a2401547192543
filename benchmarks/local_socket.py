"""One question over a local socket, and events in batches, beside bare JSON lines on the same kind of socket.

Both sides run in this process, so the time is the whole cost of both.
"""

import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
from anyio.abc import ByteStream

from benchmarks.row import Row
from enginehouse_protocol.codec import decode_event, encode_event
from enginehouse_protocol.events import MessageDelta, Passing
from enginehouse_protocol.ids import new_message_id, new_session_id, new_turn_id
from enginehouse_protocol.rpc import Peer

ROUND_TRIPS = 1_000
ROUNDS = 5
EVENTS_PER_S = 60_000
BATCHES = 200
BATCH = 256


class Question(msgspec.Struct):
    id: int
    method: str
    params: dict[str, str]


class Reply(msgspec.Struct):
    id: int
    result: dict[str, str]


class Batch(msgspec.Struct):
    view_id: str
    lines: tuple[msgspec.Raw, ...]


def measure() -> list[Row]:
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(ROUNDS):
        bare.append(anyio.run(_over_a_socket, _bare))
        ours.append(anyio.run(_over_a_socket, _peers))
    events = max(anyio.run(_over_a_socket, _events) for _ in range(ROUNDS))
    best, floor = min(ours), min(bare)
    return [
        Row("round trip, p50", f"{best * 1e6:.0f} µs", f"bare lines {floor * 1e6:.0f} µs", best / floor, "<= 1.5"),
        Row("events in batches", f"{events:,.0f}/s", f"{EVENTS_PER_S:,}/s", events / EVENTS_PER_S, ">= 1"),
    ]


async def _over_a_socket(work: Callable[[ByteStream, ByteStream], Awaitable[float]]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        async with await anyio.create_unix_listener(path) as listener:
            first = await anyio.connect_unix(path)
            second = await listener.accept()
            async with first, second:
                return await work(first, second)


async def _bare(asking: ByteStream, answering: ByteStream) -> float:
    """JSON lines without ids to match, tasks, limits or deadlines: what a round trip costs at least."""
    encode = msgspec.json.Encoder().encode

    async def answer() -> None:
        decode = msgspec.json.Decoder(Question).decode
        async for question in _lines(answering):
            asked = decode(question)
            await answering.send(encode(Reply(id=asked.id, result=asked.params)) + b"\n")

    times: list[float] = []
    decode = msgspec.json.Decoder(Reply).decode
    replies = _lines(asking)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        for number in range(ROUND_TRIPS):
            start = time.perf_counter()
            await asking.send(encode(Question(id=number, method="echo", params={"session_id": "s_1"})) + b"\n")
            assert decode(await anext(replies)).id == number
            times.append(time.perf_counter() - start)
        tasks.cancel_scope.cancel()
    await replies.aclose()
    return sorted(times)[ROUND_TRIPS // 2]


async def _lines(stream: ByteStream) -> AsyncGenerator[bytes]:
    held = b""
    while True:
        *lines, held = (held + await stream.receive()).split(b"\n")
        for line in lines:
            yield line


async def _echo(_: str, params: msgspec.Raw) -> msgspec.Raw:
    return params


async def _peers(asking: ByteStream, answering: ByteStream) -> float:
    times: list[float] = []
    async with Peer(answering, _echo), Peer(asking, _echo) as peer:
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            await peer.request("echo", b'{"session_id":"s_1"}', deadline_s=30)
            times.append(time.perf_counter() - start)
    return sorted(times)[ROUND_TRIPS // 2]


async def _events(asking: ByteStream, answering: ByteStream) -> float:
    """Events a second, sent as lines that are encoded already, read back as events."""
    decoder = msgspec.json.Decoder(Batch)
    heard = 0
    everything = anyio.Event()

    def hear(_: str, params: msgspec.Raw) -> None:
        nonlocal heard
        heard += len([decode_event(bytes(line)) for line in decoder.decode(params).lines])
        if heard == BATCHES * BATCH:
            everything.set()

    body = MessageDelta(message_id=new_message_id(), text=" and then")
    event = Passing(session_id=new_session_id(), at_ms=1_700_000_000_000, turn_id=new_turn_id(), body=body)
    batch = Batch(view_id="v_1", lines=(msgspec.Raw(encode_event(event)),) * BATCH)
    async with Peer(asking, _echo, notified=hear), Peer(answering, _echo) as peer:
        start = time.perf_counter()
        for _ in range(BATCHES):
            await peer.notify("view.events", batch)
        await everything.wait()
        return heard / (time.perf_counter() - start)
