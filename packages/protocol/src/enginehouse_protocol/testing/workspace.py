"""A small honest workspace over one folder: real files, real commands.

Rule: a command is dead when `run` returns, however that came about. Its fence is a path comparison, its
reach the process group; core has the real one.
"""

import fnmatch
import hashlib
import os
import re
import secrets
import signal
import stat
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Literal, TypeVar

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import Process

from enginehouse_protocol.errors import CommandRefused, FileUnusable, PathRefused, UsageError
from enginehouse_protocol.workspace import (
    CommandProgress,
    CommandResult,
    DirectoryEntry,
    FileContent,
    FileStat,
    FoundFiles,
    OnOutput,
    Root,
    SearchHit,
    SearchResult,
)

T = TypeVar("T")
REAP_LIMIT_S = 2.0
VANISH_LIMIT_S = 0.1
"""A killed group is given this long to vanish. Where nobody reaps orphans its zombies stay visible longer."""


class TempCommand:
    """A background command that writes to a file, which is read from where the last read ended."""

    def __init__(self, command: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.id = f"bg_{secrets.token_hex(4)}"
        self.command = command
        self._process = process
        self._log = log
        self._read_bytes = 0
        self._stopped = False

    async def read(self, *, wait_s: float = 0.0) -> CommandProgress:
        with anyio.move_on_after(wait_s):
            while self._process.poll() is None and self._log.stat().st_size == self._read_bytes:  # noqa: ASYNC110
                await anyio.sleep(0.01)  # a file does not say that it grew
        code = self._process.poll()
        output = (await anyio.to_thread.run_sync(self._log.read_bytes))[self._read_bytes :]
        self._read_bytes += len(output)
        ended: Literal["exited", "stopped"] | None = None
        if code is not None:
            ended = "stopped" if self._stopped else "exited"
        return CommandProgress(
            output=output,
            dropped_bytes=0,
            ended=ended,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
        )

    async def stop(self) -> None:
        if self._process.poll() is None:
            self._stopped = True
            await anyio.to_thread.run_sync(_kill, self._process)


class TempWorkspace:
    """A `Workspace` for tests. `directory` is the only root; the scratch folder is made beside it."""

    def __init__(self, directory: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._scratch = self.directory.parent / f"{self.directory.name}.scratch"
        self._scratch.mkdir(exist_ok=True)
        self._environment = (
            dict(environment)
            if environment is not None
            else {
                "PATH": os.environ.get("PATH", os.defpath),
                "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
        )
        self.commands: list[str] = []
        """Every command that was run, in order."""
        self._background: list[TempCommand] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _kill_all, self._processes)  # nobody has to close a folder

    @property
    def roots(self) -> tuple[Root, ...]:
        return (Root(path=str(self.directory)),)

    @property
    def scratch(self) -> str:
        return str(self._scratch)

    def display(self, path: str) -> str:
        absolute = os.path.normpath(self.directory / path)
        relative = os.path.relpath(absolute, self.directory)
        return absolute if relative.startswith("..") else relative

    async def read(self, path: str, *, max_bytes: int) -> FileContent:
        content = await self._in_thread(path, lambda file: _read(file, path, max_bytes))
        return msgspec.structs.replace(content, path=self.display(path))

    async def write(self, path: str, data: bytes, *, expected_sha256: str | None = None) -> FileStat:
        written = await self._in_thread(path, lambda file: _write(file, path, data, expected_sha256))
        return msgspec.structs.replace(written, path=self.display(path))

    async def delete(self, path: str, *, expected_sha256: str | None = None) -> None:
        def work(file: Path) -> None:
            _require_file(file, path, expected_sha256)
            file.unlink()

        await self._in_thread(path, work)

    async def move(self, path: str, to: str, *, expected_sha256: str | None = None) -> FileStat:
        target = await self._in_thread(to, lambda file: file)

        def work(file: Path) -> FileStat:
            _require_file(file, path, expected_sha256)
            if target.exists():
                raise FileUnusable(to, "it exists already")
            target.parent.mkdir(parents=True, exist_ok=True)
            return _stat(file.rename(target), self.display(to))

        return await self._in_thread(path, work)

    async def stat(self, path: str) -> FileStat | None:
        shown = self.display(path)
        return await self._in_thread(path, lambda file: _stat(file, shown) if file.exists() else None)

    async def list(self, path: str, *, limit: int) -> tuple[DirectoryEntry, ...]:
        return await self._in_thread(path, lambda folder: _list(folder, path)[:limit])

    async def search(self, pattern: str, *, path: str = ".", glob: str | None = None, limit: int) -> SearchResult:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{pattern!r} is no regular expression: {error}") from error

        def look(below: Path) -> SearchResult:
            hits = list(_hits(self.display, below, expression, glob, limit + 1))
            return SearchResult(hits=tuple(hits[:limit]), truncated=len(hits) > limit)

        return await self._in_thread(path, look)

    async def find(self, glob: str, *, path: str = ".", limit: int) -> FoundFiles:
        def look(below: Path) -> FoundFiles:
            files = sorted(file for file in below.rglob("*") if file.is_file() and ".git" not in file.parts)
            names = [self.display(str(file)) for file in files if file.relative_to(below).match(glob)]
            return FoundFiles(paths=tuple(names[:limit]), truncated=len(names) > limit)

        return await self._in_thread(path, look)

    async def start(self, command: str, *, cwd: str = ".") -> TempCommand:
        def work(folder: Path) -> TempCommand:
            log = self._scratch / f"{secrets.token_hex(4)}.log"
            with log.open("wb") as out:
                try:
                    process = subprocess.Popen(
                        ["/bin/sh", "-c", command],
                        cwd=folder,
                        env=self._environment,
                        stdin=DEVNULL,
                        stdout=out,
                        stderr=STDOUT,
                        start_new_session=True,
                    )
                except ValueError as error:
                    raise CommandRefused(f"not a command a shell can take: {error}") from error
            self._processes.append(process)
            return TempCommand(command, process, log)

        self.commands.append(command)
        started = await self._in_thread(cwd, work)
        self._background.append(started)
        return started

    @property
    def background(self) -> tuple[TempCommand, ...]:
        return tuple(self._background)

    async def run(
        self, command: str, *, cwd: str = ".", time_limit_s: float, on_output: OnOutput | None = None
    ) -> CommandResult:
        folder = await self._in_thread(cwd, lambda path: path)
        self.commands.append(command)
        started = time.monotonic()
        output = bytearray()
        ended: Literal["exited", "timed_out"] = "exited"
        process = await self._start(command, folder)
        assert process.stdout is not None
        try:
            with anyio.move_on_after(time_limit_s) as limit:
                async for chunk in process.stdout:
                    output += chunk
                    if on_output is not None:
                        await on_output(chunk)
                await process.wait()
            if limit.cancelled_caught:
                ended = "timed_out"
        finally:
            await _end(process)
        code = process.returncode
        assert code is not None
        return CommandResult(
            output=bytes(output),
            dropped_bytes=0,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            ended=ended,
            duration_ms=round((time.monotonic() - started) * 1000),
        )

    async def _start(self, command: str, folder: Path) -> Process:
        process: Process | None = None
        try:
            with anyio.CancelScope(shield=True):  # cancelled half-way, what it started would be nobody's
                process = await anyio.open_process(
                    ["/bin/sh", "-c", command],
                    cwd=folder,
                    env=self._environment,
                    stdin=DEVNULL,
                    stdout=PIPE,
                    stderr=STDOUT,
                    start_new_session=True,
                )
        except ValueError as error:  # a NUL, or a lone surrogate
            raise CommandRefused(f"not a command a shell can take: {error}") from error
        assert process is not None  # a shield swallows nothing
        return process

    async def _in_thread(self, path: str, work: Callable[[Path], T]) -> T:
        def fenced() -> T:
            try:
                resolved = (self.directory / path).resolve()
            except ValueError as error:  # a NUL, or a lone surrogate
                raise PathRefused(path, str(error)) from error
            if not any(resolved.is_relative_to(home) for home in (self.directory, self._scratch)):
                raise PathRefused(path, "outside the workspace")
            try:
                return work(resolved)
            except OSError as error:
                raise FileUnusable(path, error.strerror or str(error)) from error

        return await anyio.to_thread.run_sync(fenced)


async def _end(process: Process) -> None:
    """Kill what is left of the command's group, reap it, and see the group gone."""
    _signal_group(process.pid, signal.SIGKILL)
    with anyio.move_on_after(REAP_LIMIT_S, shield=True):
        await process.aclose()
    with anyio.move_on_after(VANISH_LIMIT_S, shield=True):
        while _signal_group(process.pid, 0):  # noqa: ASYNC110 - its members are nobody's to wait for
            await anyio.sleep(0.005)


def _signal_group(group: int, number: int) -> bool:
    """Whether the group was there to get it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _kill(process: "subprocess.Popen[bytes]") -> None:
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _kill_all(processes: "list[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        _kill(process)


def _require_file(file: Path, path: str, expected_sha256: str | None) -> None:
    if not file.is_file():
        raise FileUnusable(path, "not a file" if file.exists() else "it does not exist")
    if expected_sha256 is not None and hashlib.sha256(file.read_bytes()).hexdigest() != expected_sha256:
        raise FileUnusable(path, "somebody changed it meanwhile")


def _read(file: Path, path: str, max_bytes: int) -> FileContent:
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise FileUnusable(path, "not a regular file")
    if found.st_size > max_bytes:
        raise FileUnusable(path, f"larger than {max_bytes} bytes")
    data = file.read_bytes()
    return FileContent(path=path, data=data, sha256=hashlib.sha256(data).hexdigest(), mode=stat.S_IMODE(found.st_mode))


def _write(file: Path, path: str, data: bytes, expected_sha256: str | None) -> FileStat:
    file.parent.mkdir(parents=True, exist_ok=True)
    if expected_sha256 is not None:
        there = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""
        if there != expected_sha256:
            raise FileUnusable(path, "somebody changed it meanwhile")
    mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o644
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_bytes(data)
    fresh.chmod(mode)
    fresh.replace(file)
    return _stat(file, path)


def _stat(file: Path, path: str) -> FileStat:
    found = file.stat()
    kind: Literal["file", "directory", "other"] = (
        "file" if file.is_file() else "directory" if file.is_dir() else "other"
    )
    return FileStat(path=path, kind=kind, size_bytes=found.st_size, modified_at_ms=found.st_mtime_ns // 1_000_000)


def _list(folder: Path, path: str) -> tuple[DirectoryEntry, ...]:
    if not folder.is_dir():
        raise FileUnusable(path, "not a folder")
    entries: list[DirectoryEntry] = []
    for child in sorted(folder.iterdir()):
        kind: Literal["file", "directory", "link", "other"] = (
            "link" if child.is_symlink() else "file" if child.is_file() else "directory" if child.is_dir() else "other"
        )
        entries.append(DirectoryEntry(name=child.name, kind=kind, size_bytes=child.lstat().st_size))
    return tuple(entries)


def _hits(
    display: Callable[[str], str], below: Path, expression: re.Pattern[str], glob: str | None, most: int
) -> Iterator[SearchHit]:
    for file in sorted(below.rglob("*")) if below.is_dir() else [below]:
        if not file.is_file() or ".git" in file.parts or (glob and not fnmatch.fnmatch(file.name, glob)):
            continue
        data = file.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if expression.search(line):
                yield SearchHit(path=display(str(file)), line_number=number, line=line)
                most -= 1
                if most == 0:
                    return
