"""The engine: finds out what a server offers, opens sessions.

Rule: neither `openai` nor `aiohttp` is imported before the engine is entered, and a machine without them is told what
to install, in `describe` as in `open`.
"""

import importlib
import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import anyio.to_thread
import msgspec

from enginehouse_engines.openai_compatible.options import Options, options_of, options_schema
from enginehouse_protocol.capabilities import EngineAbilities, EngineDescription, ModelInfo
from enginehouse_protocol.engine import Access, EngineHome, EngineSession, Opening
from enginehouse_protocol.errors import EngineError, EngineUnavailable
from enginehouse_protocol.ids import EngineName

if TYPE_CHECKING:
    from enginehouse_engines.openai_compatible.client import ModelClient

NAME = EngineName("openai_compatible")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
"""The values Chat Completions knows for `reasoning_effort`. No server lists its own; it answers 400 to one it lacks."""
_MISSING = (
    "the packages this engine needs are not installed ({problem}); install them with "
    "`pip install 'enginehouse-engines[openai-compatible]'`"
)


class OpenAICompatible:
    """Any server that speaks Chat Completions. Holds no state between sessions and starts no process."""

    name = NAME
    abilities = EngineAbilities(edited_input=True, counts_steps=True, images=True)

    def __init__(self, home: EngineHome) -> None:
        self._log: logging.Logger = home.log
        self._client: ModuleType | None = None
        self._session: ModuleType | None = None
        self._missing = ""

    async def __aenter__(self) -> Self:
        await self._load()
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def describe(self, access: Access) -> EngineDescription:
        models: tuple[ModelInfo, ...] = ()
        problem: str | None = None
        version = ""
        efforts: tuple[str, ...] | None = None
        try:
            options = options_of(access.provider)
            client = await self._new_client(access)
            efforts = options.efforts(client.base_url)
            version = f"openai {self._loaded().VERSION}"
            try:
                models = tuple(_completed(model, options, client.base_url) for model in await client.models())
            finally:
                await client.aclose()
        except EngineError as error:
            problem = str(error)
        return EngineDescription(
            name=NAME,
            title="OpenAI-compatible model",
            version=version,
            problem=problem,
            models=models,
            efforts=efforts or EFFORTS,
            abilities=self.abilities,
            options_schema=options_schema(),
        )

    def open(self, opening: Opening) -> AbstractAsyncContextManager[EngineSession]:
        return self._open(opening)

    @asynccontextmanager
    async def _open(self, opening: Opening) -> AsyncGenerator[EngineSession, None]:
        client = await self._new_client(opening.access)
        try:
            assert self._session is not None
            yield self._session.OpenAICompatibleSession(opening, client, options_of(opening.access.provider), self._log)
        finally:
            await client.aclose()

    async def _new_client(self, access: Access) -> "ModelClient":
        options = options_of(access.provider)
        await self._load()
        made: ModelClient = await anyio.to_thread.run_sync(self._loaded().ModelClient, access, options)
        return made

    def _loaded(self) -> Any:
        if self._client is None:
            raise EngineUnavailable(_MISSING.format(problem=self._missing))
        return self._client

    async def _load(self) -> None:
        """Import what is heavy, beside the event loop."""
        if self._client is not None:
            return
        try:
            self._client, self._session = await anyio.to_thread.run_sync(_import)
        except ImportError as error:
            self._missing = str(error)


def _completed(model: ModelInfo, options: Options, base_url: str) -> ModelInfo:
    """What the server lists, with what is known of the model where the list says nothing; the person's word first."""
    said = options.models.get(model.name)
    window = said.context_window if said is not None else None
    known = options.facts(base_url, model.name)
    return msgspec.structs.replace(
        model, context_window=window or model.context_window or known.context_window, images=known.images
    )


def _import() -> tuple[ModuleType, ModuleType]:
    package = "enginehouse_engines.openai_compatible"
    return importlib.import_module(f"{package}.client"), importlib.import_module(f"{package}.session")
