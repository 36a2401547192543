"""Who holds a profile. One process may write to it, from its start to its end.

Rule: the operating system's lock on `<profile>/lock` is the only authority; the text in the file is for
people. So what a killed process left in the file is harmless, and the file is never removed.

The lock is `flock`: on a network file system it holds between machines only where the server supports it, so
a profile belongs on a local disk.
"""

import errno
import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from enginehouse_core.profile.folders import make_private, reason
from enginehouse_protocol.errors import ProfileLocked, ProfileUnwritable

_TRIES = 10
_PAUSE_S = 0.005


class ProfileLock:
    """The right to write to one profile. Held until `release`, the end of its `with`, or the end of the
    process."""

    def __init__(self, profile: Path, descriptor: int) -> None:
        """Made by `acquire`."""
        self.profile = profile
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, profile: Path, what: str) -> Self:
        """Take the lock now or fail. `what` tells others who has it: "enginehouse run". Makes the folder.

        Blocks, for at most 50 ms.

        Raises:
            ProfileLocked: another process (or another part of this one) has it; the error names it.
            ProfileUnwritable: the folder, or a file system without locks, refuses.
        """
        make_private(profile)
        path = profile / "lock"
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE_S)  # `holder_of` may have looked at that very moment, or the holder is just leaving
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise ProfileUnwritable(str(path), f"{reason(error)}; it must be a file you can write") from error
            try:
                if not _locked(descriptor, fcntl.LOCK_EX, path):
                    continue
                if not is_file_at(descriptor, path):  # somebody removed the file meanwhile: this lock guards nothing
                    continue
                _write(
                    descriptor,
                    _Holder(os.getpid(), _started(os.getpid()), what, time.time_ns() // 1_000_000),
                    path,
                )
                kept, descriptor = descriptor, -1
                return cls(profile, kept)
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        raise ProfileLocked(str(profile), holder_of(profile) or "another process")

    def release(self) -> None:
        """Idempotent."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.ftruncate(descriptor, 0)
        except OSError:
            pass  # a full or vanished disk; the text is for people only
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder_of(profile: Path) -> str | None:
    """Who holds the profile, for people: "`enginehouse run` (pid 123, since 16:40)". None: nobody.

    Changes nothing and works on a read-only or missing profile.
    """
    path = profile / "lock"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        # A shared lock for the length of this call is the only way to ask; `acquire` tries again because of
        # it.
        if _locked(descriptor, fcntl.LOCK_SH, path):
            return None
        holder = _read(descriptor)
    except (OSError, ProfileUnwritable):
        return None
    finally:
        os.close(descriptor)
    return "another process" if holder is None else holder.text()


def is_file_at(descriptor: int, path: Path) -> bool:
    """Whether what is open is still what has that name. A lock on a removed file guards nothing."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


class _Holder:
    def __init__(self, pid: int, started: str | None, what: str, since_ms: int) -> None:
        self.pid = pid
        self.started = started
        self.what = what
        self.since_ms = since_ms

    def text(self) -> str:
        since, now = time.localtime(self.since_ms / 1000), time.localtime()
        clock = time.strftime("%H:%M" if since[:3] == now[:3] else "%Y-%m-%d %H:%M", since)
        # Not there, or its number was given to another process: the lock is held through a child, or from a
        # container.
        unseen = "" if self._is_here() else "; not visible from here"
        return f"`{self.what}` (pid {self.pid}, since {clock}{unseen})"

    def _is_here(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            pass
        except (OSError, OverflowError):
            return False
        return self.started == _started(self.pid)


def _locked(descriptor: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise ProfileUnwritable(
            str(path), f"this file system has no locks ({reason(error)}); keep the profile on a local disk"
        ) from error
    return True


def _write(descriptor: int, holder: _Holder, path: Path) -> None:
    line = json.dumps(vars(holder)).encode() + b"\n"
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, line, 0)
    except OSError as error:
        raise ProfileUnwritable(str(path), reason(error)) from error


def _read(descriptor: int) -> _Holder | None:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return _Holder(int(found["pid"]), found["started"], str(found["what"]), int(found["since_ms"]))
    except (ValueError, KeyError, TypeError):
        return None


def _started(pid: int) -> str | None:
    """When a process began, in the kernel's own clock ticks. None where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return None
