"""One life of the CLI: its process, its reader, and the SDK's client that speaks the control protocol to it.

Rule: a life begins and ends in one task. When its stream ends, for whatever reason, the life is over; the session
begins another one and resumes. This module imports the SDK, so it is imported when a session opens and not before.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import TaskStatus
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient

from enginehouse_engines.claude.invocation import Start
from enginehouse_engines.claude.permissions import Permissions
from enginehouse_engines.claude.process import Cli, running
from enginehouse_engines.claude.stream import Stream
from enginehouse_engines.claude.transport import ControlTransport
from enginehouse_protocol.engine import EngineHome
from enginehouse_protocol.errors import EngineError, EngineExited, EngineUnavailable, NativeSessionLost
from enginehouse_protocol.permissions import JsonObject

_CONNECT_S: Final = 45.0
_DISCONNECT_S: Final = 2.0
_LOST: Final = re.compile(r"no conversation found|not a (valid )?UUID|invalid session id", re.IGNORECASE)


class Client:
    """A connected CLI."""

    def __init__(self, cli: Cli, stream: Stream, offers: JsonObject) -> None:
        self.cli = cli
        self.stream = stream
        self.offers = offers
        """What it answered when it was connected: models, account, version."""
        self._leave = anyio.Event()

    def leave(self) -> None:
        """Let the life end in an orderly way: an idle CLI may still write its store down."""
        self._leave.set()

    async def left(self) -> None:
        await self._leave.wait()


async def live(
    start: Start,
    home: EngineHome,
    permissions: Permissions,
    on_frame: Callable[[bytes], None],
    on_end: Callable[[str], None],
    *,
    task_status: TaskStatus[Client],
) -> None:
    """A whole life. `on_end` is told why it ended, exactly once, if the CLI had been connected.

    Raises, before it has started:
        NativeSessionLost: the CLI does not know the id to resume.
        EngineError: it cannot be started or connected.
    """
    failure: EngineError | None = None
    async with running(start, home) as cli:
        stream = Stream(cli, on_frame, home.log)
        ended = anyio.Event()

        async def read() -> None:
            try:
                await stream.read()
            finally:
                ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cli.listen_to_complaints)
            tasks.start_soon(read)
            transport = ControlTransport(stream, home.log)
            sdk = ClaudeSDKClient(_sdk_options(permissions), transport=transport)
            client: Client | None = None
            try:
                client = Client(cli, stream, await _connected(sdk))
                transport.connected = True
                task_status.started(client)
                await _over(client, ended)
            except EngineError as error:
                failure = error if not isinstance(error, EngineExited) else _why(error, start)
            finally:
                with anyio.move_on_after(_DISCONNECT_S, shield=True):
                    permissions.cancel()
                    cli.kill()
                    await ended.wait()
                    await sdk.disconnect()
                stream.close()
                if client is not None:
                    on_end(str(stream.why_ended or "claude was ended"))
                tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _connected(sdk: ClaudeSDKClient) -> JsonObject:
    """Raises only `EngineError`, whatever the SDK raises."""
    try:
        with anyio.fail_after(_CONNECT_S):
            await sdk.connect()
            return await sdk.get_server_info() or {}
    except EngineError:
        raise
    except TimeoutError as error:
        raise EngineExited(f"claude did not start within {_CONNECT_S:g} s") from error
    except Exception as error:  # the SDK raises bare ones too, and a connection ends here
        raise EngineUnavailable(f"claude cannot be used: {error}") from error


async def _over(client: Client, ended: anyio.Event) -> None:
    """Until the process has ended, or the session leaves it and it has had its moment."""
    async with anyio.create_task_group() as either:

        async def first(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            either.cancel_scope.cancel()

        either.start_soon(first, client.left)
        either.start_soon(first, ended.wait)
    if not ended.is_set():
        await client.cli.end(politely=True)


def _sdk_options(permissions: Permissions) -> ClaudeAgentOptions:
    """What the SDK itself needs; the command line is ours."""
    return ClaudeAgentOptions(
        can_use_tool=permissions.can_use_tool,
        hooks=permissions.hooks(),
        forward_subagent_text=True,
    )


def _why(error: EngineExited, start: Start) -> EngineError:
    """A resume that is refused is told on stderr alone, and in words."""
    if start.resume and _LOST.search(str(error)):
        return NativeSessionLost(f"claude does not know the session {start.resume} any more: {error}")
    return error
