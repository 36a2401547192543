"""The one line to the hub there is at a time. The only place that reaches the hub, and reaches it again.

Rule: one task connects and everybody else waits for it. When it stops trying it has a reason, and everybody, now and
later, hears that reason.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import ByteStream, TaskStatus

from enginehouse_hosts.client.line import Line
from enginehouse_protocol.errors import ConnectionLost, EnginehouseError, ServiceUnavailable
from enginehouse_protocol.methods import Initialize
from enginehouse_protocol.rpc import from_wire, to_wire

Dial = Callable[[], Awaitable[ByteStream]]
"""Reaches the hub, starting it if need be. The stream is the caller's. Raises leaves of `LocalSocketError`."""

DEATHS = 5
DEATHS_WITHIN_S = 60.0
"""So many lost connections in so short a time are no accident: starting the hub once more only repeats it."""

_log = logging.getLogger(__name__)


class Deaths:
    """When connections were lost, as far back as it matters."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def too_many(self, now_s: float) -> bool:
        """Count one more."""
        self._times.append(now_s)
        while self._times[0] <= now_s - DEATHS_WITHIN_S:
            self._times.popleft()
        return len(self._times) >= DEATHS


class Link:
    """Run `keep` as a task for as long as the hub is wanted."""

    def __init__(self, dial: Dial, hello: Initialize, hint: str) -> None:
        """`hint` tells people where to look when the hub keeps dying."""
        self._dial = dial
        self._hello = hello
        self._hint = hint
        self._deaths = Deaths()
        self._line: Line | None = None
        self._failure: EnginehouseError | None = None
        self._was_up = False
        self._up_for_views = anyio.Event()
        self._up = anyio.Event()

    async def keep(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Started once there is a connection. What prevents the first one is raised, what prevents a later one is told
        to everybody who waits."""
        try:
            while True:
                await self._once(task_status)
        except EnginehouseError as error:
            if not self._was_up:
                raise
            self._give_up(error)
        except Exception as error:
            if not self._was_up:
                raise
            _log.exception("reaching the hub again failed")
            self._give_up(ServiceUnavailable(f"reaching the hub again failed: {type(error).__name__}: {error}"))
        finally:
            self._give_up(ConnectionLost("it was closed here"))

    async def _once(self, task_status: TaskStatus[None]) -> None:
        """One connection, until it is lost. Returns if another one makes sense."""
        line = Line(await self._dial())

        def up() -> None:
            self._line = line
            # Views first: who sends a message must find its view attached, or its questions find nobody to answer.
            self._up_for_views.set()
            self._up.set()
            if not self._was_up:
                self._was_up = True
                task_status.started()

        def down() -> None:
            self._line = None
            self._up_for_views, self._up = anyio.Event(), anyio.Event()
            if line.ending is not None:
                self._give_up(ConnectionLost(line.ending))

        try:
            why = await line.live(self._hello, up=up, down=down)
        except ConnectionLost as lost:  # before it let us in: then a hub is wanted that is not there yet
            why = lost.reason
        if self._failure is not None:
            raise self._failure
        _log.info("the connection to the hub was lost: %s", why)
        if self._deaths.too_many(anyio.current_time()):
            raise ServiceUnavailable(
                f"the connection to the hub was lost {DEATHS} times within {DEATHS_WITHIN_S:g} s (the last time: "
                f"{why}), so it is not tried again" + (f"; {self._hint}" if self._hint else "")
            )

    def _give_up(self, failure: EnginehouseError) -> None:
        self._failure = self._failure or failure
        self._up_for_views.set()
        self._up.set()

    async def line(self, *, for_view: bool = False) -> Line:
        """The connection, once there is one.

        Raises:
            ConnectionLost: the hub ended on purpose, or this was closed.
            ServiceUnavailable: it died too often.
            EnginehouseError: it could not be reached again.
        """
        while True:
            if self._failure is not None:
                raise from_wire(to_wire(self._failure)) from self._failure  # each waiter gets one of its own
            line = self._line
            if line is None:
                await (self._up_for_views if for_view else self._up).wait()
            elif line.lost:
                await line.gone.wait()
            else:
                return line
