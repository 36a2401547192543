"""The engines of one hub: made when first needed, entered once, left together.

Rule: an engine that is not wanted costs nothing, not even its import.
"""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio

from enginehouse_protocol.engine import Engine, EngineHome
from enginehouse_protocol.errors import EngineUnavailable
from enginehouse_protocol.ids import EngineName

EngineFactory = Callable[[EngineHome], Engine]


class EngineRoom:
    def __init__(self, factories: Mapping[EngineName, EngineFactory], home: Callable[[EngineName], EngineHome]) -> None:
        """`home` says where an engine of this name keeps its state."""
        self._factories = factories
        self._home = home
        self._engines: dict[EngineName, Engine] = {}
        self._stack = AsyncExitStack()
        self._entering = anyio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def names(self) -> tuple[EngineName, ...]:
        return tuple(self._factories)

    async def engine(self, name: EngineName) -> Engine:
        """The engine of this name, ready for use.

        Raises:
            EngineUnavailable: there is none, or it cannot start.
        """
        async with self._entering:
            if name not in self._engines:
                factory = self._factories.get(name)
                if factory is None:
                    known = ", ".join(sorted(self._factories)) or "none"
                    raise EngineUnavailable(f"there is no engine {name!r}; there are: {known}")
                self._engines[name] = await self._stack.enter_async_context(factory(self._home(name)))
            return self._engines[name]
