"""Where a service lives: a private folder, the files in it, and a socket address short enough for the kernel.

Rule: nothing in the folder is believed before the folder itself was found to be ours alone. It is opened once
and its files are reached through that descriptor, so the folder that was checked is the folder that is used.
"""

import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enginehouse_protocol.errors import AccessRefused, UsageError

ADDRESS_MAX_BYTES = 100
"""Of a socket's path. The kernels end at 104 (macOS) and 108 (Linux), the closing NUL included."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def _has_proc() -> bool:
    return sys.platform == "linux" and os.path.isdir("/proc/self/fd")


@dataclass(frozen=True)
class Place:
    """The service `name` in `folder`. Knowing a place creates nothing.

    `stop_hint` is the command a person may type to end the service; messages repeat it. `through_proc` says
    whether a long socket path is reached through `/proc` (Linux) or through a short folder (elsewhere); both
    sides must agree, so leave it alone outside of tests.
    """

    folder: Path
    name: str
    stop_hint: str = ""
    through_proc: bool | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"{self.name!r} cannot name a service; use a-z, 0-9, - and _, 32 characters at most")
        object.__setattr__(self, "folder", Path(os.path.abspath(self.folder)))
        if self.through_proc is None:
            object.__setattr__(self, "through_proc", _has_proc())

    @property
    def socket(self) -> Path:
        return self.folder / self.socket_name

    @property
    def token(self) -> Path:
        return self.folder / self.token_name

    @property
    def lock(self) -> Path:
        return self.folder / self.lock_name

    @property
    def log(self) -> Path:
        """Where a service started by a client writes what it prints."""
        return self.folder / self.log_name

    @property
    def socket_name(self) -> str:
        return f"{self.name}.sock"

    @property
    def token_name(self) -> str:
        return f"{self.name}.token"

    @property
    def lock_name(self) -> str:
        return f"{self.name}.lock"

    @property
    def log_name(self) -> str:
        return f"{self.name}.log"

    @property
    def turn_name(self) -> str:
        """Locked by the one client that is starting the service. Saves processes; decides nothing."""
        return f"{self.name}.starting"

    def check(self) -> None:
        """Make the folder if it is missing, 0700, and see that it is ours alone. Blocks on the disk.

        Raises:
            AccessRefused: it is not; the message says why and what to do.
        """
        with self.opened(create=True):
            pass

    @contextmanager
    def opened(self, *, create: bool) -> Generator[int]:
        """A descriptor of the checked folder. Blocks on the disk.

        Raises:
            FileNotFoundError: it is missing and `create` is false.
            AccessRefused: as for `check`.
        """
        descriptor = open_private(self.folder, create=create)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def address(self, folder: int, elsewhere: str | None) -> str | None:
        """What to give to `bind` or `connect` while the descriptor `folder` is open. None: it is not known.

        `elsewhere` is where the holder of the lock says its socket is, if not here.
        """
        if _fits(self.socket):
            return str(self.socket)
        if self.through_proc:
            return f"/proc/self/fd/{folder}/{self.socket_name}"
        return elsewhere

    def short_folder(self) -> Path | None:
        """A folder for the socket alone, if the path here is too long and there is no `/proc`.

        The service picks it and tells in the lock file: its temporary folder need not be the client's.
        """
        if _fits(self.socket) or self.through_proc:
            return None
        key = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]
        leaf = f"{self.name}-{os.geteuid()}-{key}"
        here = Path(tempfile.gettempdir(), leaf)
        return here if _fits(here / self.socket_name) else Path("/tmp", leaf)


def open_private(folder: Path, *, create: bool) -> int:
    """Open a folder that belongs to us alone. The caller closes it.

    Raises:
        FileNotFoundError: it is missing and `create` is false.
        AccessRefused: it is a link, no folder, another user's, or open to others.
    """
    try:
        if create:
            _make(folder)
        _judge(folder, os.lstat(folder))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        if create:
            raise AccessRefused(str(folder), "the folder vanished while it was opened", "try again") from None
        raise
    except OSError as error:
        problem = error.strerror or str(error)
        raise AccessRefused(str(folder), problem, "it must be a folder you can use, mode 0700") from error
    try:
        _judge(folder, os.fstat(descriptor))  # what was opened, in case it was exchanged after the first look
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make(folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass


def _judge(folder: Path, found: os.stat_result) -> None:
    where = str(folder)
    if stat.S_ISLNK(found.st_mode):
        raise AccessRefused(where, "is a symbolic link", "replace it by a real folder of yours, mode 0700")
    if not stat.S_ISDIR(found.st_mode):
        raise AccessRefused(where, "is not a folder", "move it away")
    if found.st_uid != os.geteuid():
        raise AccessRefused(
            where,
            f"belongs to user {found.st_uid}, not to you (user {os.geteuid()})",
            "run as its owner or use another folder",
        )
    mode = stat.S_IMODE(found.st_mode) & 0o777  # a set-group-id bit taken over from the parent gives nobody access
    if mode != 0o700:
        problem = f"other users may write to it (mode {mode:04o})" if mode & 0o022 else f"has mode {mode:04o}"
        remedy = f"see that nothing in it is foreign, then run `chmod 700 {where}`"
        raise AccessRefused(where, problem, remedy if mode & 0o022 else f"run `chmod 700 {where}`")


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= ADDRESS_MAX_BYTES
