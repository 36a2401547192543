"""What a running service has on disk: token, then socket. Made and removed only under the lifetime lock.

Rule: never remove what is not ours. A socket file left by a killed service is; anything else in its place is not.
"""

import os
import socket
import stat
from pathlib import Path

from enginehouse_protocol.errors import AccessRefused, ServiceUnavailable
from enginehouse_protocol.local_socket.lock import Lifetime
from enginehouse_protocol.local_socket.place import open_private
from enginehouse_protocol.local_socket.token import remove, write_token

_BACKLOG = 512


class Listening:
    """A bound, listening, non-blocking socket and the token that opens it. Every method blocks on the disk.

    The folders stay open, so at the end the files made here are found again, whatever their path leads to by then.
    """

    def __init__(self, lifetime: Lifetime, bound: socket.socket) -> None:
        """Made by `open`."""
        self.token = ""
        self.socket = bound
        self._lifetime = lifetime
        self._short = None if lifetime.holder.socket is None else Path(lifetime.holder.socket).parent
        self._folders: list[int] = []
        self._files: list[tuple[int, str, os.stat_result]] = []

    @classmethod
    def open(cls, lifetime: Lifetime) -> "Listening":
        """Token first: whoever can connect finds it.

        Raises:
            AccessRefused: the folder is not ours alone, or something that is no socket is in the socket's place.
            ServiceUnavailable: the disk or the kernel refuses.
        """
        made = cls(lifetime, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            made.socket.setblocking(False)
            made._write_token()
            made._bind()
            made.socket.listen(_BACKLOG)
        except OSError as error:
            made.close()
            where = lifetime.place.socket
            raise ServiceUnavailable(f"cannot listen at {where}: {error.strerror or error}") from error
        except BaseException:
            made.close()
            raise
        return made

    def is_reachable(self) -> bool:
        """Whether a client would still find this service: lock, token and socket are the files made at its start."""
        return self._lifetime.is_ours() and all(_is_still(*made) for made in self._files)

    def close(self) -> None:
        """First out of sight, then deaf. Removes only what it made, and nothing if the lock is lost. Idempotent."""
        alone = self._lifetime.is_ours()  # if not, what is there may be a successor's
        while self._files:
            folder, name, was = self._files.pop()  # the socket before the token
            try:
                if alone and _is_still(folder, name, was):
                    remove(name, folder)
            except OSError:
                pass  # on a disk that is gone; a next service knows how to deal with a stale file
        self.socket.close()
        while self._folders:
            os.close(self._folders.pop())
        if self._short is not None:
            try:
                os.rmdir(self._short)
            except OSError:
                pass  # gone, or something else is in it

    def _write_token(self) -> None:
        place = self._lifetime.place
        folder = open_private(place.folder, create=True)
        self._folders.append(folder)
        self.token = write_token(place, folder)
        self._remember(folder, place.token_name)

    def _bind(self) -> None:
        place, name = self._lifetime.place, self._lifetime.place.socket_name
        folder, elsewhere = self._folders[0], None
        if self._short is not None:
            folder, elsewhere = open_private(self._short, create=True), str(self._short / name)
            self._folders.append(folder)
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            pass
        else:
            if not stat.S_ISSOCK(found.st_mode):
                where = elsewhere or str(place.socket)
                raise AccessRefused(where, "is in the place of the socket and is none", "move it away")
            remove(name, folder)  # left by a service that was killed: nobody lives there while we hold the lock
        self.socket.bind(place.address(folder, elsewhere) or "")
        self._remember(folder, name)
        os.chmod(name, 0o600, dir_fd=folder)  # the folder is 0700, so nobody was in before

    def _remember(self, folder: int, name: str) -> None:
        self._files.append((folder, name, os.stat(name, dir_fd=folder, follow_symlinks=False)))


def _is_still(folder: int, name: str, was: os.stat_result) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    # A removed file's number is soon given to the next one made, so the time is looked at too.
    return os.path.samestat(found, was) and found.st_mtime_ns == was.st_mtime_ns
