"""What the CLI's tools do, in our words: a neutral kind, a one-line title, the paths, what would change.

Rule: a tool nobody knows is `other`, which core asks about. Paths are what stands in the input, letter for letter: core
finds them there again when a person edits the input.
"""

import difflib
from typing import Any, cast

from enginehouse_protocol.content import FileChange
from enginehouse_protocol.permissions import JsonObject, ToolKind

MAX_DIFF_CHARS = 20_000
_TITLE_CHARS = 160
_KINDS: dict[str, ToolKind] = {
    "Read": "read",
    "NotebookRead": "read",
    "ReadMcpResourceTool": "read",
    "Glob": "search",
    "Grep": "search",
    "LS": "search",
    "ToolSearch": "search",
    "Edit": "edit",
    "MultiEdit": "edit",
    "Write": "edit",
    "NotebookEdit": "edit",
    "Bash": "execute",
    "Monitor": "execute",
    "WebFetch": "fetch",
    "WebSearch": "fetch",
    "web_search": "fetch",
    "web_fetch": "fetch",
    "Agent": "delegate",
    "Task": "delegate",
}
TOUCHES_NOTHING = frozenset(
    ("TodoWrite", "TaskCreate", "TaskUpdate", "TaskList", "TaskGet", "AskUserQuestion", "ExitPlanMode")
)
"""Tools that only keep the CLI's own list or speak to the person."""
_PATH_KEYS = ("file_path", "notebook_path", "path")
_HERE = frozenset(("Glob", "Grep", "LS"))
"""They look at the working directory when no path is given."""


def kind_of(name: str) -> ToolKind:
    return _KINDS.get(name, "other")


def paths_of(name: str, tool_input: JsonObject) -> tuple[str, ...]:
    """The files or folders it names, as it names them."""
    if kind_of(name) not in ("read", "search", "edit"):
        return ()
    found = tuple(value for key in _PATH_KEYS if isinstance(value := tool_input.get(key), str) and value)
    return found or ((".",) if name in _HERE else ())


def title_of(name: str, tool_input: JsonObject, cwd: str = "") -> str:
    """One line for people. Paths below `cwd` are shown relative to it."""
    return _one_line(_title(name, tool_input, cwd))


def _title(name: str, tool_input: JsonObject, cwd: str) -> str:
    def said(key: str) -> str:
        value = tool_input.get(key)
        return value if isinstance(value, str) else ""

    path = shown_path(next(iter(paths_of(name, tool_input)), ""), cwd)
    match name:
        case "Read" | "NotebookRead" if path:
            return f"read {path}"
        case "Write" if path:
            return f"write {path}"
        case "Edit" | "MultiEdit" | "NotebookEdit" if path:
            return f"edit {path}"
        case "LS":
            return f"list {path}"
        case "Glob" if said("pattern"):
            return f"find {said('pattern')}" + ("" if path == "." else f" in {path}")
        case "Grep" if said("pattern"):
            within = f" ({said('glob')})" if said("glob") else ""
            return f"search {said('pattern')!r}" + ("" if path == "." else f" in {path}") + within
        case "Bash" | "Monitor" if said("command"):
            return f"$ {said('command')}" + (" (in the background)" if tool_input.get("run_in_background") else "")
        case "WebFetch" | "web_fetch" if said("url"):
            return f"fetch {said('url')}"
        case "WebSearch" | "web_search" if said("query"):
            return f"search the web for {said('query')!r}"
        case "Agent" | "Task":
            about = said("description") or said("prompt")
            return f"delegate to {said('subagent_type') or 'a subagent'}" + (f": {about}" if about else "")
        case "TodoWrite":
            todos = _objects(tool_input.get("todos"))
            return f"plan: {sum(each.get('status') == 'completed' for each in todos)} of {len(todos)} done"
        case "TaskCreate" if said("subject"):
            return f"plan: {said('subject')}"
        case "ToolSearch" if said("query"):
            return f"find tools: {said('query')}"
        case "AskUserQuestion":
            return next((str(each.get("question")) for each in _objects(tool_input.get("questions"))), name)
        case _ if name.startswith("mcp__") and name.count("__") >= 2:
            _, server, tool = name.split("__", 2)
            return f"{tool} ({server})"
        case _:
            return name


