"""One side of a connection: asks, answers, notifies. Use as an async context manager around a byte stream.

Rules: the reader always reads, whatever the handlers are doing, until more requests wait than a well-behaved other
side can have sent; it never waits for the outbox on behalf of a well-formed message. Whatever goes wrong in a handler
ends that handler. When the connection ends, everybody who waits hears so at once.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import NamedTuple, Self

import anyio
import msgspec
from anyio.abc import ByteStream

from enginehouse_protocol.errors import ConnectionLost, EnginehouseError, MalformedData, UsageError
from enginehouse_protocol.rpc import envelope
from enginehouse_protocol.rpc.envelope import Cancel, Envelope, Key, Malformed, WireError
from enginehouse_protocol.rpc.errors_on_the_wire import Refused, coded, from_wire, to_wire
from enginehouse_protocol.rpc.framing import LINE_LIMIT_BYTES
from enginehouse_protocol.rpc.inbox import Inbox
from enginehouse_protocol.rpc.outbox import Outbox

Params = msgspec.Struct | msgspec.Raw | bytes
Result = msgspec.Struct | msgspec.Raw | bytes
"""Bytes are JSON already and travel as they are."""

ASKED_AT_ONCE = 1024
"""A peer has at most this many requests of its own unanswered; further ones wait their turn."""
PARKED_AT_ONCE = 1024
"""So many more than those in flight are held. Not fewer than `ASKED_AT_ONCE`: so two peers never block each other."""
PARKED_BYTES = 2 * LINE_LIMIT_BYTES
CLOSING_S = 1.0

_log = logging.getLogger(__name__)
_NO_PARAMS = msgspec.Raw(b"{}")


class Reply(NamedTuple):
    """A result, and what to do once it is queued: whatever `then` sends comes after it."""

    result: Result
    then: Callable[[], object]


Handler = Callable[[str, msgspec.Raw], Awaitable[Result | Reply]]
"""Answers one request, in a task that has no other meanwhile. May raise `EnginehouseError` or `Refused`."""
Notified = Callable[[str, msgspec.Raw], None]
"""Hears one notification, in the order they came. Runs on the reader: it must not take long and cannot wait."""


class _Asked(NamedTuple):
    """A request of the other side."""

    key: Key
    method: str
    params: msgspec.Raw


class _Waiting:
    """Somebody who asked."""

    __slots__ = ("answered", "error", "received", "result")

    def __init__(self, received: Callable[[msgspec.Raw], None] | None) -> None:
        self.answered = anyio.Event()
        self.received = received
        self.result: msgspec.Raw | None = None
        self.error: EnginehouseError | None = None

    def fail(self, error: EnginehouseError) -> None:
        self.error = error
        self.answered.set()

    def succeed(self, result: msgspec.Raw) -> None:
        self.result = result
        if self.received is not None:
            self.received(result)
        self.answered.set()


def _ignore(method: str, params: msgspec.Raw) -> None:
    """Notifications nobody asked for are no mistake."""


class Peer:
    """The body of `async with` goes on after the connection has ended: wait for `ended` to notice."""

    def __init__(
        self,
        stream: ByteStream,
        handler: Handler,
        *,
        notified: Notified = _ignore,
        in_flight_limit: int = 64,
        line_limit_bytes: int = LINE_LIMIT_BYTES,
        stall_deadline_s: float = 30.0,
    ) -> None:
        """The stream is the peer's from now on.

        `in_flight_limit`: requests of the other side that are handled at once. `stall_deadline_s`: how long the other
        side may read nothing while something waits for it.
        """
        self._stream = stream
        self._handler = handler
        self._notified = notified
        self._in_flight_limit = in_flight_limit
        self._line_limit = line_limit_bytes
        self._inbox = Inbox(stream, line_limit_bytes)
        self._outbox = Outbox(stream, stall_deadline_s)
        self._keys = itertools.count(1)
        self._asking = anyio.Semaphore(ASKED_AT_ONCE, fast_acquire=True)
        self._waiting: dict[Key, _Waiting] = {}
        self._handlers = 0
        self._idle: list[anyio.Event] = []
        self._running: dict[Key, anyio.CancelScope] = {}
        self._parked: dict[Key, _Asked] = {}
        self._parked_bytes = 0
        self._room = anyio.Event()
        self._ended = anyio.Event()
        self._why: str | None = None
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._read)
        self._tasks.start_soon(self._write)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is queued still goes out, within a second. Handlers are cancelled, the stream is closed."""
        with anyio.move_on_after(CLOSING_S, shield=True):
            await self._outbox.written()
        self._end("it was closed here")
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)  # an error of the body is none of the tasks'
        finally:
            await self._close()

    @property
    def lost(self) -> bool:
        return self._why is not None

    async def ended(self) -> str:
        """Wait for the connection to end; returns why, for people."""
        await self._ended.wait()
        return self._why or ""

    # --- asking ---------------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: Params,
        *,
        deadline_s: float | None,
        received: Callable[[msgspec.Raw], None] | None = None,
    ) -> msgspec.Raw:
        """Ask, and return the result as it came.

        At the deadline (None: never) or when cancelled, the other side is told to stop. `received` is called with a
        result on the reader, before anything that came after it is read: for results that say what the next
        notifications mean.

        Raises:
            EnginehouseError: as it was raised on the other side; code `deadline` when no answer came in time.
            ConnectionLost: there is no connection any more.
            MalformedData: the parameters, or the answer, cannot travel.
        """
        key = next(self._keys)
        line = envelope.request_line(key, method, _sendable(params))
        waiting = _Waiting(received)
        with anyio.move_on_after(deadline_s):
            async with self._asking:
                self._check()
                self._waiting[key] = waiting
                queued = False
                try:
                    await self._outbox.put(line)
                    queued = True
                    await waiting.answered.wait()
                finally:
                    del self._waiting[key]
                    if queued and not waiting.answered.is_set():
                        self._outbox.post(envelope.notification_line(envelope.CANCEL, Cancel(id=key)))
        if waiting.error is not None:
            raise waiting.error
        if waiting.result is None:
            raise coded("deadline", f"no answer to {method} within {deadline_s:g} s")
        return waiting.result

    async def notify(self, method: str, params: Params) -> None:
        """Say something that needs no answer. Returns once it is queued; waits while the other side does not read.

        Raises:
            ConnectionLost: there is no connection any more.
            MalformedData: the parameters cannot travel.
        """
        await self._outbox.put(envelope.notification_line(method, _sendable(params)))

    def _check(self) -> None:
        if self._why is not None:
            raise ConnectionLost(self._why)

    # --- reading --------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        why = "the other side closed it"
        listens = False
        try:
            while True:
                for line in await self._inbox.lines():
                    if self._why is not None:
                        return
                    if line not in (b"", b"\r") and (mistake := self._take(envelope.read(line, self._line_limit))):
                        await self._outbox.put(mistake)
                    while len(self._parked) >= PARKED_AT_ONCE or self._parked_bytes >= PARKED_BYTES:
                        self._room = anyio.Event()
                        await self._room.wait()
        except anyio.EndOfStream:
            listens = True  # perhaps: what is queued is written to the one who only stopped talking
            if self._inbox.inside_a_line:
                why = "the other side ended in the middle of a message"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            why = f"{why} ({error.__cause__ or type(error).__name__})"
        except ConnectionLost:
            return
        except Exception:  # noqa: BLE001 – a connection's end
            _log.exception("the reader of a connection failed; the connection ends")
            why = "reading from it failed"
        self._end(why, drop=not listens)
        if not listens:
            await self._close()

    def _take(self, message: Envelope | Malformed) -> bytes | None:
        """Act on a message. Returns what to answer at once, which only a malformed one needs."""
        if isinstance(message, Malformed):
            if not message.answers:
                return envelope.failure_line(message.key, message.error)
            self._answered(message.key, MalformedData(f"the answer cannot be read: {message.error.message}"))
        elif message.method is None:
            self._answered(message.id, from_wire(message.error) if message.error else message.result)
        elif isinstance(message.id, msgspec.UnsetType) or message.id is None:
            self._hear(message.method, message.params or _NO_PARAMS)
        elif message.id in self._running or message.id in self._parked:
            return envelope.failure_line(
                message.id, envelope.malformed(envelope.INVALID_REQUEST, "this id is in use").error
            )
        else:
            self._begin(_Asked(message.id, message.method, message.params or _NO_PARAMS))
        return None

    def _answered(self, key: Key | msgspec.UnsetType | None, outcome: msgspec.Raw | EnginehouseError) -> None:
        waiting = None if key is None or isinstance(key, msgspec.UnsetType) else self._waiting.get(key)
        if waiting is None:  # it came too late, or the other side could not read something of ours
            if isinstance(outcome, EnginehouseError):
                _log.info("an answer nobody waits for: %s", outcome)
        elif isinstance(outcome, EnginehouseError):
            waiting.fail(outcome)
        else:
            try:
                waiting.succeed(outcome)
            except Exception as error:  # noqa: BLE001 – the asker hears of it
                _log.exception("what was to happen on an answer failed")
                waiting.fail(MalformedData(f"the answer cannot be used: {error}"))

    def _hear(self, method: str, params: msgspec.Raw) -> None:
        try:
            if method == envelope.CANCEL:
                self._cancel(envelope.cancel_decoder.decode(params).id)
            else:
                self._notified(method, params)
        except Exception:  # noqa: BLE001 – one notification, not the connection
            _log.exception("the notification %.100r could not be taken", method)

    # --- answering ------------------------------------------------------------------------------------------------

    def _begin(self, request: _Asked) -> None:
        """Every request waits at least until a task has come around to it, so they start in the order they came."""
        self._parked[request.key] = request
        self._parked_bytes += len(memoryview(request.params))
        if self._idle:
            self._idle.pop().set()
        elif self._handlers < self._in_flight_limit:
            self._handlers += 1
            self._tasks.start_soon(self._handle)

    def _cancel(self, key: Key) -> None:
        if key in self._running:
            self._running[key].cancel()
        elif key in self._parked:
            self._unpark(key)
            self._outbox.post(envelope.failure_line(key, _CANCELLED))

    def _unpark(self, key: Key) -> _Asked:
        request = self._parked.pop(key)
        self._parked_bytes -= len(memoryview(request.params))
        self._room.set()
        return request

    async def _handle(self) -> None:
        """Handle requests one after the other.

        Tasks are kept for the next request, since making one costs as much as the rest of a short request.
        """
        try:
            while True:
                while self._parked:
                    await self._answer(self._unpark(next(iter(self._parked))))
                wanted = anyio.Event()
                self._idle.append(wanted)
                await wanted.wait()
        except ConnectionLost:
            pass

    async def _answer(self, request: _Asked) -> None:
        key, method, params = request
        then: Callable[[], object] | None = None
        line = b""
        with anyio.CancelScope() as scope:
            self._running[key] = scope
            try:
                given = await self._handler(method, params)
                if isinstance(given, Reply):
                    given, then = given
                line = envelope.success_line(key, _sendable(given))
            except Refused as refused:
                line = envelope.failure_line(key, refused.error)
            except EnginehouseError as error:
                line = envelope.failure_line(key, to_wire(error))
            except Exception:  # noqa: BLE001 – a handler's end
                _log.exception("handling %.100r failed", method)
                line = envelope.failure_line(key, _INTERNAL)
            finally:
                del self._running[key]
        if scope.cancelled_caught:
            line = envelope.failure_line(key, _CANCELLED)
        await self._outbox.put(line)
        if then is not None:
            try:
                then()
            except Exception:  # noqa: BLE001 – the answer is out already
                _log.exception("what was to happen after the answer to %.100r failed", method)

    # --- ending ---------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        try:
            why = await self._outbox.write()
        except Exception:  # noqa: BLE001 – a connection's end
            _log.exception("the writer of a connection failed; the connection ends")
            why = "writing to it failed"
        self._outbox.close(why, drop=True)  # also when the reader was first to see the end, and still hoped
        self._end(why)
        await self._close()

    def _end(self, why: str, *, drop: bool = True) -> None:
        if self._why is not None:
            return
        self._why = why
        self._outbox.close(why, drop=drop)
        for waiting in self._waiting.values():
            waiting.fail(ConnectionLost(why))
        self._parked.clear()
        self._parked_bytes = 0
        self._room.set()
        for scope in self._running.values():
            scope.cancel()
        self._ended.set()

    async def _close(self) -> None:
        with anyio.move_on_after(CLOSING_S, shield=True):
            self._inbox.closing()
            try:
                await self._stream.aclose()
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass


_INTERNAL = WireError(
    code=envelope.INTERNAL_ERROR,
    message="something went wrong inside; the log of the process that was asked says what",
    data={"code": "internal"},
)
_CANCELLED = WireError(code=envelope.CANCELLED, message="cancelled", data={"code": "cancelled"})


def _sendable(value: Params) -> msgspec.Struct | msgspec.Raw:
    raw = msgspec.Raw(value) if isinstance(value, bytes) else value
    if isinstance(raw, msgspec.Raw) and not raw:
        raise UsageError("empty bytes are no JSON; send b'{}' for nothing")
    return raw
