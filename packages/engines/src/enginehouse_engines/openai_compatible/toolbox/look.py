"""The tools that read: `read_file`, `list_dir`.

Rule: none of them changes anything, so calls of these may run side by side. What is not shown is said, with how to get
at it.
"""

from typing import ClassVar

import msgspec

from enginehouse_engines.openai_compatible.text_files import NotText, TextFile, decode
from enginehouse_engines.openai_compatible.toolbox.binary_kinds import binary_kind, image_kind
from enginehouse_engines.openai_compatible.toolbox.seen import seen_in
from enginehouse_engines.openai_compatible.toolbox.tool import (
    MAX_OUTPUT_CHARS,
    BadInput,
    Outcome,
    ToolRefused,
    Voice,
    beside_the_loop,
    listed,
    shown_name,
    understood,
)
from enginehouse_protocol.content import MAX_IMAGE_BYTES, FileChange, Image
from enginehouse_protocol.image_headers import image_header
from enginehouse_protocol.permissions import JsonObject, ToolKind
from enginehouse_protocol.workspace import FileContent, Workspace

MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_LINES = 2_000
_MAX_ENTRIES = 1_000
_MARKS = {"directory": "/", "file": "", "link": "@", "other": "?"}


class Looks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of plans that change nothing: the input itself is the plan."""

    async def preview(self, _workspace: Workspace) -> tuple[FileChange, ...]:
        return ()


class ReadFilePlan(Looks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    offset: int = 1
    limit: int = MAX_LINES

    @property
    def title(self) -> str:
        return f"read {self.path}"

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    async def run(self, workspace: Workspace, voice: Voice) -> Outcome:
        content = await workspace.read(self.path, max_bytes=MAX_FILE_BYTES)
        if voice.shows_images and (image := _image(content, self.path)) is not None:
            return Outcome(text="", images=(image,))
        file = await _text(content, self.path)
        seen_in(workspace).read(content.path, content.sha256)
        return Outcome(text=await beside_the_loop(self._shown, file, len(file.text)))

    def _shown(self, file: TextFile) -> str:
        if not file.text:
            return "[the file is empty]"
        lines = file.text.replace("\r\n", "\n").split("\n")
        if not lines[-1]:
            lines.pop()
        first = max(self.offset, 1)
        if first > len(lines):
            raise ToolRefused(f"{self.path!r} has {len(lines)} lines; offset {first} is past its end")
        wanted = lines[first - 1 :][: max(1, min(self.limit, MAX_LINES))]
        shown: list[str] = []
        size = 0
        for line in wanted:
            size += len(line) + 1
            if size > MAX_OUTPUT_CHARS:
                break
            shown.append(line)
        last = first + len(shown) - 1
        notes = [] if file.encoding == "utf-8" else [f"the file is written in {file.encoding}"]
        if not shown:
            shown, last = [wanted[0][:MAX_OUTPUT_CHARS]], first
            notes.append(f"line {first} is {len(wanted[0])} characters long; only its beginning is shown")
        if first > 1 or last < len(lines):
            rest = f"; go on with offset={last + 1}" if last < len(lines) else ""
            notes.append(f"lines {first}–{last} of {len(lines)}{rest}")
        return "\n".join([*shown, *(f"[{note}]" for note in notes)])


class ReadFile:
    name: ClassVar[str] = "read_file"
    kind: ClassVar[ToolKind] = "read"
    asked: ClassVar[bool] = True
    description: ClassVar[str] = (
        f"Read a text file: at most {MAX_LINES} lines or {MAX_OUTPUT_CHARS} characters; says how to go on. "
        "Shows you an image (PNG, JPEG, GIF, WebP), if you can see images."
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
        plan = understood(given, ReadFilePlan)
        if plan.limit < 1:
            raise BadInput("limit must be at least 1")
        return plan


class ListDirPlan(Looks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str = "."

    @property
    def title(self) -> str:
        return f"list {self.path}"

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    async def run(self, workspace: Workspace, _voice: Voice) -> Outcome:
        entries = await workspace.list(self.path, limit=_MAX_ENTRIES + 1)
        lines = [f"{shown_name(entry.name)}{_MARKS[entry.kind]}" for entry in entries[:_MAX_ENTRIES]]
        advice = "use glob for certain names"
        return Outcome(text=listed(lines, more=len(entries) > _MAX_ENTRIES, advice=advice) or "[the folder is empty]")


class ListDir:
    name: ClassVar[str] = "list_dir"
    kind: ClassVar[ToolKind] = "read"
    asked: ClassVar[bool] = True
    description: ClassVar[str] = "List a folder. Folders end with `/`, links with `@`."
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "default: the working directory"}},
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> ListDirPlan:
        return understood(given, ListDirPlan)


def _image(content: FileContent, path: str) -> Image | None:
    """Raises `ToolRefused` for one that is too large."""
    header = image_header(content.data)
    if header is None:
        return None
    if len(content.data) > MAX_IMAGE_BYTES:
        size = f"{len(content.data)} bytes, and at most {MAX_IMAGE_BYTES} can be shown"
        raise ToolRefused(f"{path!r} is a picture ({image_kind(content.data)}, {size}); make a smaller copy of it")
    return Image(media_type=header.media_type, data=content.data, name=content.path.rpartition("/")[2])


async def _text(content: FileContent, path: str) -> TextFile:
    """Raises `ToolRefused`, with what it is, when it is no text."""
    size = f"{len(content.data)} bytes"
    if (image := image_kind(content.data)) is not None:
        raise ToolRefused(f"{path!r} is a picture ({image}, {size}), which cannot be shown in this conversation")
    if (kind := binary_kind(content.data)) is not None:
        raise ToolRefused(f"{path!r} is not a text file: it is {kind} ({size}); look into it with a command")
    try:
        return await beside_the_loop(decode, content.data, len(content.data))
    except NotText as error:
        raise ToolRefused(f"{path!r} is not a text file: {error} ({size})") from error
