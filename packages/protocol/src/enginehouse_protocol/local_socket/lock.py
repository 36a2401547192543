"""Who is the service. One process per folder and name, from its start to its end.

Rule: the operating system's lock on `<name>.lock` is the only authority. The text in the file is for people and
for `status`: what a killed process left there is harmless, and the file is never removed.
"""

import errno
import fcntl
import os
import random
import time
from types import TracebackType
from typing import Self

import msgspec

from enginehouse_protocol.errors import ServiceRunning, ServiceUnavailable
from enginehouse_protocol.local_socket.place import Place

_PROBED_FOR_S = 2.0
"""How long others may look at the lock, one after the other, before taking it is given up."""
_PAUSE_S = 0.005


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that has the lock wrote down.

    `pid` is None while it has not done so yet. `began` is its start in the kernel's clock ticks (None where there
    is no `/proc`), so a number that was given to another process is noticed. `socket` says where its socket is if
    the folder's own path is too long.
    """

    name: str
    pid: int | None = None
    began: str | None = None
    since_ms: int = 0
    version: str = ""
    socket: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Holder).decode


class Lifetime:
    """The right to be the service. Held until `release`, the end of its `with`, or the end of the process.

    Take it first, then open what the service owns, then serve; close in the opposite order. So a second service
    never sees the first one's things half open.
    """

    def __init__(self, place: Place, holder: Holder, descriptor: int) -> None:
        """Made by `acquire`."""
        self.place = place
        self.holder = holder
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, place: Place, version: str) -> Self:
        """Take the lock now or fail. Makes the folder. Blocks: shortly, and at most two seconds.

        Raises:
            ServiceRunning: another process has it; the error names its pid.
            AccessRefused: the folder is not ours alone.
            ServiceUnavailable: the file system has no locks, or refuses the file.
        """
        deadline = time.monotonic() + _PROBED_FOR_S
        with place.opened(create=True) as folder:
            while True:
                descriptor = _open(place, folder, os.O_RDWR | os.O_CREAT)
                try:
                    taken = try_lock(descriptor, place)
                    if taken and _is_at(descriptor, place.lock_name, folder):
                        holder = _write(place, descriptor, version)
                        kept, descriptor = descriptor, -1
                        return cls(place, holder, kept)
                    # A shared lock beside ours means others only look. A refused one: somebody is the service.
                    if not taken and not try_lock(descriptor, place, shared=True):
                        raise ServiceRunning(place.name, str(place.folder), _read(place, descriptor).pid)
                finally:
                    if descriptor >= 0:
                        os.close(descriptor)
                if time.monotonic() > deadline:
                    raise ServiceRunning(place.name, str(place.folder), None)
                time.sleep(random.uniform(0.2, 1) * _PAUSE_S)  # two that start at once must not keep step

    def is_ours(self) -> bool:
        """Whether the locked file is still the one with that name. If not, a second service could start."""
        try:
            return self._descriptor >= 0 and os.path.samestat(os.lstat(self.place.lock), os.fstat(self._descriptor))
        except OSError:
            return False

    def release(self) -> None:
        """Idempotent. In a forked child it closes the child's copy only: the lock stays with the parent."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if os.getpid() == self.holder.pid:
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a forked child still has a copy
        except OSError:
            pass  # a full or vanished disk; closing does the rest
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder_of(place: Place) -> Holder | None:
    """Who is the service right now, also while it starts or ends. None: nobody. Creates nothing. Blocks shortly.

    Raises:
        AccessRefused, ServiceUnavailable: as for `Lifetime.acquire`.
    """
    try:
        with place.opened(create=False) as folder:
            descriptor = _open(place, folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # A shared lock for the length of this call is the only way to ask; `acquire` knows it from a service's.
        return None if try_lock(descriptor, place, shared=True) else _read(place, descriptor)
    finally:
        os.close(descriptor)


def recorded(place: Place, folder: int) -> Holder:
    """What the lock file says, without asking whether anybody holds it."""
    try:
        descriptor = _open(place, folder, os.O_RDONLY)
    except FileNotFoundError:
        return Holder(name=place.name)
    try:
        return _parse(place, descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, place: Place, *, shared: bool = False) -> bool:
    """Take a `flock` without waiting. False: somebody else has it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise ServiceUnavailable(
            f"{place.folder}: this file system has no locks ({error.strerror}); use a folder on a local disk"
        ) from error
    return True


def _open(place: Place, folder: int, flags: int) -> int:
    """Never inherited by a program this process starts: such a child would keep the lock."""
    try:
        return os.open(place.lock_name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ServiceUnavailable(
            f"cannot open {place.lock}: {error.strerror}; it must be a file you can write"
        ) from error


def _is_at(descriptor: int, name: str, folder: int) -> bool:
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _write(place: Place, descriptor: int, version: str) -> Holder:
    short = place.short_folder()
    holder = Holder(
        name=place.name,
        pid=os.getpid(),
        began=_began(os.getpid()),
        since_ms=time.time_ns() // 1_000_000,
        version=version,
        socket=None if short is None else str(short / place.socket_name),
    )
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _encode(holder) + b"\n", 0)
    except OSError as error:
        raise ServiceUnavailable(f"cannot write {place.lock}: {error.strerror}") from error
    return holder


def _read(place: Place, descriptor: int) -> Holder:
    """The text, unless it is that of an earlier holder: the present one has not written yet."""
    holder = _parse(place, descriptor)
    if holder.pid is None or not _runs(holder.pid, holder.began):
        return Holder(name=place.name)
    return holder


def _parse(place: Place, descriptor: int) -> Holder:
    try:
        return _decode(os.pread(descriptor, 16_384, 0))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Holder(name=place.name)


def _runs(pid: int, began: str | None) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    return began is None or _began(pid) in (began, None)


def _began(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return None
