"""Starting the service when there is none.

Rule: a client may start as many processes as it likes, the lifetime lock keeps one. So what is here only saves work:
one client at a time starts, not more often than every five seconds, and not while the lock is held.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from enginehouse_protocol.errors import AccessRefused, ServiceUnavailable
from enginehouse_protocol.local_socket.lock import Holder, holder_of, try_lock
from enginehouse_protocol.local_socket.place import Place

ALREADY_RUNNING_EXIT = 75
"""The exit status of a service that found another one running (EX_TEMPFAIL). Not a failure to its starter."""

AGAIN_AFTER_S = 5.0
_TAIL_BYTES = 4000
_TAIL_LINES = 20
_LOG_MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Launch:
    """How to start a service. `environment` is all it gets; arguments are visible to everybody, so no secrets."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


class Starter:
    """Starts the service for one `connect`. Every method blocks on the disk; not for two threads at once."""

    def __init__(self, place: Place, launch: Callable[[], Launch]) -> None:
        self._place = place
        self._launch = launch
        self._turn = -1
        self._waiting_since = time.monotonic()
        self._started_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_from = 0

    @property
    def started(self) -> int | None:
        """The pid of the last process it started."""
        return self._process.pid if self._process else None

    def step(self) -> Holder | None:
        """Nobody answered: start the service, unless it is on its way already. Returns who holds the lock.

        Raises:
            ServiceUnavailable: what was started ended by itself with a failure, or cannot be started.
            AccessRefused: the folder is not ours alone.
        """
        now = time.monotonic()
        if self._process is not None:
            status = self._process.returncode
            if status is None:
                return None
            if status > 0 and status != ALREADY_RUNNING_EXIT:
                message = f"{self._place.name} was started (`{self._shown()}`) and ended with status {status}"
                raise ServiceUnavailable(f"{message}; log: {self._place.log}", self.log_tail())
        if self._started_at is not None and now < self._started_at + AGAIN_AFTER_S:
            return None
        if not self._has_turn() and now < self._waiting_since + AGAIN_AFTER_S:
            return None  # another client is starting it; should that one hang, we do not wait for ever
        if (holder := holder_of(self._place)) is not None:
            return holder  # it starts, or it ends and will let go
        self._started_at = now
        self._spawn()
        return None

    def log_tail(self) -> str:
        """What the service printed since we first started it, the end of it."""
        try:
            with self._place.opened(create=False) as folder:
                descriptor = os.open(self._place.log_name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except (OSError, AccessRefused):
            return ""
        with open(descriptor, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL_BYTES, self._log_from if self._log_from <= end else 0))
            text = file.read().decode("utf-8", "replace")
        return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])

    def close(self) -> None:
        """Let others start. Idempotent. What was started goes on."""
        if self._turn >= 0:
            os.close(self._turn)
            self._turn = -1

    def _has_turn(self) -> bool:
        if self._turn >= 0:
            return True
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with self._place.opened(create=True) as folder:
                descriptor = os.open(self._place.turn_name, flags, 0o600, dir_fd=folder)
        except OSError as error:
            where = self._place.folder / self._place.turn_name
            raise ServiceUnavailable(f"cannot write {where}: {error.strerror or error}") from error
        if try_lock(descriptor, self._place):
            self._turn = descriptor
            return True
        os.close(descriptor)
        return False

    def _spawn(self) -> None:
        launch = self._launch()
        with self._place.opened(create=True) as folder:
            log = _open_log(self._place, folder)
        try:
            if self._process is None:
                self._log_from = os.fstat(log).st_size
            process = subprocess.Popen(
                list(launch.argv),
                env=dict(launch.environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            raise ServiceUnavailable(
                f"cannot start {self._place.name} (`{launch.argv[0]}`): {error.strerror or error}"
            ) from error
        finally:
            os.close(log)
        self._process = process
        # It may outlive this connect and end under a client that runs for days: somebody has to reap it.
        threading.Thread(target=process.wait, name=f"reap {self._place.name}", daemon=True).start()

    def _shown(self) -> str:
        assert self._process is not None
        args = self._process.args
        return args if isinstance(args, str) else " ".join(str(part) for part in args) if isinstance(args, list) else ""


def _open_log(place: Place, folder: int) -> int:
    """Append to the log; one that has grown large is put aside, replacing the one put aside before."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if os.stat(place.log_name, dir_fd=folder, follow_symlinks=False).st_size > _LOG_MAX_BYTES:
            os.replace(place.log_name, f"{place.log_name}.old", src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        pass
    try:
        return os.open(place.log_name, flags, 0o600, dir_fd=folder)
    except OSError as error:
        raise ServiceUnavailable(f"cannot write {place.log}: {error.strerror}") from error
