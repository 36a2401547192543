"""The service's side: accepting, the handshake, idle exit, clean stop.

Rule: one connection can hurt only itself. Whatever its handler raises ends that connection and is logged; a slow,
foreign or mute visitor is dropped by the clock.
"""

import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import anyio
import anyio.abc
from anyio import to_thread
from anyio.abc import ByteStream, TaskStatus
from anyio.streams.buffered import BufferedByteStream

from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.local_socket.edition import Edition, newest_common
from enginehouse_protocol.local_socket.handshake import (
    Hello,
    Refusal,
    RefusalCode,
    Welcome,
    line,
    receive_hello,
    send_line,
)
from enginehouse_protocol.local_socket.listening import Listening
from enginehouse_protocol.local_socket.lock import Lifetime
from enginehouse_protocol.local_socket.peer import is_us, peer_of
from enginehouse_protocol.local_socket.place import Place
from enginehouse_protocol.local_socket.token import same_token

HELLO_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 512
_WATCH_S = 5.0
_CLEANUP_S = 5.0
_REPLY_S = 1.0
_OUT_OF_DESCRIPTORS_S = 0.1
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, anyio.IncompleteRead)

_log = logging.getLogger(__name__)

Ending = Literal["idle", "asked", "signal", "displaced"]
"""Why a service ended. `displaced`: its lock, token or socket file was removed or replaced, so no client finds it."""


@dataclass(frozen=True)
class Guest:
    """Who was let in. Same user, right token; `protocol` is the one to speak."""

    pid: int | None
    protocol: int
    version: str


OnConnection = Callable[[ByteStream, Guest], Awaitable[None]]
"""Owns the stream until it returns; then the connection is closed. Cancelled when the service ends."""


