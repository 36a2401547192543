"""The session a command names, and asking the hub something about it.

Rule: a session that does not exist is told before a hub is started for it.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import anyio

from enginehouse.connecting import connected
from enginehouse.environment import DEFAULT_ENGINE, NO_MODEL
from enginehouse.hub_place import hub_place
from enginehouse.session_provider import launch_again
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_protocol.errors import UsageError
from enginehouse_protocol.hub import HubApi, Launch, SessionInfo
from enginehouse_protocol.local_socket import status

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class NamedSession:
    info: SessionInfo
    """As it is on disk."""
    archive: Archive
    folders: Folders
    environment: Mapping[str, str]

    def launch(self) -> Launch:
        """What the session's next turn gets of this shell. Blocks.

        Raises:
            UsageError: this shell knows of no model, so the session would lose the one it has.
        """
        launch = launch_again(self.info, self.archive, self.folders, self.environment)
        if self.info.engine == DEFAULT_ENGINE and launch.provider is None:
            raise UsageError(NO_MODEL)
        return launch

    def ask_hub(self, ask: Callable[[HubApi], Awaitable[ResultT]]) -> ResultT:
        """Start a hub if there is none. Blocks."""

        async def asked() -> ResultT:
            async with connected(self.folders, self.environment, can_answer=False) as hub:
                return await ask(hub)

        return anyio.run(asked)


def named_session(text: str) -> NamedSession:
    """Blocks. Raises: SessionNotFound, UsageError (several), TranscriptUnreadable."""
    environment = dict(os.environ)
    folders = Folders.of(environment)
    archive = Archive(folders.transcripts)
    return NamedSession(archive.info(archive.resolve(text)), archive, folders, environment)


async def hub_runs(folders: Folders) -> bool:
    return await status(hub_place(folders)) is not None
