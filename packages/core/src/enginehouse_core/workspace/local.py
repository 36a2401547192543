"""The whole workspace on this machine: the fence's files and a runner for commands.

Rule: a command starts where the fence says. What it does from there is not fenced; that is the sandbox's business, and
why a command needs a permission of its own.
"""

from collections.abc import Sequence
from typing import Protocol

from enginehouse_core.workspace.files import WorkspaceFiles
from enginehouse_protocol.workspace import CommandResult, OnOutput, Root


class Runner(Protocol):
    """Runs commands so that nothing they started outlives the call, also when it is cancelled."""

    async def run(
        self, command: str, *, cwd: str, time_limit_s: float, on_output: OnOutput | None = None
    ) -> CommandResult:
        """`cwd` is the absolute path of an existing folder."""
        ...


class LocalWorkspace(WorkspaceFiles):
    """Satisfies `enginehouse_protocol.workspace.Workspace`. Use as an async context manager.

    It owns its files; the runner is lent, and must live as long. The other arguments are those of `WorkspaceFiles`.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        runner: Runner,
        *,
        scratch: str,
        protected: Sequence[str] = (),
        search_deadline_s: float = 20.0,
    ) -> None:
        super().__init__(roots, scratch=scratch, protected=protected, search_deadline_s=search_deadline_s)
        self._runner = runner

    async def run(
        self, command: str, *, cwd: str = ".", time_limit_s: float, on_output: OnOutput | None = None
    ) -> CommandResult:
        folder = await self.folder(cwd)
        return await self._runner.run(command, cwd=folder, time_limit_s=time_limit_s, on_output=on_output)
