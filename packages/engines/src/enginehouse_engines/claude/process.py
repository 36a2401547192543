"""One process of the CLI: how it is started, what it may see, and that nothing of it survives.

Rule: nothing is inherited. Environment, descriptors and temporary folder are given; the key goes through a pipe, so it
is in no argument, no environment and no file. Where the kernel allows it the CLI has a PID namespace of its own, so
that whoever dies first takes everything along; elsewhere the keeper stands in front.
"""

import contextlib
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from subprocess import PIPE
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process

from enginehouse_engines.claude.invocation import Start, arguments_of, environment_of
from enginehouse_engines.claude.options import Options, options_of
from enginehouse_protocol.engine import EngineHome, Secret
from enginehouse_protocol.errors import EngineUnavailable

MISSING: Final = "Claude is not installed here ({problem}); install it with `pip install 'enginehouse[claude]'`"
SDK: Final = "claude_agent_sdk"

_NAMESPACE: Final = ("--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--die-with-parent", "--")
_PROBE_S: Final = 5.0
_GRACE_S: Final = 0.7
_REAP_S: Final = 1.5
_KEPT_LINES: Final = 40
_KEY_ROOM: Final = 4096


class Cli:
    """The running CLI. Its stdout is read by the transport alone."""

    def __init__(self, process: Process, log: logging.Logger, *, kept: bool = False) -> None:
        """`kept`: a keeper stands in front, which must live long enough to end what is below it."""
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._process = process
        self._stdin = process.stdin
        self.stdout: ByteReceiveStream = process.stdout
        self._stderr: ByteReceiveStream = process.stderr
        self._complaints: deque[str] = deque(maxlen=_KEPT_LINES)
        self._complained = anyio.Event()
        self._log = log
        self._kept = kept

    @property
    def pid(self) -> int:
        """Of what we started: with a namespace or a keeper the CLI is below it."""
        return self._process.pid

    async def write(self, line: bytes) -> None:
        """Raises `anyio.BrokenResourceError` or `ClosedResourceError` when the process has ended."""
        await self._stdin.send(line)

    async def end_input(self) -> None:
        await self._stdin.aclose()

    async def listen_to_complaints(self) -> None:
        """Keep the end of stderr: only there the CLI says why it would not start."""
        rest = b""
        try:
            async for chunk in self._stderr:
                *lines, rest = (rest + chunk).split(b"\n")
                rest = rest[-_KEY_ROOM:]
                for line in lines:
                    self._complaints.append(line.decode(errors="replace"))
                    self._log.debug("claude: %s", self._complaints[-1])
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            if rest:
                self._complaints.append(rest.decode(errors="replace"))
            self._complained.set()

    async def last_words(self) -> str:
        """How it ended and what it said, once it has ended. Bounded: what it left behind may hold the pipe open."""
        with anyio.move_on_after(_REAP_S):
            await self._process.wait()
            await self._complained.wait()
        status = self._process.returncode
        how = "stopped answering" if status is None else f"ended with status {status}"
        said = "\n".join(line for line in self._complaints if line.strip())
        return f"claude {how}" + (f": {said[-1000:]}" if said else "")

    def kill(self) -> None:
        """End it and everything below it, now. Under a keeper that takes a moment."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                if self._kept:
                    self._process.terminate()
                else:
                    self._process.kill()

    async def end(self, *, politely: bool) -> None:
        """Let it write its store down if it is idle, then make sure. Never longer than two seconds or so."""
        if politely and self._process.returncode is None:
            with anyio.move_on_after(_GRACE_S):
                await self.end_input()
                await self._process.wait()
        self.kill()
        with anyio.move_on_after(_REAP_S):
            await self._process.wait()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            with anyio.move_on_after(_REAP_S):
                await self._process.wait()


@asynccontextmanager
async def running(start: Start, home: EngineHome) -> AsyncGenerator[Cli]:
    """A process and its private folder. Whatever is left of either is gone afterwards.

    Raises:
        EngineUnavailable: there is no `claude` to start.
    """
    options = options_of(start.access.provider)
    key_fd = -1 if start.access.secret is None else _through_a_pipe(start.access.secret)
    try:
        folder = await anyio.to_thread.run_sync(_private_folder)
    except BaseException:
        _close(key_fd)
        raise
    try:
        process = await _started(start, home, options, folder, key_fd)
        cli = Cli(process, home.log, kept=not namespace())
        try:
            yield cli
        finally:
            with anyio.CancelScope(shield=True):
                await cli.end(politely=False)
                await process.aclose()
    finally:
        _close(key_fd)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_remove, folder)


async def _started(start: Start, home: EngineHome, options: Options, folder: Path, key_fd: int) -> Process:
    def command() -> tuple[list[str], dict[str, str]]:
        line = [_executable(options), *arguments_of(start, options, folder)]
        return _contained(home, line), environment_of(start.access, options, home, folder, key_fd)

    try:
        line, environment = await anyio.to_thread.run_sync(command)
        return await anyio.open_process(
            line,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=start.directory,
            env=environment,
            start_new_session=True,
            pass_fds=(key_fd,) if key_fd >= 0 else (),
        )
    except OSError as error:
        raise EngineUnavailable(f"claude cannot be started in {start.directory}: {error}") from error


def _executable(options: Options) -> str:
    if options.executable:
        found = options.executable
    else:
        spec = importlib.util.find_spec(SDK)
        if spec is None or spec.origin is None:
            raise EngineUnavailable(MISSING.format(problem=f"no module named {SDK}"))
        found = str(Path(spec.origin).with_name("_bundled") / "claude")
    if not os.access(found, os.X_OK):
        raise EngineUnavailable(f"{found} is no program that can be run; reinstall it, or set the option `executable`")
    return found


def _private_folder() -> Path:
    """Short, because sockets are made in it and their paths are limited to a hundred bytes."""
    return Path(tempfile.mkdtemp(prefix="eh-claude-"))


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _through_a_pipe(key: Secret) -> int:
    """The reading end; the other is closed, so whoever reads gets the key and then the end."""
    value = key.reveal().strip().encode()
    if len(value) > _KEY_ROOM:
        raise EngineUnavailable("the API key is too long to be one; store it again")
    reader, writer = os.pipe()
    try:
        os.write(writer, value)
    finally:
        os.close(writer)
    return reader


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _contained(home: EngineHome, command: Sequence[str]) -> list[str]:
    namespaced = namespace()
    return [namespaced, *_NAMESPACE, *command] if namespaced else list(home.kept(command))


@cache
def namespace() -> str:
    """Path of a `bwrap` that may make PID namespaces here; empty where there is none or the kernel refuses."""
    found = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
    if found is None:
        return ""
    try:
        tried = subprocess.run([found, *_NAMESPACE, "true"], env={}, capture_output=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found if tried.returncode == 0 else ""
