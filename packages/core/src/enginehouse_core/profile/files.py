"""Reading and changing the TOML files of a profile, which people edit by hand and several processes at once.

Rule: a file is replaced whole or not at all. A reader needs no lock and never sees half a file; a change
keeps what it does not know (keys, comments, order); what cannot be parsed is never overwritten. All of this
blocks: call it in a worker thread.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import threading
import time
import tomllib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from enginehouse_core.profile.folders import make_private, reason
from enginehouse_core.profile.lock import is_file_at
from enginehouse_protocol.errors import ProfileInvalid, ProfileLocked, ProfileUnwritable

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

T = TypeVar("T")

_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_FIX = "correct it, or move the file away to begin anew"
WAIT_S = 10.0
"""How long a change waits for the changes of others. Each takes milliseconds; a longer wait means a stopped
process."""


def read_toml(path: Path) -> dict[str, Any] | None:
    """What the file says; None when there is none.

    Raises:
        ProfileInvalid: unreadable, not UTF-8 or not TOML; `path` then carries the line.
    """
    text = _text(path)
    return None if text is None else _parsed(path, text)


def update_toml(path: Path, change: Callable[["TOMLDocument"], T]) -> T:
    """Let `change` alter the document and put the result in the file's place. Returns what `change` returned.

    Through a link the file it leads to is replaced and the link stays. A new file is 0600, an existing one
    keeps its mode. A document that `change` left as it was is not written. An exception out of `change`
    writes nothing.

    Raises:
        ProfileInvalid: what is there cannot be parsed; it stays as it is.
        ProfileLocked: another process is changing it and does not come to an end.
        ProfileUnwritable: the disk or the permissions refuse; the old content stays.
    """
    import tomlkit  # 100 ms that only a writer pays
    from tomlkit.exceptions import TOMLKitError

    target = _target(path)
    make_private(target.parent)
    with _changing(target):
        before = _text(target) or ""
        _parsed(path, before)  # the reader's parser decides what is valid, so nothing is written that it refuses
        try:
            document = tomlkit.parse(before)
        except TOMLKitError as error:
            raise ProfileInvalid(str(path), f"{error}; {_FIX}") from error
        result = change(document)
        after = tomlkit.dumps(document)
        _parsed(path, after)
        if after != before:
            replace_file(target, after.encode())
        return result


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` in place of the file's content in one step, on disk when this returns. `path` is not a link.

    Raises:
        ProfileUnwritable: the old content stays.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
    try:
        old = os.stat(path, follow_symlinks=False) if os.path.lexists(path) else None
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if old is not None:
                if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                    with contextlib.suppress(PermissionError):  # under sudo the file stays its owner's
                        os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise ProfileUnwritable(str(path), f"{reason(error)}; its old content is unchanged") from error


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that have nothing to sync there
            raise
    finally:
        os.close(descriptor)


def _target(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path, strict=True))
    except FileNotFoundError:
        return Path(os.path.realpath(path))  # a new file, or a link to one that is still to be made
    except OSError as error:
        raise ProfileUnwritable(str(path), reason(error)) from error


@contextlib.contextmanager
def _changing(target: Path) -> Generator[None]:
    """Hold the lock beside `target`. Not on the file itself, which every change replaces."""
    path = target.parent / f".{target.name}.lock"
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ProfileUnwritable(str(path), reason(error)) from error
        if not _Wait(descriptor).ended(deadline - time.monotonic()):
            raise ProfileLocked(str(target), f"another process that has kept {path} for {WAIT_S:.0f} s")
        try:
            if is_file_at(descriptor, path):
                yield
                return
            # Somebody removed the lock file while we waited: what we hold guards nothing.
        finally:
            os.close(descriptor)


class _Wait:
    """`flock` with a deadline. The kernel wakes whoever waits; a loop that asks again and again would starve."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._done = threading.Event()
        self._turn = threading.Lock()
        self._given_up = False

    def ended(self, within_s: float) -> bool:
        """False: not in time, and the descriptor is closed as soon as the kernel lets go of it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            threading.Thread(target=self._wait, name="profile-lock", daemon=True).start()
        except OSError as error:
            os.close(self._descriptor)
            raise ProfileUnwritable("the profile", f"its file system has no locks ({reason(error)})") from error
        self._done.wait(max(within_s, 0))
        with self._turn:
            self._given_up = not self._done.is_set()
        return not self._given_up

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with self._turn:
                if not self._given_up:
                    self._done.set()
                    return
        os.close(self._descriptor)


def _text(path: Path) -> str | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProfileInvalid(str(path), f"cannot be read: {reason(error)}") from error
    try:
        return data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProfileInvalid(f"{path}:{line}", f"not UTF-8 text; {_FIX}") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = _LINE.search(message)
        line = int(found[1]) if found else text.count("\n") + 1  # "(at end of document)" has no number
        problem = _LINE.sub("", message).replace("(at end of document)", "at the end").strip()
        raise ProfileInvalid(f"{path}:{line}", f"not valid TOML: {problem}; {_FIX}") from error
