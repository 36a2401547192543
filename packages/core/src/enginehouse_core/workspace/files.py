"""Files of one session: the file half of `enginehouse_protocol.workspace.Workspace`.

Rule: nothing is half done. A write is a whole file or nothing: a temporary file beside the target, made durable, then
renamed over it; whatever fails before leaves the folder as it was.

Everything that blocks runs in a worker thread. A read may be abandoned there when its caller is cancelled (a dead
network disk must not hold a session), a write never: who asked for it must know how it ended.
"""

import errno
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from anyio import to_thread

from enginehouse_core.workspace.descriptors import FOLDER_FLAGS, require_plain_file, sync_folder
from enginehouse_core.workspace.fence import Fence, Place, failing_as
from enginehouse_core.workspace.findings import FencedSearch
from enginehouse_core.workspace.renaming import rename_to_free_name
from enginehouse_protocol.errors import FileUnusable
from enginehouse_protocol.workspace import (
    DirectoryEntry,
    FileContent,
    FileStat,
    FoundFiles,
    Root,
    SearchResult,
)

_comparing = threading.Lock()
"""Held from the last comparison to the rename: between two sessions of this hub `expected_sha256` is exact."""


class WorkspaceFiles:
    """Reads, writes, moves, lists and searches inside the fence. Use as an async context manager.

    Args:
        roots: folders the session may touch; the first is the working directory.
        scratch: absolute path of the session's private folder; made when it is missing, not removed.
        protected: absolute paths of folders that are closed even where a root contains them: the profile.
        search_deadline_s: how long one search may take.

    Raises:
        FileUnusable: on entering, when a root does not exist.
        UsageError: on entering, when the scratch folder lies in a protected one.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        *,
        scratch: str,
        protected: Sequence[str] = (),
        search_deadline_s: float = 20.0,
    ) -> None:
        self._roots = tuple(roots)
        self._scratch = os.path.abspath(scratch)
        self._fence = Fence([root.path for root in roots], scratch=self._scratch, protected=protected)
        self._searching = FencedSearch(self._fence, search_deadline_s)

    async def __aenter__(self) -> Self:
        await to_thread.run_sync(self._fence.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fence.close()

    @property
    def roots(self) -> tuple[Root, ...]:
        return self._roots

    @property
    def scratch(self) -> str:
        return self._scratch

    def display(self, path: str) -> str:
        """Relative below the first root; absolute below other roots, the scratch folder, and outside.

        A relative name always means the first root, so what is displayed can be asked for again, and a rule about
        `src/**` cannot reach into another root.
        """
        return self._fence.display(path)

    async def read(self, path: str, *, max_bytes: int) -> FileContent:
        place = self._fence.locate(path)
        return await to_thread.run_sync(self._read, place, max_bytes, abandon_on_cancel=True)

    async def write(self, path: str, data: bytes, *, expected_sha256: str | None = None) -> FileStat:
        place = self._fence.locate(path, writing=True)
        return await to_thread.run_sync(self._write, place, data, expected_sha256)

    async def delete(self, path: str, *, expected_sha256: str | None = None) -> None:
        place = self._fence.locate(path, writing=True)
        await to_thread.run_sync(self._delete, place, expected_sha256)

    async def move(self, path: str, to: str, *, expected_sha256: str | None = None) -> FileStat:
        """Never over something, also not over what appears at the last moment, where the file system has links."""
        place, target = (self._fence.locate(each, writing=True) for each in (path, to))
        return await to_thread.run_sync(self._move, place, target, expected_sha256)

    async def stat(self, path: str) -> FileStat | None:
        place = self._fence.locate(path, folder=True)
        return await to_thread.run_sync(self._stat, place, abandon_on_cancel=True)

    async def list(self, path: str, *, limit: int) -> tuple[DirectoryEntry, ...]:
        """Links are listed as links, names that are not UTF-8 with replacement characters. Nothing is hidden."""
        place = self._fence.locate(path, folder=True)
        return await to_thread.run_sync(self._list, place, limit, abandon_on_cancel=True)

    async def search(self, pattern: str, *, path: str = ".", glob: str | None = None, limit: int) -> SearchResult:
        """Python's `re`, line by line; `glob` is matched below `path`. `.git`, links, binary and huge files skipped.

        A search that runs out of time returns what it found, as truncated; if that is nothing it raises `FileUnusable`.
        """
        return await self._searching.lines(self._fence.locate(path, folder=True), pattern, glob, limit)

    async def find(self, glob: str, *, path: str = ".", limit: int) -> FoundFiles:
        """As `search` walks: `.git`, ignored files and links are not found, a folder that is named itself is."""
        return await self._searching.files(self._fence.locate(path, folder=True), glob, limit)

    async def folder(self, path: str) -> str:
        """The absolute path of an existing folder inside the fence: where a command may start."""
        place = self._fence.locate(path, folder=True)
        await to_thread.run_sync(self._enter, place, abandon_on_cancel=True)
        return os.path.join(place.anchor.real, *place.parts)

    # ── in a worker thread ──

    def _read(self, place: Place, max_bytes: int) -> FileContent:
        with (
            failing_as(place),
            self._fence.folder(place, parent=True) as folder,
            self._fence.file(folder, place) as (descriptor, found),
        ):
            if found.st_size > max_bytes:
                raise FileUnusable(place.asked, f"it has {found.st_size} bytes, more than the {max_bytes} allowed")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(max_bytes + 1)
            if len(data) > max_bytes:  # it grew, or its file system does not know sizes
                raise FileUnusable(place.asked, f"it has more than the {max_bytes} bytes allowed")
        return FileContent(
            path=place.named(),
            data=data,
            sha256=hashlib.sha256(data).hexdigest(),
            mode=stat.S_IMODE(found.st_mode) & 0o777,
        )

    def _write(self, place: Place, data: bytes, expected: str | None) -> FileStat:
        name = place.parts[-1] if place.parts else ""
        # Who expects a certain file does not want folders made for another.
        with (
            failing_as(place),
            self._fence.folder(place, parent=True, create=not expected) as folder,
        ):
            old = self._compare(folder, place, expected)
            temporary = f".{secrets.token_hex(8)}.enginehouse-tmp"
            try:
                written = _write_durably(folder, temporary, data, like=old)
                with _comparing:
                    self._compare(folder, place, expected)
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            with suppress(OSError):  # the file is replaced; if its disk fails now, the next write will say so
                sync_folder(folder)
        return _stat_of(place, written)

    def _delete(self, place: Place, expected: str | None) -> None:
        with failing_as(place), self._fence.folder(place, parent=True) as folder:
            with _comparing:
                self._require_there(folder, place, expected)
                os.unlink(place.parts[-1], dir_fd=folder)
            with suppress(OSError):
                sync_folder(folder)

    def _move(self, place: Place, target: Place, expected: str | None) -> FileStat:
        with (
            failing_as(place),
            self._fence.folder(place, parent=True) as folder,
            failing_as(target),
            self._fence.folder(target, parent=True, create=True) as into,
        ):
            with _comparing:
                found = self._require_there(folder, place, expected)
                if self._fence.look(into, target) is not None:
                    raise FileUnusable(target.asked, "it exists already; nothing was moved over it")
                rename_to_free_name(folder, into, place, target, found)
            for changed in (into, folder):
                with suppress(OSError):
                    sync_folder(changed)
        return _stat_of(target, found)

    def _require_there(self, folder: int, place: Place, expected: str | None) -> os.stat_result:
        found = self._compare(folder, place, expected)
        if found is None:
            raise FileUnusable(place.asked, "it does not exist")
        return found

    def _compare(self, folder: int, place: Place, expected: str | None) -> os.stat_result | None:
        """What is there now, fit to be replaced and as expected."""
        found = self._fence.look(folder, place)
        if found is None:
            if expected:
                raise FileUnusable(place.asked, "it does not exist any more; it was expected to be unchanged")
            return None
        require_plain_file(found, place.asked)
        if not found.st_mode & 0o222:
            raise FileUnusable(place.asked, f"it is read-only (mode {stat.S_IMODE(found.st_mode):04o})")
        if expected == "":
            raise FileUnusable(place.asked, "it exists already; it was expected to be new")
        if expected is not None:
            with (
                self._fence.file(folder, place) as (descriptor, found),
                open(descriptor, "rb", closefd=False) as file,
            ):
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            if actual != expected.lower():
                raise FileUnusable(place.asked, "somebody changed it meanwhile; read it again")
        return found

    def _stat(self, place: Place) -> FileStat | None:
        try:
            with failing_as(place):
                if not place.parts:
                    with self._fence.folder(place, parent=False) as folder:
                        return _stat_of(place, os.fstat(folder))
                with self._fence.folder(place, parent=True) as folder:
                    found = self._fence.look(folder, place)
                    return _stat_of(place, found) if found else None
        except FileUnusable as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in (errno.ENOENT, errno.ENOTDIR):
                return None  # a folder on the way is missing, or is a file
            raise

    def _list(self, place: Place, limit: int) -> tuple[DirectoryEntry, ...]:
        with failing_as(place), self._fence.folder(place, parent=False) as folder:
            own = os.open(".", FOLDER_FLAGS, dir_fd=folder)  # `scandir` moves the position all users of `folder` share
            try:
                with os.scandir(own) as entries:
                    first = sorted(entries, key=lambda entry: entry.name)[: max(limit, 0)]
                return tuple(entry for entry in map(_entry_of, first) if entry is not None)
            finally:
                os.close(own)

    def _enter(self, place: Place) -> None:
        with failing_as(place), self._fence.folder(place, parent=False):
            pass


def _write_durably(folder: int, name: str, data: bytes, *, like: os.stat_result | None) -> os.stat_result:
    """Make a file with the owner and permission bits of an old one; without one, as the umask says."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600 if like else 0o666, dir_fd=folder)
    try:
        with memoryview(data) as rest:
            done = 0
            while done < len(rest):
                done += os.write(descriptor, rest[done:])
        if like:
            if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):  # only root can give files away; others keep what they may
                    os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode) & 0o777)
        os.fsync(descriptor)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _stat_of(place: Place, found: os.stat_result) -> FileStat:
    kind: Literal["file", "directory", "other"] = "other"
    if stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISDIR(found.st_mode):
        kind = "directory"
    return FileStat(
        path=place.named(),
        kind=kind,
        size_bytes=found.st_size if kind == "file" else 0,
        modified_at_ms=found.st_mtime_ns // 1_000_000,
    )


def _entry_of(entry: os.DirEntry[str]) -> DirectoryEntry | None:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return None  # gone since it was listed
    kind: Literal["file", "directory", "link", "other"] = "other"
    if stat.S_ISLNK(found.st_mode):
        kind = "link"
    elif stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISDIR(found.st_mode):
        kind = "directory"
    return DirectoryEntry(
        name=os.fsencode(entry.name).decode("utf-8", "replace"),
        kind=kind,
        size_bytes=found.st_size if kind == "file" else 0,
    )
