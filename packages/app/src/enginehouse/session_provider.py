"""Which provider a session that goes on talks to: the one it began with, unless another is named.

Rule: what was said in a session does not go to another server because a variable or a file changed meanwhile.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from enginehouse.environment import ENVIRONMENT_PROVIDER, launch_of
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_core.transcript.file import FILE_NAME
from enginehouse_core.transcript.scan import scan
from enginehouse_protocol.errors import TranscriptUnreadable, UsageError
from enginehouse_protocol.events import SessionCreated
from enginehouse_protocol.hub import Launch, SessionInfo
from enginehouse_protocol.ids import SessionId

if TYPE_CHECKING:
    from enginehouse_core.profile.provider import ProviderFile

_BEGINNING = 1 << 20
"""Bytes; how a session began is its first record, and no record is longer."""


def launch_again(
    session: SessionInfo,
    archive: Archive,
    folders: Folders,
    environment: Mapping[str, str],
    *,
    provider: str | None = None,
) -> Launch:
    """What the next turn of `session` gets of this shell. Blocks.

    Raises:
        UsageError: the provider it began with is gone and no other was named; or as `launch_of`.
    """
    named = provider or _begun_with(archive, session.id)
    if provider is None and named is not None and _read(folders, named) is None:
        raise UsageError(
            f"session {session.id} began with provider {named!r}, which the profile no longer has; say with --provider "
            "who is to read this conversation instead"
        )
    return launch_of(session.engine, folders, environment, provider=named)


def _begun_with(archive: Archive, session_id: SessionId) -> str | None:
    """None: variables alone said where the model was, or it has none."""
    folder = archive.folder(session_id)
    try:
        with open(folder / FILE_NAME, "rb") as file:
            found = scan(file.read(_BEGINNING), session_id)
    except OSError as error:
        raise TranscriptUnreadable(f"cannot read {folder / FILE_NAME}: {error.strerror}") from error
    begun = next((record.event.body for record in found.records if isinstance(record.event.body, SessionCreated)), None)
    return None if begun is None or begun.provider == ENVIRONMENT_PROVIDER else begun.provider


def _read(folders: Folders, name: str) -> "ProviderFile | None":
    from enginehouse_core.profile.provider import read_provider  # pydantic, for those who have such files

    return read_provider(folders, name)