def shown_path(path: str, cwd: str) -> str:
    """The path as people read it. `..` in it leaves it as it is: where that leads is not for us to say."""
    if not cwd or not path.startswith(f"{cwd.rstrip('/')}/"):
        return "." if cwd and path == cwd else path
    rest = path[len(cwd.rstrip("/")) + 1 :]
    return path if ".." in rest.split("/") else rest


def preview_of(name: str, tool_input: JsonObject) -> tuple[FileChange, ...]:
    """What it would change, from its input alone. A written file counts as modified: what is there nobody looked at."""
    path = next(iter(paths_of(name, tool_input)), "")
    if kind_of(name) != "edit" or not path:
        return ()
    match name:
        case "Write":
            pairs = [("", tool_input.get("content"))]
        case "Edit":
            pairs = [(tool_input.get("old_string"), tool_input.get("new_string"))]
        case "MultiEdit":
            pairs = [(each.get("old_string"), each.get("new_string")) for each in _objects(tool_input.get("edits"))]
        case _:
            pairs = [("", tool_input.get("new_source"))]
    lines: list[str] = []
    for old, new in pairs:
        if isinstance(old, str) and isinstance(new, str):
            lines += _difference(old, new)
    return (change(path, "modified", lines),) if lines else ()


def changes_of(name: str, structured: object) -> tuple[FileChange, ...]:
    """What it changed, from the structured form of its result; empty when that does not say."""
    if kind_of(name) != "edit" or not isinstance(structured, dict):
        return ()
    data = cast(JsonObject, structured)
    path = data.get("filePath")
    if not isinstance(path, str) or not path:
        return ()
    if data.get("type") == "create":
        content = data.get("content")
        return (change(path, "created", _difference("", content if isinstance(content, str) else "")),)
    hunks = _objects(data.get("structuredPatch"))
    lines: list[str] = []
    for hunk in hunks:
        old, new = (f"{hunk.get(f'{side}Start')},{hunk.get(f'{side}Lines')}" for side in ("old", "new"))
        lines.append(f"@@ -{old} +{new} @@\n")
        lines += [f"{line}\n" for line in cast(list[Any], hunk.get("lines") or []) if isinstance(line, str)]
    return (change(path, "modified", lines),)


def change(path: str, kind: str, lines: list[str]) -> FileChange:
    """Whole lines up to the limit."""
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line)
        if size > MAX_DIFF_CHARS:
            break
        kept.append(line)
    cut = len(kept) < len(lines)
    if cut and not kept:
        kept = [lines[0][:MAX_DIFF_CHARS]]
    return FileChange(path=path, change="created" if kind == "created" else "modified", diff="".join(kept), cut=cut)


def _difference(old: str, new: str) -> list[str]:
    """Hunks without file headers. Two very long texts are shown as one replacement: comparing them takes too long."""
    before, after = _lines(old), _lines(new)
    if len(before) + len(after) > 4_000 or len(before) * len(after) > 1_000_000:
        head = f"@@ -1,{len(before)} +1,{len(after)} @@\n"
        return [head, *(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    return list(difflib.unified_diff(before, after))[2:]


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    shown = [f"{line}\n" for line in lines[:-1]]
    return [*shown, f"{lines[-1]}\n\\ No newline at end of file\n"] if lines[-1] else shown


def _objects(value: object) -> list[JsonObject]:
    if not isinstance(value, list):
        return []
    return [cast(JsonObject, each) for each in cast(list[Any], value) if isinstance(each, dict)]


def _one_line(text: str) -> str:
    first, _, rest = text.strip().partition("\n")
    return first if not rest and len(first) <= _TITLE_CHARS else f"{first[: _TITLE_CHARS - 1]}…"
