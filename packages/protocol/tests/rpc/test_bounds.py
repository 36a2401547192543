"""Nothing the other side sends or fails to read takes more than a bounded amount of memory."""

import tracemalloc
from typing import Any

import anyio
import msgspec
import pytest

from enginehouse_protocol.errors import ConnectionLost
from enginehouse_protocol.rpc import LINE_LIMIT_BYTES, Peer
from enginehouse_protocol.rpc.outbox import BOUND_BYTES
from enginehouse_protocol.rpc.peer import ASKED_AT_ONCE, PARKED_AT_ONCE

from .conftest import Ends, Plain, socket_ends
from .test_peer import Doors, echo, request, success

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024


async def test_ten_thousand_requests_at_once_start_in_order_and_are_all_answered(ends: Ends, plain: Plain) -> None:
    started: list[int] = []

    async def handler(method: str, params: msgspec.Raw) -> msgspec.Raw:
        started.append(msgspec.json.decode(params)["number"])
        return params

    async def send() -> None:
        for start in range(0, 10_000, 100):
            await plain.say(*(request(number, number=number) for number in range(start, start + 100)))

    with anyio.fail_after(20):
        async with Peer(ends[1], handler), anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            for number in range(10_000):
                assert await plain.heard() == success(number, {"number": number})
    assert started == list(range(10_000))


async def test_ten_thousand_callers_each_get_their_own_answer(ends: Ends) -> None:
    async def ask(number: int) -> None:
        assert bytes(await peer.request("echo", b"%d" % number, deadline_s=30)) == b"%d" % number

    with anyio.fail_after(40):
        async with Peer(ends[0], echo) as peer, Peer(ends[1], echo), anyio.create_task_group() as tasks:
            for number in range(10_000):
                tasks.start_soon(ask, number)


async def test_no_more_requests_are_handled_at_once_than_the_limit_says(ends: Ends, plain: Plain) -> None:
    doors = Doors()
    names = [str(number) for number in range(20)]
    with anyio.fail_after(5):
        async with Peer(ends[1], doors, in_flight_limit=3):
            await plain.say(*(request(name, name) for name in names))
            await doors.until(3)
            for count, name in enumerate(names, 1):
                doors.open(name)
                assert await plain.heard() == success(name, name)
                await doors.until(min(3 + count, 20))
    assert (doors.entered, doors.most) == (names, 3)


async def test_an_answer_is_read_while_every_place_is_taken_and_requests_wait(ends: Ends) -> None:
    """Each request of the first side makes the second ask back; neither side may wait for the other's reader."""

    async def ask_back(method: str, params: msgspec.Raw) -> msgspec.Raw:
        return await second.request("back", params, deadline_s=20)

    async def ask(number: int) -> None:
        assert bytes(await first.request("ask", b"%d" % number, deadline_s=20)) == b"%d" % number

    with anyio.fail_after(30):
        async with (
            Peer(ends[0], echo, in_flight_limit=2) as first,
            Peer(ends[1], ask_back, in_flight_limit=2) as second,
            anyio.create_task_group() as tasks,
        ):
            for number in range(2 * ASKED_AT_ONCE):
                tasks.start_soon(ask, number)


async def test_a_flood_is_not_read_beyond_what_may_wait(ends: Ends, plain: Plain) -> None:
    doors = Doors()
    sent = 0

    async def flood() -> None:
        nonlocal sent
        while True:
            await plain.say(*(request(sent + number, "hang", text="x" * 1_000) for number in range(100)))
            sent += 100

    with anyio.fail_after(10):
        async with Peer(ends[1], doors, in_flight_limit=2) as peer, anyio.create_task_group() as tasks:
            tasks.start_soon(flood)
            seen = -1
            while seen != sent:  # until no more is taken
                seen = sent
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
            assert len(peer._parked) <= PARKED_AT_ONCE  # pyright: ignore[reportPrivateUsage]
            assert sent >= PARKED_AT_ONCE
            tasks.cancel_scope.cancel()


