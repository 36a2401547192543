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


class FoundFiles(msgspec.Struct, frozen=True, kw_only=True):
    paths: tuple[str, ...]
    """As `display` names them, in the order of their names."""
    truncated: bool
    """True when `limit` or the time for it was reached and there may be more."""


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


class CommandProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a background command did since somebody looked."""

    output: bytes
    """stdout and stderr since the last read. Only its end, when there was more than is kept."""
    dropped_bytes: int
    """How many bytes before `output` were not kept."""
    ended: Literal["exited", "timed_out", "stopped", "failed"] | None
    """None: it runs. `failed`: the workspace lost it, and what it started is dead. An ending by a signal from outside
    is `exited` with `signal`."""
    exit_code: int | None = None
    signal: int | None = None


class BackgroundCommand(Protocol):
    """A command nobody waits for. It may be read and stopped by any task of the session."""

    @property
    def id(self) -> str:
        """Short, and unlike every other in this workspace's life and in those before it."""
        ...

    @property
    def command(self) -> str: ...

    async def read(self, *, wait_s: float = 0.0) -> CommandProgress:
        """What is new. With nothing new from a command that runs, wait that long for output or its end."""
        ...

    async def stop(self) -> None:
        """End it and whatever it started; all of it is dead when this returns. Nothing happens when it has ended."""
        ...


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

    @property
    def background(self) -> tuple[BackgroundCommand, ...]:
        """What `start` started and runs, and the last of what has ended, oldest first."""
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

    async def delete(self, path: str, *, expected_sha256: str | None = None) -> None:
        """Remove one file, for good; never a folder. `expected_sha256` as in `write`."""
        ...

    async def move(self, path: str, to: str, *, expected_sha256: str | None = None) -> FileStat:
        """Give one file another name, making the folders it needs; never a folder, and never over something.

        `expected_sha256` as in `write`. Returns the file under its new name.
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

    async def find(self, glob: str, *, path: str = ".", limit: int) -> FoundFiles:
        """Files below `path` whose name matches, ignore files honoured.

        `*.py` matches at any depth, `src/**/*.py` from `path`, `*.{c,h}` both. Raises `UsageError` for what is no
        pattern.
        """
        ...

    async def run(
        self, command: str, *, cwd: str = ".", time_limit_s: float, on_output: OnOutput | None = None
    ) -> CommandResult:
        """Run a shell command and wait for it. Whatever it started is dead when this returns, also on cancellation."""
        ...

    async def start(self, command: str, *, cwd: str = ".") -> BackgroundCommand:
        """Start a shell command and do not wait for it.

        It ends by itself, by `stop`, or with the workspace: then it and whatever it started is dead. `CommandRefused`
        when it cannot be started or too many run already.
        """
        ...
