"""Runs one shell command at a time per call, many side by side, and leaves nothing of them behind.

Rule: whatever a command started is dead when `run` returns, however it ended: by itself, by time, by cancellation.
"""

import errno
import fcntl
import functools
import logging
import os
import secrets
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from enginehouse_core.workspace import leftovers, process_tree
from enginehouse_protocol.errors import CommandRefused, FileUnusable
from enginehouse_protocol.workspace import CommandResult, OnOutput

_log = logging.getLogger(__name__)
T = TypeVar("T")

KEPT_HEAD_BYTES = 8 * 1024 * 1024
KEPT_TAIL_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_AFTERMATH_BYTES = 2 * 1024 * 1024
"""No more than this is read once everything is dead; a pipe holds at most 1 MiB, the rest would be a stranger's."""
_GRACE_S = 0.3
_END_LIMIT_S = 1.3
_WAIT_LIMIT_S = 0.2
_RECENT_S = 2.0
_NOTED_AFTER_S = 0.05
"""Pid and start time are recorded of what runs longer; until then the marker alone would have to find it."""


class ProcessRunner:
    """The commands of one session. Safe to call from several tasks at once.

    `environment` is all a command gets, besides the markers by which it is found again. `records` is a folder below
    the run-time folder; `leftovers.end_leftovers` reads it at the next start.
    """

    def __init__(self, session_id: str, environment: Mapping[str, str], records: Path) -> None:
        self._session_id = session_id
        self._environment = {**environment, process_tree.SESSION_MARKER: session_id}
        self._records = records
        self._shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"

    async def run(
        self,
        command: str,
        *,
        cwd: str,
        time_limit_s: float,
        on_output: OnOutput | None = None,
        on_start: Callable[[], None] | None = None,
        keep: bool = True,
    ) -> CommandResult:
        """Run `command` in the shell, in the absolute folder `cwd`, without stdin, stdout and stderr in one pipe.

        `on_output` hears everything in order, in chunks that never cut a UTF-8 character in two; while it works, the
        command waits. A command that outlives `time_limit_s` is ended and reported as `timed_out`. On cancellation
        the tree is dead within 1.5 s, then the cancellation goes on. `on_start` is called once the command runs; with
        `keep` false the result has no output.

        Raises:
            FileUnusable: `cwd` is no folder one can be in.
            CommandRefused: the system cannot start it.
        """
        begin = time.monotonic()
        token = secrets.token_hex(16)
        tree: _Tree | None = None
        try:
            await self._note(leftovers.new_record(self._session_id, token))
            reader, writer = _open_pipe()
            try:
                since = process_tree.start_clock()
                try:
                    process = await self._start(command, cwd, token, writer)
                finally:
                    os.close(writer)
                tree = _Tree(process, token, since, begin)
                if on_start is not None:
                    on_start()
                output = _Output(reader, on_output, keep=keep)
                timed_out = await self._follow(tree, output, time_limit_s)
            finally:
                os.close(reader)
        finally:
            if tree is None:
                with anyio.CancelScope(shield=True):
                    await _in_thread(functools.partial(self._forget, token))
        if output.failure is not None:
            raise output.failure
        return _result(output, process.returncode, "timed_out" if timed_out else "exited", begin)

    async def _follow(self, tree: "_Tree", output: "_Output", time_limit_s: float) -> bool:
        """Until the command and all it started are dead and all it wrote is read. True when time was up."""
        timed_out = False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(output.pump, tasks.cancel_scope)
            tasks.start_soon(self._note_start, tree)
            try:
                with anyio.move_on_after(time_limit_s) as limit:
                    await tree.process.wait()
                timed_out = limit.cancelled_caught
            finally:
                tree.noting.cancel()
                with anyio.CancelScope(shield=True):
                    await _in_thread(functools.partial(self._end, tree))
                    with anyio.move_on_after(_WAIT_LIMIT_S):
                        await tree.process.wait()
                        process_tree.reap_adopted(tree.process.pid)
            output.finish()
        return timed_out

    def _end(self, tree: "_Tree") -> None:
        survivors = tree.end()
        if survivors:  # the record stays, so that the next start tries again
            pids = ", ".join(str(one.pid) for one in survivors)
            _log.warning("a command of session %s cannot be ended: processes %s", self._session_id, pids)
        else:
            tree.ended = True
            self._forget(tree.token)

    async def _start(self, command: str, cwd: str, token: str, writer: int) -> anyio.abc.Process:
        environment = {**self._environment, process_tree.COMMAND_MARKER: token}
        process: anyio.abc.Process | None = None
        try:
            # Shielded: cancelled half-way, the process would be there and nobody would know it.
            with anyio.CancelScope(shield=True):
                process = await anyio.open_process(
                    [self._shell, "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=writer,
                    stderr=writer,
                    cwd=cwd,
                    env=environment,
                    start_new_session=True,
                )
        except ValueError as problem:  # a NUL, or a lone surrogate
            raise CommandRefused(f"the command cannot be passed to {self._shell}: {problem}") from problem
        except OSError as problem:
            reason = await _in_thread(functools.partial(_folder_problem, cwd))
            if reason is not None:
                raise FileUnusable(cwd, reason) from problem
            if problem.errno == errno.E2BIG:
                raise CommandRefused(
                    f"the command is too long for this system ({len(command):,} characters); write it to a file and "
                    "run that"
                ) from problem
            raise CommandRefused(f"{self._shell} cannot be started: {problem.strerror}") from problem
        assert process is not None  # a shield swallows nothing
        return process

    async def _note(self, record: leftovers.CommandRecord) -> None:
        await _in_thread(functools.partial(self._write, record))

    async def _note_start(self, tree: "_Tree") -> None:
        with tree.noting:
            await anyio.sleep(_NOTED_AFTER_S)
        if not tree.noting.cancelled_caught:
            await _in_thread(functools.partial(self._write_start, tree))

    def _write_start(self, tree: "_Tree") -> None:
        root = process_tree.process(tree.process.pid)
        if root is None or not root.alive or tree.ended:
            return
        record = leftovers.new_record(self._session_id, tree.token)
        self._write(msgspec.structs.replace(record, pid=root.pid, started=root.started))
        if tree.ended:
            self._forget(tree.token)

    def _write(self, record: leftovers.CommandRecord) -> None:
        try:
            leftovers.write_record(self._records, record)
        except OSError as problem:  # a full disk must not stop a command whose keeper watches anyway
            _log.warning("a command of session %s is not recorded: %s", self._session_id, problem)

    def _forget(self, token: str) -> None:
        try:
            leftovers.remove_record(self._records, token)
        except OSError as problem:
            _log.warning("the record of a command of session %s stays: %s", self._session_id, problem)


class _Tree:
    """A command and all that came of it."""

    def __init__(self, process: anyio.abc.Process, token: str, since: int, begin: float) -> None:
        self.process = process
        self.token = token
        self.ended = False
        self.noting = anyio.CancelScope()
        self._since = since
        self._begin = begin

    def end(self) -> list[process_tree.Process]:
        """Blocking, for a worker thread."""
        survivors = process_tree.end(
            self._living, grace_s=_GRACE_S, limit_s=_END_LIMIT_S, reaped_elsewhere=(self.process.pid,)
        )
        process_tree.reap_adopted()
        return survivors

    def _living(self) -> list[process_tree.Process]:
        root: int | None = self.process.pid
        if self.process.returncode is not None and process_tree.process(self.process.pid) is not None:
            root = None  # waited for, and yet there: the number is somebody else's by now
        recent = time.monotonic() - self._begin < _RECENT_S
        return process_tree.of_command(self.token, root, since=self._since, recent=recent)


class _Output:
    """Reads the pipe, keeps head and tail, tells. At most one chunk is under way: a slow listener slows the command."""

    def __init__(self, reader: int, on_output: OnOutput | None, *, keep: bool) -> None:
        self.failure: Exception | None = None
        self._head_bytes, self._most_tail_bytes = (KEPT_HEAD_BYTES, KEPT_TAIL_BYTES) if keep else (0, 0)
        self.dropped_bytes = 0
        self._reader = reader
        self._on_output = on_output
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._cut = b""
        self._waiting = anyio.CancelScope()
        self._finishing = False

    async def pump(self, scope: anyio.CancelScope) -> None:
        """Until the pipe ends, or `finish` says that nobody writes any more. `failure` is what the listener raised."""
        try:
            ended = False
            while not ended and not self._finishing:
                with anyio.CancelScope() as self._waiting:
                    await anyio.wait_readable(self._reader)
                if not self._finishing:
                    ended = await self._pass_on()
            read_before = self._total()
            while not ended and self._total() - read_before < _AFTERMATH_BYTES:
                before = self._total()
                ended = await self._pass_on() or self._total() == before
            if self._cut and self._on_output is not None:
                await self._on_output(self._cut)
        except Exception as problem:  # noqa: BLE001 - raised again, without the group around it, by `run`
            self.failure = problem
            scope.cancel()

    def finish(self) -> None:
        self._finishing = True
        self._waiting.cancel()

    def content(self) -> bytes:
        return b"".join((self._head, *self._tail))

    async def _pass_on(self) -> bool:
        """Everything that is there, up to a chunk. True at the end of the pipe."""
        data = bytearray()
        ended = False
        while len(data) < _CHUNK_BYTES:
            try:
                part = os.read(self._reader, 65_536)
            except BlockingIOError:
                break
            if not part:
                ended = True
                break
            data += part
        if data:
            self._keep(bytes(data))
            if self._on_output is not None:
                whole = self._cut + data
                length = _whole_characters(whole)
                self._cut = whole[length:]
                if length:
                    await self._on_output(whole[:length])
        return ended

    def _keep(self, data: bytes) -> None:
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_bytes += len(data)
        while self._tail_bytes > self._most_tail_bytes:
            excess = self._tail_bytes - self._most_tail_bytes
            first = self._tail.popleft()
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
            gone = min(excess, len(first))
            self._tail_bytes -= gone
            self.dropped_bytes += gone

    def _total(self) -> int:
        return len(self._head) + self._tail_bytes + self.dropped_bytes


def _whole_characters(data: bytes) -> int:
    """How many bytes of `data` come before a UTF-8 character that is not complete yet. Bytes that are no UTF-8 pass."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        needed = 2 if 0xC2 <= byte <= 0xDF else 3 if 0xE0 <= byte <= 0xEF else 4 if 0xF0 <= byte <= 0xF4 else 1
        return len(data) - back if needed > back else len(data)
    return len(data)


def _open_pipe() -> tuple[int, int]:
    try:
        reader, writer = os.pipe()
    except OSError as problem:
        raise CommandRefused(f"no pipe for the command's output: {problem.strerror}") from problem
    os.set_blocking(reader, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        try:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 262_144)  # fewer turns of the loop while much is written
        except OSError:
            pass
    return reader, writer


def _folder_problem(cwd: str) -> str | None:
    if not os.path.lexists(cwd):
        return "no such folder to run a command in"
    if not os.path.isdir(cwd):
        return "not a folder, so no command can run in it"
    if not os.access(cwd, os.X_OK):
        return "permission denied, so no command can run in it"
    return None


def _result(
    output: _Output, returncode: int | None, ended: Literal["exited", "timed_out"], begin: float
) -> CommandResult:
    return CommandResult(
        output=output.content(),
        dropped_bytes=output.dropped_bytes,
        exit_code=returncode if returncode is not None and returncode >= 0 else None,
        signal=-returncode if returncode is not None and returncode < 0 else None,
        ended=ended,
        duration_ms=int((time.monotonic() - begin) * 1000),
    )


async def _in_thread(work: Callable[[], T]) -> T:
    """A thread for each: ending a tree must never queue behind what keeps the shared threads busy."""
    return await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))