class Server:
    """Serves one place for as long as its lifetime lock is held by the caller. Run it once."""

    def __init__(
        self,
        lifetime: Lifetime,
        edition: Edition,
        on_connection: OnConnection,
        *,
        idle_after_s: float | None,
        busy: Callable[[], bool],
        hello_timeout_s: float = HELLO_TIMEOUT_S,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`idle_after_s` None: never leave by itself. `busy` is asked every few seconds; it must not block.

        A `busy` that fails counts as busy.
        """
        self._lifetime = lifetime
        self._edition = edition
        self._on_connection = on_connection
        self._idle_after_s = idle_after_s
        self._busy = busy
        self._hello_timeout_s = hello_timeout_s
        self._connections_max = connections_max
        self._open = 0
        self._attached = 0
        self._active_at = 0.0
        self._ending: Ending | None = None
        self._ended = anyio.Event()
        self._token = ""

    @property
    def idle(self) -> bool:
        """Nobody is attached and nothing is busy."""
        return not self._attached and not self._is_busy()

    def stop(self) -> None:
        """End `run` soon. Idempotent. From the event loop's thread only."""
        self._end("asked")

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> Ending:
        """Serve until idle, asked, signalled or displaced. Started once clients can connect.

        When it returns, socket and token are gone and every handler has ended. The lock is still held, so that the
        caller can close what it owns before another service starts.

        Raises:
            AccessRefused: the folder is not ours alone, or something that is not ours is in the socket's place.
        """
        listening = await to_thread.run_sync(Listening.open, self._lifetime)
        self._token = listening.token
        self._active_at = anyio.current_time()
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._heed_signals)
                tasks.start_soon(self._watch, listening)
                tasks.start_soon(self._accept, listening.socket, tasks)
                task_status.started()
                await self._ended.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.move_on_after(_CLEANUP_S, shield=True):
                await to_thread.run_sync(listening.close)
        assert self._ending is not None
        _log.info("%s ended: %s", self._lifetime.place.name, self._ending)
        return self._ending

    # --- its end --------------------------------------------------------------------------------------------

    def _end(self, why: Ending) -> None:
        self._ending = self._ending or why
        self._ended.set()

    async def _heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        if threading.current_thread() is not threading.main_thread():
            task_status.started()
            return
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                self._end("signal")

    async def _watch(self, listening: Listening) -> None:
        """Leave when idle for long enough, or when no client can find this service any more.

        A client that connects at that very moment is cut before its welcome; clients take that as "start it".
        """
        patience = self._idle_after_s
        pause = left = _WATCH_S if patience is None else min(_WATCH_S, patience / 4)
        while True:
            await anyio.sleep(min(left, pause))
            if not await to_thread.run_sync(listening.is_reachable):
                _log.error("%s: a file of this service was removed or replaced", self._lifetime.place.folder)
                self._end("displaced")
                return
            now = anyio.current_time()
            if self._open or self._is_busy():
                self._active_at = now
            left = pause if patience is None else self._active_at + patience - now
            if left <= 0:
                self._end("idle")
                return

    def _is_busy(self) -> bool:
        try:
            return self._busy()
        except Exception:  # noqa: BLE001 - somebody else's code; not knowing means not leaving
            _log.exception("asking whether the service is busy failed; it counts as busy")
            return True

    # --- its visitors ---------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            try:
                visitor, _ = listener.accept()
            except BlockingIOError:
                await anyio.wait_readable(listener)
                continue
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                _log.warning("cannot accept a connection now: %s", error.strerror)
                await anyio.sleep(_OUT_OF_DESCRIPTORS_S)  # it waits in the backlog
                continue
            visitor.setblocking(False)
            peer = peer_of(visitor)
            if not is_us(peer):
                _log.warning("dropped a connection of another user: %s", peer)
                message = f"this service belongs to user {os.geteuid()}; another user cannot use it"
                _drop(visitor, "other_user", message)
            elif self._open >= self._connections_max:
                _log.warning("dropped a connection: there are %d already", self._open)
                _drop(visitor, "too_many_connections", f"{self._open} connections are open; close some")
            else:
                self._open += 1  # at once, so that idle exit cannot come between
                tasks.start_soon(self._receive, visitor, peer.pid if peer else None)
            await anyio.lowlevel.checkpoint()

    async def _receive(self, visitor: socket.socket, pid: int | None) -> None:
        """One connection from first to last byte. Nothing it does ends the service."""
        try:
            async with BufferedByteStream(await anyio.abc.UNIXSocketStream.from_socket(visitor)) as stream:
                if guest := await self._greet(stream, pid):
                    await self._entertain(stream, guest)
        except _GONE as error:
            _log.debug("a connection of process %s ended: %r", pid, error)
        except Exception:  # noqa: BLE001 - a connection ends here, the service does not
            _log.exception("a connection of process %s failed and was closed", pid)
        finally:
            visitor.close()  # in case it was never wrapped
            self._open -= 1

    async def _entertain(self, stream: BufferedByteStream, guest: Guest) -> None:
        self._attached += 1
        try:
            await self._on_connection(stream, guest)
        finally:
            self._attached -= 1
            self._active_at = anyio.current_time()

    async def _greet(self, stream: BufferedByteStream, pid: int | None) -> Guest | None:
        """None: refused, or what it wanted is done."""
        hello = None
        with anyio.move_on_after(self._hello_timeout_s):
            try:
                hello = await receive_hello(stream)
            except MalformedData as error:
                return await self._refuse(stream, "malformed_hello", str(error))
            except anyio.DelimiterNotFound:
                return await self._refuse(stream, "malformed_hello", "the first line is too long")
        if hello is None:
            return await self._refuse(stream, "hello_timeout", f"no hello within {self._hello_timeout_s:g} s")
        place = self._lifetime.place
        if hello.name != place.name:
            return await self._refuse(stream, "other_service", f"this is {place.name}, not {hello.name}")
        if not same_token(hello.token, self._token):
            _log.warning("process %s had a wrong token", pid)
            return await self._refuse(stream, "wrong_token", "the token is not the one this service started with")
        match hello.want:
            case "attach":
                return await self._admit(stream, hello, pid)
            case "status":
                await self._welcome(stream, self._edition.protocol.max)
            case "stop":
                await self._agree_to_stop(stream)
            case "stop_if_idle":
                if not self.idle:
                    return await self._refuse(stream, "not_idle", "it is in use", told=True)
                await self._agree_to_stop(stream)
        return None

    async def _agree_to_stop(self, stream: BufferedByteStream) -> None:
        self._ending = self._ending or "asked"  # at once: from here on nobody is let in
        try:
            await self._welcome(stream, self._edition.protocol.max)
        finally:
            self._end("asked")

    async def _admit(self, stream: BufferedByteStream, hello: Hello, pid: int | None) -> Guest | None:
        ours = self._edition
        if self._ending:
            return await self._refuse(stream, "stopping", "it is ending", told=True)
        common = newest_common(ours.protocol, hello.protocol)
        if common is None:
            code = "protocol_too_old" if hello.protocol.max < ours.protocol.min else "protocol_too_new"
            message = f"this service speaks protocol {ours.protocol}, you speak {hello.protocol}"
            return await self._refuse(stream, code, message, told=True)
        if hello.exact_version and hello.version != ours.version:
            message = f"this service is version {ours.version}, you are {hello.version}"
            return await self._refuse(stream, "other_version", message, told=True)
        await self._welcome(stream, common)
        return Guest(pid=pid, protocol=common, version=hello.version)

    async def _welcome(self, stream: BufferedByteStream, protocol: int) -> None:
        holder = self._lifetime.holder
        welcome = Welcome(
            name=self._lifetime.place.name,
            version=self._edition.version,
            protocol=protocol,
            pid=os.getpid(),
            since_ms=holder.since_ms,
            idle=self.idle,
            connections=self._attached,
        )
        with anyio.fail_after(_REPLY_S):  # a few hundred bytes into an empty buffer
            await send_line(stream, welcome)

    async def _refuse(self, stream: BufferedByteStream, code: RefusalCode, message: str, *, told: bool = False) -> None:
        """`told`: had the right token, so may know more."""
        refusal = Refusal(code=code, message=message)
        if told:
            refusal = Refusal(
                code=code,
                message=message,
                version=self._edition.version,
                protocol=self._edition.protocol,
                pid=os.getpid(),
                idle=self.idle,
            )
        with anyio.move_on_after(_REPLY_S):
            await send_line(stream, refusal)


async def serve(
    place: Place,
    edition: Edition,
    on_connection: OnConnection,
    *,
    idle_after_s: float | None,
    busy: Callable[[], bool],
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> Ending:
    """Be the service of `place` until it ends. For a service that owns nothing that must be opened under the lock.

    Raises:
        ServiceRunning: another process is it already.
        AccessRefused, ServiceUnavailable: as for `Lifetime.acquire`.
    """
    lifetime = await to_thread.run_sync(Lifetime.acquire, place, edition.version)
    with lifetime:
        server = Server(lifetime, edition, on_connection, idle_after_s=idle_after_s, busy=busy)
        return await server.run(task_status=task_status)


def _drop(visitor: socket.socket, code: RefusalCode, message: str) -> None:
    """Say why and close, without reading a byte."""
    with visitor:
        try:
            visitor.send(line(Refusal(code=code, message=message)))
        except OSError:
            pass
