"""The whole workspace on this machine: the fence's files and a runner for commands.

Rule: a command starts where the fence says. What it does from there is not fenced; that is the sandbox's business, and
why a command needs a permission of its own.
"""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from anyio import to_thread

from enginehouse_core.workspace.background import BackgroundCommands, Runner
from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_protocol.workspace import BackgroundCommand, CommandResult, FileStat, OnOutput, Root


class LocalWorkspace(WorkspaceFiles):
    """Satisfies `enginehouse_protocol.workspace.Workspace`. Use as an async context manager, in one task.

    It owns its files and what runs in the background; the runner is lent, and must live as long. The other arguments
    are those of `WorkspaceFiles`.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        runner: Runner,
        *,
        scratch: str,
        protected: Sequence[str] = (),
        search_deadline_s: float = 20.0,
        masked: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """`masked` takes out of bytes what must never be stored: the scratch folder is part of the session's record."""
        super().__init__(roots, scratch=scratch, protected=protected, search_deadline_s=search_deadline_s)
        self._runner = runner
        self._background = BackgroundCommands(runner)
        self._masked = masked

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._background.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._background.close()
        finally:
            await super().__aexit__(kind, error, trace)

    async def write(self, path: str, data: bytes, *, expected_sha256: str | None = None) -> FileStat:
        if os.path.normpath(path).startswith(self.scratch + os.sep):  # noqa: ASYNC240 text alone
            data = await to_thread.run_sync(self._masked, data)
        return await super().write(path, data, expected_sha256=expected_sha256)

    async def run(
        self, command: str, *, cwd: str = ".", time_limit_s: float, on_output: OnOutput | None = None
    ) -> CommandResult:
        folder = await self.folder(cwd)
        return await self._runner.run(command, cwd=folder, time_limit_s=time_limit_s, on_output=on_output)

    async def start(self, command: str, *, cwd: str = ".") -> BackgroundCommand:
        return await self._background.start(command, await self.folder(cwd))

    @property
    def background(self) -> tuple[BackgroundCommand, ...]:
        return self._background.started
