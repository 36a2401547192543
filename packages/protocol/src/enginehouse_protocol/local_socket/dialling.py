"""One attempt to reach a service: connect, make sure it is ours, say hello, hear the answer.

Rule: a client never removes anything. Whatever it finds that is not a living service is "nobody", and who may do
something about that is the next service, under its lock.
"""

import errno
import os
import socket
from pathlib import Path
from typing import Literal, NamedTuple

import anyio
from anyio import to_thread
from anyio.abc import UNIXSocketStream
from anyio.streams.buffered import BufferedByteStream

from enginehouse_protocol.errors import AccessRefused, MalformedData, ServiceUnavailable
from enginehouse_protocol.local_socket.edition import Edition
from enginehouse_protocol.local_socket.handshake import Hello, Refusal, Want, Welcome, receive_reply, send_line
from enginehouse_protocol.local_socket.lock import recorded
from enginehouse_protocol.local_socket.peer import is_us, peer_of
from enginehouse_protocol.local_socket.place import Place, open_private
from enginehouse_protocol.local_socket.token import read_token

_NOBODY = (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
_FULL = (errno.EAGAIN, errno.EWOULDBLOCK)
_GONE = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead)


class Answered(NamedTuple):
    """A welcome, and the stream behind it: open and the caller's."""

    welcome: Welcome
    stream: BufferedByteStream


Outcome = Answered | Refusal | Literal["nobody"]


async def dial(place: Place, edition: Edition, want: Want, *, exact_version: bool = True) -> Outcome:
    """Try once. The caller sets the deadline: a service that is stopped or stuck keeps us waiting.

    Raises:
        AccessRefused: folder, token, or the user on the other end is not ours.
        ServiceUnavailable: something answers that does not speak this handshake.
    """
    found = await to_thread.run_sync(_connect, place)
    if found is None:
        return "nobody"
    connected, token = found
    try:
        stream = BufferedByteStream(await UNIXSocketStream.from_socket(connected))
    except BaseException as error:
        connected.close()
        if isinstance(error, OSError | ValueError):  # it closed before we could ask who it is
            return "nobody"
        raise
    hello = Hello(
        name=place.name,
        token=token,
        version=edition.version,
        protocol=edition.protocol,
        want=want,
        exact_version=exact_version,
    )
    answer: Outcome = "nobody"
    try:
        answer = await _ask(place, stream, hello)
    finally:
        if not isinstance(answer, Answered):
            await anyio.aclose_forcefully(stream)
    return answer


async def _ask(place: Place, stream: BufferedByteStream, hello: Hello) -> Outcome:
    try:
        await send_line(stream, hello)
    except anyio.BrokenResourceError:
        pass  # it may have refused us before reading; its reason is still to be read
    try:
        reply = await receive_reply(stream)
    except _GONE:
        return "nobody"
    except (MalformedData, anyio.DelimiterNotFound) as error:
        raise ServiceUnavailable(f"what answers at {place.socket} is not {place.name}: {error}") from error
    return Answered(reply, stream) if isinstance(reply, Welcome) else reply


def _connect(place: Place) -> tuple[socket.socket, str] | None:
    """A connected socket and the token of the service behind it. None: nobody."""
    try:
        with place.opened(create=False) as folder:
            connected = _reach(place, folder)
            if connected is None:
                return None
            try:
                # After connecting: the service we reached holds the lock, so the token in place is its own.
                return connected, read_token(place, folder)
            except BaseException:
                connected.close()
                raise
    except FileNotFoundError:
        return None


def _reach(place: Place, folder: int) -> socket.socket | None:
    elsewhere = None
    if place.short_folder() is not None:
        elsewhere = recorded(place, folder).socket
        if elsewhere is None:
            return None
        os.close(open_private(Path(elsewhere).parent, create=False))
    address = place.address(folder, elsewhere)
    if address is None:
        return None
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)  # a local connect is done at once or not at all
        connected.connect(address)
        peer = peer_of(connected)
    except OSError as error:
        connected.close()
        if error.errno in _NOBODY or error.errno in _FULL:
            return None
        raise AccessRefused(str(place.socket), error.strerror or str(error), "it must be a socket of yours") from error
    except BaseException:
        connected.close()
        raise
    if not is_us(peer):
        connected.close()
        who = "an unknown user" if peer is None else f"user {peer.uid}"
        raise AccessRefused(str(place.socket), f"{who} answers there, not you", "find out who made it, and remove it")
    return connected