async def test_who_does_not_read_makes_the_sender_wait_and_reading_lets_it_go_on(ends: Ends, plain: Plain) -> None:
    notified = 0

    async def say() -> None:
        nonlocal notified
        for _ in range(100):
            await peer.notify("a", b'"%s"' % (b"x" * 100_000))
            notified += 1
        everything.set()

    everything = anyio.Event()
    with anyio.fail_after(10):
        async with Peer(ends[1], echo) as peer, anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            seen = -1
            while seen != notified:
                seen = notified
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
            assert notified < 60
            assert peer._outbox._bytes < BOUND_BYTES + 200_000  # pyright: ignore[reportPrivateUsage]
            for _ in range(100):
                await plain.heard()
            await everything.wait()


async def test_who_reads_nothing_for_too_long_is_dropped(ends: Ends) -> None:
    with anyio.fail_after(10):
        async with Peer(ends[1], echo, stall_deadline_s=0.1) as peer:
            with pytest.raises(ConnectionLost, match=r"has read nothing for 0\.1 s"):
                while True:
                    await peer.notify("a", b'"%s"' % (b"x" * 100_000))
            assert peer.lost


async def test_a_dropped_connection_leaves_nothing_behind_that_a_new_one_could_trip_over() -> None:
    """The new sockets get the numbers of those that were closed."""
    dropped, leave, left = anyio.Event(), anyio.Event(), anyio.Event()

    async def be_dropped() -> None:
        async with socket_ends() as (silent, busy):
            async with Peer(busy, echo, stall_deadline_s=0.1) as peer:
                with pytest.raises(ConnectionLost):
                    while True:
                        await peer.notify("a", b'"%s"' % (b"x" * 100_000))
                await silent.aclose()
                dropped.set()
                await leave.wait()
            left.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(be_dropped)
            await dropped.wait()
            async with socket_ends() as new, Peer(new[0], echo) as first, Peer(new[1], echo):
                assert bytes(await first.request("a", b"1", deadline_s=5)) == b"1"
                leave.set()
                await left.wait()
                assert bytes(await first.request("a", b"2", deadline_s=5)) == b"2"


async def test_who_reads_slowly_is_not_dropped(ends: Ends, plain: Plain) -> None:
    """More than one deadline passes, but each piece is taken within one."""

    async def say() -> None:
        await peer.notify("a", b'"%s"' % (b"x" * 4 * MIB))

    with anyio.fail_after(20):
        async with Peer(ends[1], echo, stall_deadline_s=0.5) as peer, anyio.create_task_group() as tasks:
            tasks.start_soon(say)
            start = anyio.current_time()
            received = 0
            while received < 4 * MIB:
                received += len(await plain.stream.receive(MIB))
                if anyio.current_time() - start < 1:
                    await anyio.sleep(0.05)  # what is tested is a slow reader
            assert anyio.current_time() - start > 0.5
            assert not peer.lost


def exactly(size: int) -> tuple[bytes, bytes]:
    """A request line of this size without its newline, and its parameters."""
    head = b'{"jsonrpc":"2.0","id":1,"method":"echo","params":'
    params = b'"' + b"x" * (size - len(head) - 3) + b'"'
    return head + params + b"}", params


async def test_a_line_of_64_mib_is_taken(ends: Ends, plain: Plain) -> None:
    line, params = exactly(LINE_LIMIT_BYTES)
    taken: list[int] = []

    async def measure(method: str, given: msgspec.Raw) -> bytes:
        taken.append(len(memoryview(given)))
        return b"{}"

    with anyio.fail_after(30):
        async with Peer(ends[1], measure):
            await plain.stream.send(line + b"\n")
            assert await plain.heard() == success(1, {})
    assert taken == [len(params)]


async def test_of_a_line_without_end_nothing_is_kept_and_it_is_answered_when_it_ends_after_all(
    ends: Ends, plain: Plain
) -> None:
    head = b'{"jsonrpc":"2.0","id":1,"method":"echo","params":"'
    piece = b"x" * MIB
    with anyio.fail_after(60):
        async with Peer(ends[1], echo, line_limit_bytes=4 * MIB):
            tracemalloc.start()
            try:
                await plain.stream.send(head)
                for _ in range(100):
                    await plain.stream.send(piece)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            await plain.stream.send(b'"}\n')
            answer: dict[str, Any] = await plain.heard()
            assert (answer["id"], answer["error"]["code"]) == (1, -32600)
    assert peak < 24 * MIB
