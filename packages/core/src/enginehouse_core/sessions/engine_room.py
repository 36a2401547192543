"""The engines of one hub: made when first needed, left together when the hub ends.

Rule: an engine that is not wanted costs nothing, not even its import. One task of its own enters and leaves each, so an
engine may keep a task group, and a broken one is made anew at its next use instead of taking the hub along.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskStatus

from enginehouse_core.sessions.images import has_images
from enginehouse_protocol.content import Content
from enginehouse_protocol.engine import Engine, EngineHome
from enginehouse_protocol.errors import EngineError, EngineUnavailable, UsageError
from enginehouse_protocol.ids import EngineName

EngineFactory = Callable[[EngineHome], Engine]
_LEAVING_S = 10.0
_log = logging.getLogger(__name__)


class EngineRoom:
    def __init__(self, factories: Mapping[EngineName, EngineFactory], home: Callable[[EngineName], EngineHome]) -> None:
        """`home` says where an engine of this name keeps its state."""
        self._factories = factories
        self._home = home
        self._engines: dict[EngineName, Engine] = {}
        self._entering = anyio.Lock()
        self._leave = anyio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._leave.set()
        self._tasks.cancel_scope.deadline = anyio.current_time() + _LEAVING_S
        return await self._stack.__aexit__(kind, error, trace)

    async def engine(self, name: EngineName) -> Engine:
        """The engine of this name, ready for use.

        Raises:
            EngineError: there is none (EngineUnavailable), or it cannot start.
        """
        if name in self._engines:
            return self._engines[name]
        async with self._entering:
            if name not in self._engines:
                self._engines[name] = await self._tasks.start(self._keep, name)
            return self._engines[name]

    async def check_takes(self, name: EngineName, content: tuple[Content, ...]) -> None:
        """Before a message is queued: what its engine would have to leave out is better refused.

        Raises:
            UsageError: it holds an image, and the engine takes none.
            EngineError: as `engine`.
        """
        if has_images(content) and not (await self.engine(name)).abilities.images:
            text = f"the engine {name!r} takes no images; name the file instead, if the agent can look at it itself"
            raise UsageError(text)

    async def _keep(self, name: EngineName, *, task_status: TaskStatus[Engine]) -> None:
        factory = self._factories.get(name)
        if factory is None:
            known = ", ".join(sorted(self._factories)) or "none"
            raise EngineUnavailable(f"there is no engine {name!r}; there are: {known}")
        ready = False
        try:
            async with factory(self._home(name)) as engine:
                ready = True
                task_status.started(engine)
                await self._leave.wait()
        except Exception as error:
            if not ready:
                raise error if isinstance(error, EngineError) else _cannot_start(name, error) from error
            _log.exception("engine %s broke; its next use makes it anew", name)
        finally:
            self._engines.pop(name, None)


def _cannot_start(name: EngineName, error: Exception) -> EngineUnavailable:
    _log.error("engine %s cannot start", name, exc_info=error)
    return EngineUnavailable(f"the engine {name!r} cannot start: {type(error).__name__}: {error}")
