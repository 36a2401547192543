"""Asking, answering, notifying and cancelling, in memory and over a real socket."""

import logging
from typing import Any

import anyio
import msgspec
import pytest

from enginehouse_protocol.errors import ConnectionLost, EnginehouseError, MalformedData, SessionNotFound, UsageError
from enginehouse_protocol.rpc import Peer, Refused, Reply, Result, memory_pair

from .conftest import Ends, Plain

pytestmark = pytest.mark.anyio


async def echo(method: str, params: msgspec.Raw) -> msgspec.Raw:
    return params


def request(key: object, method: str = "echo", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": params}


def success(key: object, result: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "result": result}


class Doors:
    """A handler whose requests wait until they are let through. Knows who came and who was cancelled."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.cancelled: list[str] = []
        self.inside = 0
        self.most = 0
        self._doors: dict[str, anyio.Event] = {}
        self._moved = anyio.Event()

    async def __call__(self, method: str, params: msgspec.Raw) -> Result:
        self.entered.append(method)
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._tell()
        try:
            await self._door(method).wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(method)
            raise
        finally:
            self.inside -= 1
            self._tell()
        return msgspec.json.encode(method)

    def open(self, *methods: str) -> None:
        for method in methods:
            self._door(method).set()

    async def until(self, count: int) -> None:
        while len(self.entered) < count:
            await self._moved.wait()

    async def empty(self) -> None:
        while self.inside:
            await self._moved.wait()

    def _door(self, method: str) -> anyio.Event:
        return self._doors.setdefault(method, anyio.Event())

    def _tell(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()


async def test_both_sides_ask_and_get_the_bytes_the_other_gave(ends: Ends) -> None:
    async def shout(method: str, params: msgspec.Raw) -> bytes:
        return b'{ "shouted" : %s }' % msgspec.json.encode(method.upper())

    with anyio.fail_after(5):
        async with Peer(ends[0], shout) as first, Peer(ends[1], echo) as second:
            assert bytes(await first.request("a", b'{"text": "\xc3\xa4"}', deadline_s=5)) == b'{"text": "\xc3\xa4"}'
            assert bytes(await second.request("b", b"{}", deadline_s=5)) == b'{ "shouted" : "B" }'


async def test_answers_come_back_in_the_order_they_are_ready(ends: Ends, plain: Plain) -> None:
    doors = Doors()
    with anyio.fail_after(5):
        async with Peer(ends[1], doors):
            await plain.say(request(1, "slow"), request("two", "quick"))
            await doors.until(2)
            doors.open("quick")
            assert await plain.heard() == success("two", "quick")
            doors.open("slow")
            assert await plain.heard() == success(1, "slow")


async def test_a_message_may_be_cut_at_every_byte(ends: Ends, plain: Plain) -> None:
    line = msgspec.json.encode(request(1, text="größer 𝄞")) + b"\n"
    with anyio.fail_after(10):
        async with Peer(ends[1], echo):
            for cut in range(len(line) + 1):
                for piece in (line[:cut], line[cut:]):
                    await plain.stream.send(piece)
                    await anyio.lowlevel.checkpoint()
                assert await plain.heard() == success(1, {"text": "größer 𝄞"})


@pytest.mark.parametrize(
    "line,number,key",
    [
        (b"nonsense\n", -32700, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"echo"}]\n', -32600, None),
        (b'{"id":8,"method":"echo"}\n', -32600, 8),
    ],
)
async def test_a_malformed_line_is_answered_and_the_next_one_is_served(
    ends: Ends, plain: Plain, line: bytes, number: int, key: object
) -> None:
    with anyio.fail_after(5):
        async with Peer(ends[1], echo):
            await plain.stream.send(b"\n\r\n" + line)
            answer = await plain.heard()
            assert (answer["id"], answer["error"]["code"]) == (key, number)
            await plain.say(request(2))
            assert await plain.heard() == success(2, {})


async def test_a_line_that_is_too_long_is_answered_and_the_next_one_is_served(ends: Ends, plain: Plain) -> None:
    with anyio.fail_after(5):
        async with Peer(ends[1], echo, line_limit_bytes=1_000):
            await plain.say(request(1, text="x" * 5_000), request(2))
            answer = await plain.heard()
            assert (answer["id"], answer["error"]["code"]) == (1, -32600)
            assert "the limit is 1000" in answer["error"]["message"]
            assert await plain.heard() == success(2, {})


async def test_an_answer_that_is_too_long_or_broken_fails_the_one_who_asked(ends: Ends, plain: Plain) -> None:
    async def ask(peer: Peer, line: bytes) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, line)
            with pytest.raises(MalformedData, match="the answer cannot be read"):
                await peer.request("a", b"{}", deadline_s=5)

    async def answer(line: bytes) -> None:
        key = (await plain.heard())["id"]
        await plain.stream.send(line % key)

    with anyio.fail_after(5):
        async with Peer(ends[1], echo, line_limit_bytes=1_000) as peer:
            await ask(peer, b'{"jsonrpc":"2.0","id":%d,"result":"' + b"x" * 5_000 + b'"}\n')
            await ask(peer, b'{"jsonrpc":"1.0","id":%d,"result":{}}\n')


async def test_an_answer_nobody_waits_for_is_passed_over(ends: Ends, plain: Plain) -> None:
    error = {"code": -32700, "message": "what?"}
    with anyio.fail_after(5):
        async with Peer(ends[1], echo):
            await plain.say(success(77, {}), {"jsonrpc": "2.0", "id": None, "error": error}, request(1))
            assert await plain.heard() == success(1, {})


async def test_what_a_handler_raises_reaches_the_one_who_asked_and_nobody_else(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(method: str, params: msgspec.Raw) -> msgspec.Raw:
        match method:
            case "known":
                raise SessionNotFound("s_1")
            case "refused":
                raise Refused(-32601, "usage", "no method 'refused'")
            case "broken":
                raise ZeroDivisionError("the secret is 42")
            case "unsendable":
                return msgspec.Raw(b"\n{")
            case _:
                return params

    with anyio.fail_after(5), caplog.at_level(logging.ERROR):
        async with Peer(ends[0], echo) as peer, Peer(ends[1], handler):
            with pytest.raises(SessionNotFound) as found:
                await peer.request("known", b"{}", deadline_s=5)
            assert found.value.session_id == "s_1"
            with pytest.raises(UsageError, match="no method"):
                await peer.request("refused", b"{}", deadline_s=5)
            with pytest.raises(EnginehouseError) as inside:
                await peer.request("broken", b"{}", deadline_s=5)
            assert inside.value.code == "internal"
            assert "42" not in str(inside.value)
            with pytest.raises(MalformedData):
                await peer.request("unsendable", b"{}", deadline_s=5)
            assert bytes(await peer.request("fine", b"[1]", deadline_s=5)) == b"[1]"
    assert "ZeroDivisionError: the secret is 42" in caplog.text


async def test_at_the_deadline_the_one_who_asked_goes_on_and_the_handler_is_stopped(ends: Ends) -> None:
    doors = Doors()
    with anyio.fail_after(5):
        async with Peer(ends[0], echo) as peer, Peer(ends[1], doors):
            with pytest.raises(EnginehouseError, match=r"no answer to hang within 0\.05 s") as late:
                await peer.request("hang", b"{}", deadline_s=0.05)
            assert late.value.code == "deadline"
            await doors.empty()
            assert doors.cancelled == ["hang"]


async def test_cancelling_the_one_who_asked_stops_the_handler(ends: Ends) -> None:
    doors = Doors()
    with anyio.fail_after(5):
        async with Peer(ends[0], echo) as peer, Peer(ends[1], doors):
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    await peer.request("hang", b"{}", deadline_s=None)

                tasks.start_soon(ask)
                await doors.until(1)
                tasks.cancel_scope.cancel()
            await doors.empty()
            assert doors.cancelled == ["hang"]


async def test_a_cancelled_request_is_answered_also_when_both_came_in_one_chunk(ends: Ends, plain: Plain) -> None:
    doors = Doors()
    cancel = {"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": 1}}
    with anyio.fail_after(5):
        async with Peer(ends[1], doors, in_flight_limit=1):
            await plain.say(request(1, "hang"), cancel)
            assert (await plain.heard())["error"] == {
                "code": -32800,
                "message": "cancelled",
                "data": {"code": "cancelled"},
            }
            await plain.say(request(2, "a"), request(1, "waits for a place"), cancel, cancel, request(3, "b"))
            assert (await plain.heard())["id"] == 1
            doors.open("a", "b")
            assert await plain.heard() == success(2, "a")
            assert await plain.heard() == success(3, "b")
            assert "waits for a place" not in doors.entered


async def test_an_id_in_use_is_refused(ends: Ends, plain: Plain) -> None:
    doors = Doors()
    with anyio.fail_after(5):
        async with Peer(ends[1], doors):
            await plain.say(request(1, "first"), request(1, "second"))
            assert (await plain.heard())["error"]["message"] == "this id is in use"
            doors.open("first")
            assert await plain.heard() == success(1, "first")


async def test_notifications_are_heard_in_order_and_one_that_fails_ends_nothing(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[bytes] = []

    def hear(method: str, params: msgspec.Raw) -> None:
        heard.append(bytes(params))
        if bytes(params) == b"1":
            raise ValueError("no")

    with anyio.fail_after(5):
        async with Peer(ends[0], echo) as peer, Peer(ends[1], echo, notified=hear):
            for number in range(3_000):
                await peer.notify("count", b"%d" % number)
            await peer.request("a", b"{}", deadline_s=5)
    assert heard == [b"%d" % number for number in range(3_000)]
    assert "'count' could not be taken" in caplog.text


async def test_what_belongs_to_an_answer_is_done_before_what_comes_after_it_is_read(ends: Ends) -> None:
    known: list[bytes] = []
    unexpected: list[bytes] = []
    heard = anyio.Event()

    def hear(method: str, params: msgspec.Raw) -> None:
        if bytes(params) not in known:
            unexpected.append(bytes(params))
        if bytes(params) == b"99":
            heard.set()

    async with Peer(ends[0], echo, notified=hear) as asking, anyio.create_task_group() as tasks:

        async def attach(method: str, params: msgspec.Raw) -> Reply:
            return Reply(params, then=lambda: tasks.start_soon(answering.notify, "event", bytes(params)))

        async with Peer(ends[1], attach) as answering:
            with anyio.fail_after(5):
                for number in range(100):
                    await asking.request(
                        "attach", b"%d" % number, deadline_s=5, received=lambda raw: known.append(bytes(raw))
                    )
                await heard.wait()
    assert unexpected == []


async def test_what_fails_after_an_answer_ends_nothing(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(method: str, params: msgspec.Raw) -> Reply:
        return Reply(params, then=lambda: 1 // 0)

    with anyio.fail_after(5):
        async with Peer(ends[0], echo) as peer, Peer(ends[1], handler):
            for _ in range(2):
                assert bytes(await peer.request("a", b"{}", deadline_s=5)) == b"{}"
    assert "ZeroDivisionError" in caplog.text


async def test_a_request_nobody_can_encode_is_the_caller_s_mistake(ends: Ends) -> None:
    with anyio.fail_after(5):
        async with Peer(ends[0], echo) as peer, Peer(ends[1], echo):
            with pytest.raises(UsageError, match="empty bytes"):
                await peer.request("a", b"", deadline_s=5)
            with pytest.raises(MalformedData):
                await peer.notify("a", msgspec.Raw(b"\n{"))
            assert bytes(await peer.request("a", b"{}", deadline_s=5)) == b"{}"


# --- the end ------------------------------------------------------------------------------------------------------


async def test_when_the_connection_ends_everybody_who_waits_hears_so_and_handlers_stop(
    ends: Ends, plain: Plain
) -> None:
    doors = Doors()
    lost: list[str] = []

    async def ask() -> None:
        with pytest.raises(ConnectionLost) as error:
            await peer.request("never", b"{}", deadline_s=None)
        lost.append(error.value.reason)

    with anyio.fail_after(5):
        async with Peer(ends[1], doors) as peer, anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(ask)
            await plain.say(request(1, "hang"))
            await doors.until(1)
            await plain.heard()
            await plain.heard()
            await plain.stream.aclose()
            assert await peer.ended() == "the other side closed it"
            await doors.empty()
            assert peer.lost
            with pytest.raises(ConnectionLost):
                await peer.request("late", b"{}", deadline_s=5)
            with pytest.raises(ConnectionLost):
                await peer.notify("late", b"{}")
    assert lost == ["the other side closed it"] * 2
    assert doors.cancelled == ["hang"]


async def test_an_end_in_the_middle_of_a_message_is_said(ends: Ends, plain: Plain) -> None:
    with anyio.fail_after(5):
        async with Peer(ends[1], echo) as peer:
            await plain.stream.send(b'{"jsonrpc":')
            await plain.stream.aclose()
            assert await peer.ended() == "the other side ended in the middle of a message"


async def test_what_was_said_last_still_arrives_and_an_error_of_the_body_comes_out_as_it_is(
    ends: Ends, plain: Plain
) -> None:
    async def leave() -> None:
        async with Peer(ends[1], echo) as peer:
            await peer.notify("goodbye", b"{}")
            raise KeyError("mine")

    with anyio.fail_after(5):
        with pytest.raises(KeyError, match="mine"):
            await leave()
        assert (await plain.heard())["method"] == "goodbye"
        with pytest.raises(anyio.EndOfStream):
            await plain.heard()


async def test_a_peer_can_be_cancelled_from_outside_while_everything_hangs() -> None:
    doors = Doors()
    first, second = memory_pair()
    with anyio.fail_after(5):
        async with first, anyio.create_task_group() as tasks:

            async def serve() -> None:
                async with Peer(second, doors):
                    await anyio.sleep_forever()

            tasks.start_soon(serve)
            await Plain(first).say(request(1, "hang"))
            await doors.until(1)
            tasks.cancel_scope.cancel()
    assert doors.cancelled == ["hang"]


async def test_who_stopped_talking_but_still_reads_gets_what_was_queued(ends: Ends, plain: Plain) -> None:
    with anyio.fail_after(5):
        async with Peer(ends[1], echo) as peer:
            for number in range(8):
                await peer.notify(f"last {number}", b'"%s"' % (b"x" * 100_000))
            await plain.stream.send_eof()
            await peer.ended()
            assert [(await plain.heard())["method"] for _ in range(8)] == [f"last {number}" for number in range(8)]


async def test_an_exception_nobody_expected_from_a_stream_ends_only_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        """A stream that fails in a way no stream should."""

        def __init__(self) -> None:
            self.closed = False

        def extra(self, attribute: object, default: object = None) -> object:
            return default

        async def receive(self, max_bytes: int = 65536) -> bytes:
            raise ZeroDivisionError("a bug")

        async def send(self, item: bytes) -> None:
            pass

        async def aclose(self) -> None:
            self.closed = True

    stream = Broken()
    with anyio.fail_after(5):
        async with Peer(stream, echo) as peer:  # pyright: ignore[reportArgumentType]
            assert await peer.ended() == "reading from it failed"
    assert stream.closed
    assert "ZeroDivisionError" in caplog.text
