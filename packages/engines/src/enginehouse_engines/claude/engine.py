"""The engine: says what Claude is and can here, and opens sessions.

Rule: the SDK is imported when a session opens and not before, in a worker thread; a machine without it is told what to
install. What the description says was answered by the CLI itself.
"""

import importlib
import importlib.metadata
import importlib.util
import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from enginehouse_engines.claude.invocation import Start, base_url_of
from enginehouse_engines.claude.options import options_schema
from enginehouse_engines.claude.process import MISSING, running
from enginehouse_engines.claude.settings import efforts_of, models_of
from enginehouse_engines.claude.stream import Stream
from enginehouse_protocol.capabilities import EngineAbilities, EngineDescription
from enginehouse_protocol.engine import Access, EngineHome, EngineSession, Opening
from enginehouse_protocol.errors import EngineError, EngineUnavailable
from enginehouse_protocol.ids import EngineName
from enginehouse_protocol.permissions import JsonObject

NAME: Final = EngineName("claude")
_ANSWER_S: Final = 20.0
_CONNECT_S: Final = 3.0
_NO_LOGIN: Final = (
    "Claude is not logged in: run `claude` once and log in, or set ANTHROPIC_API_KEY, or add a provider for this engine"
)


class Claude:
    """Each session has a process of its own; between sessions there is nothing."""

    name = NAME
    abilities = EngineAbilities(edited_input=True, native_resume=True, images=True)

    def __init__(self, home: EngineHome) -> None:
        self._home = home
        self._log: logging.Logger = home.log

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def describe(self, access: Access) -> EngineDescription:
        offers: JsonObject = {}
        problem: str | None = None
        try:
            offers = await self._offers(access)
            problem = await _unreachable(access) or _without_account(offers, access)
        except EngineError as error:
            problem = str(error)
        cli = offers.get("claude_code_version", "?")
        return EngineDescription(
            name=NAME,
            title="Claude",
            version=f"claude {cli}, SDK {_sdk_version()}",
            problem=problem,
            models=models_of(offers),
            efforts=efforts_of(offers),
            abilities=self.abilities,
            options_schema=options_schema(),
        )

    def open(self, opening: Opening) -> AbstractAsyncContextManager[EngineSession]:
        return self._open(opening)

    @asynccontextmanager
    async def _open(self, opening: Opening) -> AsyncGenerator[EngineSession]:
        session_module: Any = await anyio.to_thread.run_sync(_import_session)
        failure: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            session = session_module.ClaudeSession(opening, self._home, tasks)
            try:
                await session.begin()
                yield session
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # noqa: BLE001 raised below: it is to come out as itself, not in a group
                failure = error
            finally:
                await session.leave()
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _offers(self, access: Access) -> JsonObject:
        """What the CLI answers when it is connected. No request leaves for the model."""
        failure: EngineError | None = None
        offers: JsonObject = {}
        async with running(Start(access=access), self._home) as cli:
            stream = Stream(cli, lambda _frame: None, self._log)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cli.listen_to_complaints)
                tasks.start_soon(stream.read)
                try:
                    offers = await stream.request("initialize", deadline_s=_ANSWER_S, hooks=None)
                except EngineError as error:
                    failure = error
                tasks.cancel_scope.cancel()
            stream.close()
        if failure is not None:
            raise failure
        return offers


def _import_session() -> ModuleType:
    try:
        return importlib.import_module("enginehouse_engines.claude.session")
    except ImportError as error:
        raise EngineUnavailable(MISSING.format(problem=error)) from error


def _sdk_version() -> str:
    try:
        return importlib.metadata.version("claude-agent-sdk")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _without_account(offers: JsonObject, access: Access) -> str | None:
    account: Any = offers.get("account")
    if access.secret is not None or not isinstance(account, dict):
        return None
    known = account.get("apiKeySource") or account.get("email") or account.get("tokenSource") not in (None, "none")
    return None if known or account.get("apiProvider") not in (None, "firstParty") else _NO_LOGIN


async def _unreachable(access: Access) -> str | None:
    """Whether the address somebody gave has nobody behind it. The usual one is not asked: that would be a visit."""
    given = base_url_of(access)
    if given is None:
        return None
    try:
        address = urlsplit(given)
        port = address.port or {"http": 80, "https": 443}.get(address.scheme)
    except ValueError:
        port = None
        address = urlsplit("")
    if port is None or not address.hostname:
        return f"{given!r} is no web address; a base URL begins with http:// or https://"
    where = f"{address.scheme}://{address.hostname}:{port}"
    try:
        with anyio.fail_after(_CONNECT_S):
            await (await anyio.connect_tcp(address.hostname, port)).aclose()
    except (OSError, TimeoutError) as error:
        return (
            f"nobody answers at {where}: {error or 'no answer in time'}; is the base URL right and the server running?"
        )
    return None
