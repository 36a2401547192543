"""The tools that find: `glob` by name, `grep` by content.

Rule: what git ignores is not found, what the fence closes is not looked into, and a search that stops early says so.

They search through the workspace, in Python's regular expressions everywhere: a pattern must not mean another thing
where some faster program happens to be installed.
"""

from typing import ClassVar

from enginehouse_engines.openai_compatible.toolbox.look import Looks
from enginehouse_engines.openai_compatible.toolbox.tool import (
    BadInput,
    Outcome,
    Voice,
    listed,
    one_line,
    shown_name,
    understood,
)
from enginehouse_protocol.permissions import JsonObject, ToolKind
from enginehouse_protocol.workspace import Workspace

_MAX_FILES = 1_000
_MAX_HITS = 200
_MAX_LINE_CHARS = 400


class GlobPlan(Looks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: str
    path: str = "."

    @property
    def title(self) -> str:
        where = "" if self.path == "." else f" in {self.path}"
        return one_line(f"find {self.pattern}{where}")

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    async def run(self, workspace: Workspace, _voice: Voice) -> Outcome:
        pattern = self.pattern
        if self.path == ".":  # some models name everything from the top
            pattern = pattern.removeprefix(f"{workspace.roots[0].path}/") if workspace.roots else pattern
        found = await workspace.find(pattern, path=self.path, limit=_MAX_FILES)
        lines = [shown_name(path) for path in found.paths]
        text = listed(lines, more=found.truncated, advice="narrow the pattern or the path")
        return Outcome(text=text or "[no file matches]")


class Glob:
    name: ClassVar[str] = "glob"
    kind: ClassVar[ToolKind] = "search"
    asked: ClassVar[bool] = True
    description: ClassVar[str] = (
        "Find files by name: `*.py` at any depth, `src/**/test_*.{ts,js}` from path. Leaves out what git ignores."
    )
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string", "description": "folder; default: the working directory"},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> GlobPlan:
        plan = understood(given, GlobPlan)
        if not plan.pattern.strip():
            raise BadInput("pattern is empty")
        return plan


class GrepPlan(Looks, frozen=True, kw_only=True, forbid_unknown_fields=True):
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

    async def run(self, workspace: Workspace, _voice: Voice) -> Outcome:
        found = await workspace.search(self.pattern, path=self.path, glob=self.glob, limit=_MAX_HITS)
        lines = [f"{shown_name(hit.path)}:{hit.line_number}: {_cut(hit.line)}" for hit in found.hits]
        text = listed(lines, more=found.truncated, advice="narrow the pattern, the path or the glob")
        return Outcome(text=text or "[no match]")


class Grep:
    name: ClassVar[str] = "grep"
    kind: ClassVar[ToolKind] = "search"
    asked: ClassVar[bool] = True
    description: ClassVar[str] = (
        "Search text files, line by line, for a Python regular expression. Leaves out what git ignores."
    )
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
        plan = understood(given, GrepPlan)
        if not plan.pattern:
            raise BadInput("pattern is empty")
        return plan


def _cut(line: str) -> str:
    line = line.rstrip("\r\n")
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…"
