"""The tools that change files: `write_file`, `edit_file`.

Rules: all of it or nothing, in the encoding and with the line endings the file had. What is written is what was shown:
a file that is no longer the one the preview was made from is left alone, and so is one that is not what the model saw.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from enginehouse_engines.openai_compatible.text_files import (
    EditRefused,
    NotText,
    Replacement,
    TextFile,
    change_of,
    decode,
    edited,
)
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
from enginehouse_protocol.workspace import FileContent, Workspace

_MUST_NOT_EXIST = ""
_TITLE_CHARS = 120


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """A write that is ready to be done."""

    data: bytes
    expected_sha256: str
    change: FileChange
    about: str = ""
    """What a person has to know besides the diff, for the title."""
    note: str = ""
    """What the model has to know besides."""


@dataclass(kw_only=True)
class ChangePlan:
    """A plan that writes one file. `prepare` reads what is there and says what is to be written."""

    doing: str
    """`write` or `edit`."""
    path: str
    prepare: Callable[[Workspace], Awaitable[_Written]]
    _shown: _Written | None = field(default=None, init=False)

    @property
    def title(self) -> str:
        about = f" ({self._shown.about})" if self._shown is not None and self._shown.about else ""
        return f"{one_line(f'{self.doing} {self.path}', _TITLE_CHARS)}{about}"

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    async def preview(self, workspace: Workspace) -> tuple[FileChange, ...]:
        self._shown = None
        self._shown = await self.prepare(workspace)
        return (self._shown.change,)

    async def run(self, workspace: Workspace, _voice: Voice) -> Outcome:
        ready = self._shown
        if ready is None:
            ready = await self.prepare(workspace)
        elif await self._sha256_now(workspace) != ready.expected_sha256:
            raise ToolRefused(f"{self.path!r} changed since this was asked; read it again")
        written = await workspace.write(self.path, ready.data, expected_sha256=ready.expected_sha256)
        digest = await beside_the_loop(_sha256, ready.data, len(ready.data))
        seen_in(workspace).wrote(written.path, digest)
        done = "Created" if ready.change.change == "created" else "Changed"
        return Outcome(text=f"{done} {ready.change.path}.{ready.note}", changes=(ready.change,))

    async def _sha256_now(self, workspace: Workspace) -> str:
        """For the words only: `write` compares again, right before it replaces the file."""
        if await workspace.stat(self.path) is None:
            return _MUST_NOT_EXIST
        return (await workspace.read(self.path, max_bytes=MAX_FILE_BYTES)).sha256


class WriteFileInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    content: str

    async def prepared(self, workspace: Workspace) -> _Written:
        """Raises `ToolRefused` when it cannot be done as asked."""
        name = shown_path(workspace, self.path)
        if await workspace.stat(self.path) is None:
            change = await _change(name, None, self.content)
            return _Written(data=self.content.encode(), expected_sha256=_MUST_NOT_EXIST, change=change)
        content = await workspace.read(self.path, max_bytes=MAX_FILE_BYTES)
        seen_in(workspace).require_current(content.path, content.sha256)
        try:
            file = await beside_the_loop(decode, content.data, len(content.data))
        except NotText:
            change = await _change(name, None, self.content, over_binary=True)
            return _Written(
                data=self.content.encode(),
                expected_sha256=content.sha256,
                change=change,
                about="replaces a binary file",
            )
        text, about, note = self.content, "", ""
        if file.newline == "\r\n" and "\r\n" not in text:
            text = text.replace("\n", "\r\n")
        try:
            data = file.encode(text)
        except UnicodeEncodeError:
            data = text.encode()
            about = f"{file.encoding} becomes UTF-8"
            note = f" It was written in {file.encoding} and is UTF-8 now, which the new content needs."
        change = await _change(name, file.text, text)
        return _Written(data=data, expected_sha256=content.sha256, change=change, about=about, note=note)


class WriteFile:
    name: ClassVar[str] = "write_file"
    kind: ClassVar[ToolKind] = "edit"
    asked: ClassVar[bool] = True
    description: ClassVar[str] = "Create a file, or replace all of its content. To change parts, use edit_file."
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> ChangePlan:
        asked = understood(given, WriteFileInput)
        return ChangePlan(doing="write", path=asked.path, prepare=asked.prepared)


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    old: str
    new: str
    replace_all: bool = False


class EditFileInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    edits: tuple[Edit, ...]

    async def prepared(self, workspace: Workspace) -> _Written:
        """Raises `ToolRefused` when it cannot be done as asked."""
        content = await workspace.read(self.path, max_bytes=MAX_FILE_BYTES)
        seen_in(workspace).require_current(content.path, content.sha256, for_edit=True)
        file = await self._text(content)
        edits = tuple(Replacement(old=edit.old, new=edit.new, every=edit.replace_all) for edit in self.edits)
        try:
            weight = len(file.text) * (100 if any(edit.every for edit in edits) else 1)  # each place is work
            text = await beside_the_loop(lambda before: edited(before, edits), file.text, weight)
        except EditRefused as error:
            raise ToolRefused(f"{self.path!r} was not changed: {error}") from error
        try:
            data = file.encode(text)
        except UnicodeEncodeError as error:
            missing = text[error.start]
            raise ToolRefused(
                f"{self.path!r} was not changed: it is written in {file.encoding}, which has no {missing!r}"
            ) from error
        change = await _change(shown_path(workspace, self.path), file.text, text)
        return _Written(data=data, expected_sha256=content.sha256, change=change)

    async def _text(self, content: FileContent) -> TextFile:
        try:
            return await beside_the_loop(decode, content.data, len(content.data))
        except NotText as error:
            raise ToolRefused(f"{self.path!r} is not a text file: {error}") from error


class EditFile:
    name: ClassVar[str] = "edit_file"
    kind: ClassVar[ToolKind] = "edit"
    asked: ClassVar[bool] = True
    description: ClassVar[str] = (
        "Change parts of a text file, all edits or none. Each `old` must be in the file exactly once (or replace_all), "
        "as the file is before any of these edits, and is replaced by `new`. Encoding and line endings are kept."
    )
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "edits": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "old": {"type": "string"},
                        "new": {"type": "string"},
                        "replace_all": {"type": "boolean"},
                    },
                    "required": ["old", "new"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["path", "edits"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> ChangePlan:
        asked = understood(given, EditFileInput)
        return ChangePlan(doing="edit", path=asked.path, prepare=asked.prepared)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def _change(path: str, before: str | None, after: str, *, over_binary: bool = False) -> FileChange:
    size = len(before or "") + len(after)
    return await beside_the_loop(lambda old: change_of(path, old, after, over_binary=over_binary), before, size)
