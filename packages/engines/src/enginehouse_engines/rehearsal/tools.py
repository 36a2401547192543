"""The rehearsal's hands: reads, edits and commands, all real, all through the workspace.

Rule: first the use is described, then core is asked, then exactly the allowed input runs.
"""

import codecs
import difflib
import time
from dataclasses import dataclass
from typing import Literal

from enginehouse_engines.rehearsal.scenario import EditFile, ReadFile, RunCommand, ToolStep
from enginehouse_protocol.content import FileChange, Text
from enginehouse_protocol.engine import SessionPort
from enginehouse_protocol.errors import FileUnusable, WorkspaceError
from enginehouse_protocol.events import ToolOutput, ToolResult, ToolUse
from enginehouse_protocol.ids import new_call_id
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.workspace import Workspace

READ_LIMIT_BYTES = 1 << 18
COMMAND_LIMIT_S = 120.0


@dataclass(frozen=True)
class Edited:
    """A file before and after. `sha256` is that of the file as read, "" when there was none."""

    path: str
    before: str
    after: str
    sha256: str

    @property
    def change(self) -> FileChange:
        lines = difflib.unified_diff(self.before.splitlines(True), self.after.splitlines(True))
        return FileChange(
            path=self.path,
            change="modified" if self.sha256 else "created",
            diff="".join(list(lines)[2:]),
        )


async def describe(step: ToolStep, workspace: Workspace) -> ToolUse:
    """The use as a person and a rule see it, with a preview where there is something to see."""
    match step:
        case ReadFile(path=path):
            return ToolUse(
                call_id=new_call_id(),
                name="read_file",
                kind="read",
                title=f"read {workspace.display(path)}",
                input={"path": path},
                paths=(path,),
            )
        case RunCommand(command=command):
            lines = command.splitlines() or [""]
            return ToolUse(
                call_id=new_call_id(),
                name="bash",
                kind="execute",
                title=f"$ {lines[0]}" + (" …" if len(lines) > 1 else ""),
                input={"command": command},
            )
        case EditFile(path=path, old=old, new=new):
            given: JsonObject = {"path": path, "old": old, "new": new}
            try:
                preview = ((await _edited(given, workspace)).change,)
            except WorkspaceError:
                preview = ()  # running it will say what is wrong
            return ToolUse(
                call_id=new_call_id(),
                name="edit_file",
                kind="edit",
                title=f"edit {workspace.display(path)}",
                input=given,
                paths=(path,),
                preview=preview,
            )


class Running:
    """One allowed use. `output` is what its command has printed so far; an interrupt keeps it."""

    def __init__(self, use: ToolUse, port: SessionPort, workspace: Workspace) -> None:
        self.output = ""
        self._use = use
        self._port = port
        self._workspace = workspace
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._started = time.monotonic()

    async def finish(self, given: JsonObject) -> ToolResult:
        """Do it with this input. What the workspace refuses is an error of the tool, not of the turn."""
        try:
            match self._use.kind:
                case "read":
                    content = await self._workspace.read(str(given["path"]), max_bytes=READ_LIMIT_BYTES)
                    return self.result("ok", content.data.decode("utf-8", "replace"))
                case "edit":
                    return await self._edit(given)
                case _:
                    return await self._command(given)
        except WorkspaceError as error:
            return self.result("error", str(error))
        except KeyError as error:
            return self.result("error", f"the edited input has no {error}")

    def interrupted(self) -> ToolResult:
        return self.result("interrupted", self.output)

    def result(
        self, status: Literal["ok", "error", "interrupted"], text: str, changes: tuple[FileChange, ...] = ()
    ) -> ToolResult:
        return ToolResult(
            call_id=self._use.call_id,
            status=status,
            content=(Text(text=text),) if text else (),
            changes=changes,
            duration_ms=round((time.monotonic() - self._started) * 1000),
        )

    async def _edit(self, given: JsonObject) -> ToolResult:
        edited = await _edited(given, self._workspace)
        if edited.before == edited.after and edited.sha256:
            return self.result("ok", f"{edited.path} is already as it should be")
        if given == self._use.input and self._use.preview not in ((), (edited.change,)):
            raise FileUnusable(edited.path, "it changed since this was asked")
        await self._workspace.write(edited.path, edited.after.encode(), expected_sha256=edited.sha256)
        return self.result("ok", f"changed {edited.path}", (edited.change,))

    async def _command(self, given: JsonObject) -> ToolResult:
        done = await self._workspace.run(str(given["command"]), time_limit_s=COMMAND_LIMIT_S, on_output=self._print)
        text = done.output.decode("utf-8", "replace")
        if done.ended == "timed_out":
            return self.result("error", f"{text}\nended after {COMMAND_LIMIT_S:.0f} s")
        if done.ended == "interrupted":
            return self.result("interrupted", text)
        if done.exit_code == 0:
            return self.result("ok", text)
        how = f"exit code {done.exit_code}" if done.exit_code is not None else f"signal {done.signal}"
        return self.result("error", f"{text}\n{how}".lstrip())

    async def _print(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        self.output += text
        if text:
            await self._port.emit(ToolOutput(call_id=self._use.call_id, text=text))


async def _edited(given: JsonObject, workspace: Workspace) -> Edited:
    path, old, new = str(given["path"]), str(given["old"]), str(given["new"])
    if not old:
        if await workspace.stat(path) is not None:
            raise FileUnusable(path, "it exists already")
        return Edited(path, "", new, "")
    content = await workspace.read(path, max_bytes=READ_LIMIT_BYTES)
    try:
        before = content.data.decode()
    except UnicodeDecodeError as error:
        raise FileUnusable(path, "it is not written in UTF-8") from error
    if before.count(old) == 1:
        return Edited(path, before, before.replace(old, new), content.sha256)
    if old not in before and new in before:
        return Edited(path, before, before, content.sha256)  # a turn that was cut had done it already
    raise FileUnusable(path, f"the text to replace occurs {before.count(old)} times, not once")
