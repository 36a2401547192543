"""A session's project: its directory, how to find that again after a move, the branch in it. Every function blocks."""

import os
from pathlib import Path

from enginehouse_protocol.events import SessionCreated
from enginehouse_protocol.hub import CreateSession
from enginehouse_protocol.workspace import Root


def identity_of(directory: str) -> str:
    """Finds a directory again after a move within its file system; empty when it is not there."""
    try:
        found = os.stat(directory)
    except OSError:
        return ""
    return f"{found.st_dev:x}:{found.st_ino:x}"


def created_in(directory: str, params: CreateSession) -> SessionCreated:
    """What a new session's record begins with."""
    provider = params.launch.provider
    return SessionCreated(
        engine=params.engine,
        roots=(Root(path=directory, identity=identity_of(directory)),),
        settings=params.settings,
        provider=provider.name if provider else None,
        branch=_branch(directory),
        host=params.host,
    )


def now_and_before(now: str, before: str) -> tuple[Root, bool]:
    """`now` as a root, without identity when it is no directory; and whether `before` is still there."""
    real = os.path.realpath(now)
    return Root(path=real, identity=identity_of(real) if os.path.isdir(real) else ""), os.path.isdir(before)


def _branch(directory: str) -> str | None:
    """The branch checked out in `directory`, read without running git; None outside a repository or on no branch."""
    try:
        head = (Path(directory) / ".git" / "HEAD").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return head.removeprefix("ref: refs/heads/").strip() if head.startswith("ref: refs/heads/") else None
