"""The tools that only look: `read_file`, `list_dir`, `grep`.

Rule: none of them changes anything, so calls of these may run side by side.
"""

from typing import ClassVar

import msgspec

from enginehouse_engines.openai_compatible.text_files import NotText, decode
from enginehouse_engines.openai_compatible.toolbox.tool import (
    OnText,
    Outcome,
    ToolRefused,
    beside_the_loop,
    capped,
    understood,
)
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.permissions import JsonObject, ToolKind
from enginehouse_protocol.workspace import Workspace

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_LINES = 2_000
MAX_TEXT_BYTES = 64 * 1024
_MAX_ENTRIES = 1_000
_MAX_HITS = 200
_MAX_LINE_CHARS = 400


class _Looks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of plans that change nothing: the input itself is the plan."""

    async def preview(self, _workspace: Workspace) -> tuple[FileChange, ...]:
        return ()


class ReadFilePlan(_Looks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    offset: int | None = None
    limit: int | None = None

    @property
    def title(self) -> str:
        return f"read {self.path}"

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    async def run(self, workspace: Workspace, _on_text: OnText) -> Outcome:
        content = await workspace.read(self.path, max_bytes=MAX_FILE_BYTES)
        try:
            file = await beside_the_loop(decode, content.data, len(content.data))
        except NotText as error:
            raise ToolRefused(f"{self.path!r} is not a text file: {error}") from error
        if not file.text:
            return Outcome(text="[the file is empty]")
        lines = file.text.replace("\r\n", "\n").split("\n")
        if not lines[-1]:
            lines.pop()
        first = max(self.offset if self.offset is not None else 1, 1)
        if first > len(lines):
            raise ToolRefused(f"{self.path!r} has {len(lines)} lines; offset {first} is past its end")
        wanted = lines[first - 1 :][: max(1, min(self.limit or MAX_LINES, MAX_LINES))]
        shown: list[str] = []
        size = 0
        for line in wanted:
            size += len(line.encode()) + 1
            if size > MAX_TEXT_BYTES:
                break
            shown.append(line)
        last = first + len(shown) - 1
        notes = [] if file.encoding == "utf-8" else [f"the file is written in {file.encoding}"]
        if not shown:
            cut = wanted[0].encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
            shown, last = [cut], first
            notes.append(f"line {first} is {len(wanted[0])} characters long; only its beginning is shown")
        if first > 1 or last < len(lines):
            rest = f"; go on with offset={last + 1}" if last < len(lines) else ""
            notes.append(f"lines {first}–{last} of {len(lines)}{rest}")
        return Outcome(text="\n".join([*shown, *(f"[{note}]" for note in notes)]))


class ReadFile:
    name: ClassVar[str] = "read_file"
    kind: ClassVar[ToolKind] = "read"
    description: ClassVar[str] = (
        f"Read a text file. Gives at most {MAX_LINES} lines or {MAX_TEXT_BYTES // 1024} KiB, and says how to go on."
    )
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "offset": {"type": "integer", "description": "first line, from 1"},
            "limit": {"type": "integer", "description": "number of lines"},
        },
        "required": ["path"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> ReadFilePlan:
        return understood(given, ReadFilePlan)


class ListDirPlan(_Looks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str = "."

    @property
    def title(self) -> str:
        return f"list {self.path}"

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    async def run(self, workspace: Workspace, _on_text: OnText) -> Outcome:
        entries = await workspace.list(self.path, limit=_MAX_ENTRIES + 1)
        marks = {"directory": "/", "file": "", "link": "@", "other": "?"}
        lines = [f"{entry.name}{marks[entry.kind]}" for entry in entries[:_MAX_ENTRIES]]
        if len(entries) > _MAX_ENTRIES:
            lines.append(f"[only the first {_MAX_ENTRIES} entries are shown]")
        return Outcome(text=capped("\n".join(lines)) or "[the folder is empty]")


class ListDir:
    name: ClassVar[str] = "list_dir"
    kind: ClassVar[ToolKind] = "read"
    description: ClassVar[str] = "List a folder. Folders end with `/`, links with `@`."
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "default: the working directory"}},
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> ListDirPlan:
        return understood(given, ListDirPlan)


class GrepPlan(_Looks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: str
    path: str = "."
    glob: str | None = None

    @property
    def title(self) -> str:
        where = "" if self.path == "." else f" in {self.path}"
        return f"search {self.pattern!r}{where}" + (f" ({self.glob})" if self.glob else "")

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    async def run(self, workspace: Workspace, _on_text: OnText) -> Outcome:
        found = await workspace.search(self.pattern, path=self.path, glob=self.glob, limit=_MAX_HITS)
        lines = [f"{hit.path}:{hit.line_number}: {_cut(hit.line)}" for hit in found.hits]
        if found.truncated:
            lines.append(f"[only the first {len(found.hits)} matches are shown; narrow the search]")
        return Outcome(text=capped("\n".join(lines)) or "[no match]")


class Grep:
    name: ClassVar[str] = "grep"
    kind: ClassVar[ToolKind] = "search"
    description: ClassVar[str] = "Search text files for a regular expression. Files that git ignores are left out."
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string", "description": "file or folder; default: the working directory"},
            "glob": {"type": "string", "description": "only files whose name matches, like `*.py`"},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> GrepPlan:
        return understood(given, GrepPlan)


def _cut(line: str) -> str:
    line = line.rstrip("\r\n")
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…"
