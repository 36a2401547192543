"""The tools that take a file away or give it another name: `delete_file`, `move_file`.

Rule: files only, and nothing is ever replaced. A folder goes with a command, where a person sees what that means.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from enginehouse_engines.openai_compatible.text_files import NotText, change_of, decode
from enginehouse_engines.openai_compatible.toolbox.look import MAX_FILE_BYTES
from enginehouse_engines.openai_compatible.toolbox.seen import seen_in
from enginehouse_engines.openai_compatible.toolbox.tool import (
    Outcome,
    ToolRefused,
    Voice,
    beside_the_loop,
    one_line,
    shown_path,
    understood,
)
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.permissions import JsonObject, ToolKind
from enginehouse_protocol.workspace import FileStat, Workspace

_TITLE_CHARS = 120


class DeleteFileInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str


@dataclass(kw_only=True)
class DeletePlan:
    path: str
    _shown: tuple[FileChange, str | None] | None = field(default=None, init=False)
    """The change, and the digest of what it was made from; None where the file is too large to be looked at."""

    @property
    def title(self) -> str:
        return one_line(f"delete {self.path}", _TITLE_CHARS)

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    async def preview(self, workspace: Workspace) -> tuple[FileChange, ...]:
        self._shown = await self._looked_at(workspace)
        return (self._shown[0],)

    async def run(self, workspace: Workspace, _voice: Voice) -> Outcome:
        change, digest = self._shown or await self._looked_at(workspace)
        await workspace.delete(self.path, expected_sha256=digest)
        seen_in(workspace).deleted(change.path)
        return Outcome(text=f"Deleted {change.path}.", changes=(change,))

    async def _looked_at(self, workspace: Workspace) -> tuple[FileChange, str | None]:
        found = await _file(workspace, self.path)
        if found.size_bytes > MAX_FILE_BYTES:
            return FileChange(path=found.path, change="deleted"), None
        content = await workspace.read(self.path, max_bytes=MAX_FILE_BYTES)
        seen_in(workspace).require_current(content.path, content.sha256)
        try:
            text = (await beside_the_loop(decode, content.data, len(content.data))).text
        except NotText:
            return FileChange(path=content.path, change="deleted"), content.sha256
        change = await beside_the_loop(lambda before: change_of(content.path, before, None), text, len(text))
        return change, content.sha256


class DeleteFile:
    name: ClassVar[str] = "delete_file"
    kind: ClassVar[ToolKind] = "edit"
    asked: ClassVar[bool] = True
    description: ClassVar[str] = "Delete one file."
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> DeletePlan:
        return DeletePlan(path=understood(given, DeleteFileInput).path)


class MoveFilePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    to: str

    @property
    def title(self) -> str:
        return one_line(f"move {self.path} → {self.to}")

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.to)

    async def preview(self, workspace: Workspace) -> tuple[FileChange, ...]:
        await _file(workspace, self.path)
        if await workspace.stat(self.to) is not None:
            raise ToolRefused(f"{self.to!r} exists already; delete it first, or choose another name")
        return self._changes(shown_path(workspace, self.path), shown_path(workspace, self.to))

    async def run(self, workspace: Workspace, _voice: Voice) -> Outcome:
        before = shown_path(workspace, self.path)
        after = (await workspace.move(self.path, self.to)).path
        seen_in(workspace).moved(before, after)
        return Outcome(text=f"Moved {before} to {after}.", changes=self._changes(before, after))

    @staticmethod
    def _changes(before: str, after: str) -> tuple[FileChange, ...]:
        """No content changes, so the diffs say what does."""
        return (
            FileChange(path=before, change="deleted", diff=f"renamed to {after}\n"),
            FileChange(path=after, change="created", diff=f"renamed from {before}\n"),
        )


class MoveFile:
    name: ClassVar[str] = "move_file"
    kind: ClassVar[ToolKind] = "edit"
    asked: ClassVar[bool] = True
    description: ClassVar[str] = "Move or rename one file. Nothing is overwritten."
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "to": {"type": "string", "description": "the new path"}},
        "required": ["path", "to"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> MoveFilePlan:
        return understood(given, MoveFilePlan)


async def _file(workspace: Workspace, path: str) -> FileStat:
    found = await workspace.stat(path)
    if found is None:
        raise ToolRefused(f"{path!r} does not exist")
    if found.kind == "directory":
        raise ToolRefused(f"{path!r} is a folder; use a command for folders")
    if found.kind != "file":
        raise ToolRefused(f"{path!r} is not a file")
    return found
