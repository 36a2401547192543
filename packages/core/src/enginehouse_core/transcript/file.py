"""The open transcript file of one session: takes its lock, sets a torn tail aside, appends groups of lines.

Rule: after `append` returns the group is on disk; after it raises the file ends where it ended before. All of it
blocks and belongs in a worker thread.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from enginehouse_core.transcript.blobs import digest_of, sync_folder
from enginehouse_core.transcript.scan import Header, Scan, encode_header, scan
from enginehouse_protocol.errors import SessionNotFound, TranscriptUnavailable, TranscriptUnreadable
from enginehouse_protocol.ids import SessionId

FILE_NAME = "transcript.jsonl"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LOCK_WAIT_S = 0.25  # whoever only asks holds the lock for microseconds; a writer holds it for as long as it lives
_LOCK_RETRY_S = 0.002


def read_transcript(folder: Path, session_id: SessionId) -> Scan:
    """What is on disk now, without any lock and without changing anything.

    Raises:
        SessionNotFound, TranscriptUnreadable
    """
    try:
        data = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError as error:
        raise SessionNotFound(session_id) from error
    except OSError as error:
        raise TranscriptUnreadable(f"cannot read {folder / FILE_NAME}: {error.strerror}") from error
    return scan(data, session_id)


class TranscriptFile:
    """The one writer of a session's transcript. Make it with `create` or `open`; `close` it."""

    def __init__(self, descriptor: int, path: Path, size_bytes: int) -> None:
        self._descriptor = descriptor
        self.path = path
        self.size_bytes = size_bytes
        self.lost = ""
        """Why this writer will never write again; reopening reads what is really there."""

    @classmethod
    def create(cls, folder: Path, session_id: SessionId) -> Self:
        """A new session's file, header included.

        Raises:
            TranscriptUnavailable: the disk refuses.
        """
        path = folder / FILE_NAME
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # perhaps left by a creation that was cut off
            descriptor = _locked(path, os.O_CREAT | os.O_EXCL)
            file = cls(descriptor, path, 0)
            sync_folder(folder.parent)
        except OSError as error:
            raise TranscriptUnavailable(f"cannot create {path}: {error.strerror}") from error
        try:
            file._write_header(session_id)
            sync_folder(folder)
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            folder.rmdir()
            raise
        return file

    @classmethod
    def open(cls, folder: Path, session_id: SessionId) -> Self:
        """An existing file, locked. `prepare` it before appending unless it is known to be clean.

        Raises:
            SessionNotFound: there is none.
            TranscriptUnavailable: it cannot be written.
        """
        path = folder / FILE_NAME
        try:
            descriptor = _locked(path, 0)
            return cls(descriptor, path, os.fstat(descriptor).st_size)
        except FileNotFoundError as error:
            raise SessionNotFound(session_id) from error
        except OSError as error:
            raise TranscriptUnavailable(f"cannot open {path} for writing: {error.strerror}") from error

    def prepare(self, session_id: SessionId, found: Scan) -> None:
        """Make a damaged file fit for appending: its torn tail set aside, its last newline and header there.

        Raises:
            TranscriptUnavailable: the disk refuses; the file is as it was.
        """
        try:
            if found.whole_bytes < found.size_bytes:
                self._set_aside(found.whole_bytes)
            if not found.ends_with_newline:
                self._write(b"\n")
                os.fsync(self._descriptor)
            if self.size_bytes == 0:
                self._write_header(session_id)
        except OSError as error:
            raise TranscriptUnavailable(f"cannot repair {self.path}: {error.strerror}") from error

    def _set_aside(self, whole_bytes: int) -> None:
        """Move the tail to a file of its own. Its name is made of what is in it, so a second try finds the first."""
        folder = self.path.parent
        tail = self.path.read_bytes()[whole_bytes:]
        aside = folder / f"torn-{whole_bytes}-{digest_of(tail)[:12]}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(tail)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)
        os.ftruncate(self._descriptor, whole_bytes)
        self.size_bytes = whole_bytes

    def _write_header(self, session_id: SessionId) -> None:
        self.append([encode_header(Header(session_id=session_id, created_at_ms=time.time_ns() // 1_000_000))])

    def append(self, lines: Sequence[bytes]) -> list[int]:
        """Write the lines as one group and make them durable. Returns the offset of each.

        Raises:
            TranscriptUnavailable: nothing of the group is in the file.
        """
        if self.lost:
            raise TranscriptUnavailable(self.lost)
        start = self.size_bytes
        offsets: list[int] = []
        at = start
        for line in lines:
            offsets.append(at)
            at += len(line) + 1
        try:
            self._write(b"\n".join(lines) + b"\n")
            self._sync()
        except OSError as error:
            self._cut_back(start, error)
            what = "the disk is full" if error.errno in NO_SPACE else str(error.strerror)
            raise TranscriptUnavailable(f"cannot record in {self.path}: {what}") from error
        return offsets

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._descriptor, view)
            self.size_bytes += written
            view = view[written:]

    def _sync(self) -> None:
        full_sync = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone does not reach the platter there
        if full_sync is not None:
            fcntl.fcntl(self._descriptor, full_sync)
        else:
            os.fdatasync(self._descriptor)

    def _cut_back(self, start: int, error: OSError) -> None:
        if error.errno not in NO_SPACE:
            # After a failed sync the kernel may have dropped pages it called written: never trust this file again.
            self.lost = f"writing {self.path} failed ({error.strerror}); open the session again"
        try:
            os.ftruncate(self._descriptor, start)
            self.size_bytes = start
        except OSError:
            self.lost = f"writing {self.path} failed and could not be undone; open the session again"

    def close(self) -> None:
        """Give up the lock. Idempotent."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def _locked(path: Path, flags: int) -> int:
    """The open file, ours alone.

    Raises:
        TranscriptUnavailable: another process writes it.
        OSError
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise TranscriptUnavailable(f"{path} is being written by another process") from error
                time.sleep(_LOCK_RETRY_S)
    except BaseException:
        os.close(descriptor)
        raise


def is_written(folder: Path) -> bool:
    """Whether somebody holds the transcript in `folder` for writing at this moment.

    To know it takes a shared lock for an instant. Readers do not get in each other's way, and a writer waits it out.
    """
    try:
        descriptor = os.open(folder / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # A child that is being started may still have a copy of this descriptor, which closing would not unlock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False  # no locks here, so there can be no writer either
    finally:
        os.close(descriptor)
