"""Commands nobody waits for: started, read now and then, stopped.

Rule: they belong to the workspace. When it is left, every one of them and all it started is dead. What they print while
nobody looks is kept up to a bound; then its end counts, not its beginning.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import anyio
import anyio.abc

from enginehouse_protocol.errors import CommandRefused, EnginehouseError
from enginehouse_protocol.workspace import CommandProgress, CommandResult, OnOutput

_log = logging.getLogger(__name__)

AT_ONCE = 16
ENDED_KEPT = 32
"""So many of those that have ended can still be read."""
UNREAD_BYTES = 1024 * 1024
TIME_LIMIT_S = 24 * 3600.0
_SETTLING_S = 0.15
"""A reader that waited gets what follows within this, too: one line seldom comes alone."""


class Runner(Protocol):
    """Runs commands so that nothing they started outlives the call, also when it is cancelled."""

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
        """`cwd` is the absolute path of an existing folder. With `keep` false the result has no output."""
        ...


class StartedCommand:
    """Satisfies `enginehouse_protocol.workspace.BackgroundCommand`."""

    def __init__(self, command: str) -> None:
        self.id = f"bg_{secrets.token_hex(4)}"
        self.command = command
        self.running = anyio.Event()
        """Set when it runs, or never will."""
        self.gone = anyio.Event()
        self.scope = anyio.CancelScope()
        self.failure: EnginehouseError | None = None
        """Why it could not be started."""
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._dropped_bytes = 0
        self._news = anyio.Event()
        self._ended: Literal["exited", "timed_out", "stopped", "failed"] | None = None
        self._result: CommandResult | None = None

    async def read(self, *, wait_s: float = 0.0) -> CommandProgress:
        if wait_s > 0 and not self._unread and self._ended is None:
            with anyio.move_on_after(wait_s):
                await self._something_new()
        output, dropped = b"".join(self._unread), self._dropped_bytes
        self._unread.clear()
        self._unread_bytes = self._dropped_bytes = 0
        return CommandProgress(
            output=output,
            dropped_bytes=dropped,
            ended=self._ended,
            exit_code=self._result.exit_code if self._result else None,
            signal=self._result.signal if self._result else None,
        )

    async def stop(self) -> None:
        self.scope.cancel()
        await self.gone.wait()

    async def live(self, runner: Runner, cwd: str) -> None:
        """The whole life of it. Cancelling ends it."""
        try:
            with self.scope:
                self._result = await runner.run(
                    self.command,
                    cwd=cwd,
                    time_limit_s=TIME_LIMIT_S,
                    on_output=self._hear,
                    on_start=self.running.set,
                    keep=False,
                )
            result = self._result
            self._ended = "stopped" if result is None else "timed_out" if result.ended == "timed_out" else "exited"
        except EnginehouseError as error:
            self.failure, self._ended = error, "failed"
        except Exception:  # noqa: BLE001 one command's end must not take the others along
            _log.exception("a background command was lost")
            self._ended = "failed"
        finally:
            self._ended = self._ended or "stopped"
            self._tell()
            self.running.set()
            self.gone.set()

    async def _something_new(self) -> None:
        await self._news.wait()
        while self._ended is None:
            with anyio.move_on_after(_SETTLING_S) as settled:
                await self._news.wait()
            if settled.cancelled_caught:
                return

    async def _hear(self, data: bytes) -> None:
        self._unread.append(data)
        self._unread_bytes += len(data)
        while self._unread_bytes > UNREAD_BYTES:
            excess = self._unread_bytes - UNREAD_BYTES
            first = self._unread.popleft()
            if len(first) > excess:
                self._unread.appendleft(first[excess:])
            gone = min(excess, len(first))
            self._unread_bytes -= gone
            self._dropped_bytes += gone
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()


class BackgroundCommands:
    """All of one workspace. Use as an async context manager; leaving it ends them."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._tasks: anyio.abc.TaskGroup | None = None
        self._commands: list[StartedCommand] = []

    async def open(self) -> None:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()

    async def close(self) -> None:
        """End them all. In the task that opened; an error on its way through there is not the commands' business, so
        the group does not hear of it and cannot wrap it."""
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)

    async def start(self, command: str, cwd: str) -> StartedCommand:
        """Returns once it runs.

        Raises:
            FileUnusable, CommandRefused: it does not.
        """
        if self._tasks is None:
            raise CommandRefused("the session's workspace is closed")
        running = [one for one in self._commands if not one.gone.is_set()]
        if len(running) >= AT_ONCE:
            raise CommandRefused(f"{AT_ONCE} commands run in the background already; stop one first")
        started = StartedCommand(command)
        self._commands.append(started)
        self._tasks.start_soon(started.live, self._runner, cwd)
        try:
            await started.running.wait()
        except BaseException:
            started.scope.cancel()  # whoever asked for it is gone and does not know its name
            raise
        if started.failure is not None:
            self._commands.remove(started)
            raise started.failure
        ended = [one for one in self._commands if one.gone.is_set()]
        for old in ended[:-ENDED_KEPT]:
            self._commands.remove(old)
        return started

    @property
    def started(self) -> tuple[StartedCommand, ...]:
        return tuple(self._commands)
