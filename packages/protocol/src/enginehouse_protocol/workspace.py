"""The agent's hands: the only way an engine whose tools *we* implement touches files and processes.

Rule: nothing here asks for permission. `SessionPort.ask` comes first, always; the workspace is the fence behind it,
which holds also when a permission was given by mistake.

Paths are text as the model wrote them: relative to the first root, or absolute inside a root or the scratch folder.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

import msgspec


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """A folder a session may touch. `identity` finds it again after a move: device and inode, `""` when unknown."""

    path: str
    identity: str = ""


class FileContent(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """As `display` names it."""
    data: bytes
    sha256: str
    """Of the whole file as read; hand it to `write` to be sure nobody changed the file in between."""
    mode: int
    """Permission bits."""


class FileStat(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    kind: Literal["file", "directory", "other"]
    size_bytes: int
    modified_at_ms: int


class DirectoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Literal["file", "directory", "link", "other"]
    size_bytes: int


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    line_number: int
    line: str


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    hits: tuple[SearchHit, ...]
    truncated: bool
    """True when `limit` was reached and there is more."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    output: bytes
    """stdout and stderr in the order they were written; past the cap only head and tail."""
    dropped_bytes: int
    """How many bytes between head and tail were not kept."""
    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None
    ended: Literal["exited", "timed_out", "interrupted"]
    duration_ms: int


OnOutput = Callable[[bytes], Awaitable[None]]


class Workspace(Protocol):
    """Files and commands of one session. Every method may raise `PathRefused` or `FileUnusable`."""

    @property
    def roots(self) -> tuple[Root, ...]:
        """The first is the working directory."""
        ...

    @property
    def scratch(self) -> str:
        """Absolute path of the session's private folder: writable, outside the project, deleted with the session."""
        ...

    def display(self, path: str) -> str:
        """How `path` is best named to a person and a rule; never touches the disk.

        Relative below the first root, absolute elsewhere: a relative name always means the first root's file.
        """
        ...

    async def read(self, path: str, *, max_bytes: int) -> FileContent:
        """The whole file. `FileUnusable` when it is larger than `max_bytes`."""
        ...

    async def write(self, path: str, data: bytes, *, expected_sha256: str | None = None) -> FileStat:
        """Replace or create a file atomically, parent folders included, keeping its permission bits.

        With `expected_sha256` (`""`: it must not exist) the content is compared right before the rename and
        `FileUnusable` raised when somebody else changed it.
        """
        ...

    async def stat(self, path: str) -> FileStat | None:
        """None when there is nothing."""
        ...

    async def list(self, path: str, *, limit: int) -> tuple[DirectoryEntry, ...]:
        """Entries of one folder by name; at most `limit`."""
        ...

    async def search(self, pattern: str, *, path: str = ".", glob: str | None = None, limit: int) -> SearchResult:
        """Lines matching a regular expression in the text files below `path`, ignore files honoured.

        Raises `UsageError` for a pattern that is no regular expression.
        """
        ...

    async def run(
        self, command: str, *, cwd: str = ".", time_limit_s: float, on_output: OnOutput | None = None
    ) -> CommandResult:
        """Run a shell command and wait for it. Whatever it started is dead when this returns, also on cancellation."""
        ...
