"""The tools that run commands: `bash`, and `bash_output` and `bash_stop` for what it started in the background.

Rule: what the model reads says how a command ended. Killed, timed out and failed are three different things.

A background command is a handle of the workspace, not a detached tool use: its `bash` use has its result as soon as it
runs, so an interrupt ends it like every other command, and the end of the session does in any case.
"""

import codecs
from typing import ClassVar

import anyio
import msgspec

from enginehouse_engines.openai_compatible.toolbox.printed import as_read
from enginehouse_engines.openai_compatible.toolbox.tool import (
    BadInput,
    Outcome,
    ToolRefused,
    Voice,
    one_line,
    understood,
)
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.permissions import JsonObject, ToolKind
from enginehouse_protocol.workspace import BackgroundCommand, CommandProgress, CommandResult, Workspace

DEFAULT_TIME_LIMIT_S = 120
MAX_TIME_LIMIT_S = 600
MAX_WAIT_S = 300
_FIRST_LOOK_S = 1.0
"""A command that fails at once should not have to be asked about."""
_STOP_LIMIT_S = 1.5


class _Runs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of plans that name no file."""

    @property
    def paths(self) -> tuple[str, ...]:
        return ()

    async def preview(self, _workspace: Workspace) -> tuple[FileChange, ...]:
        return ()


class BashPlan(_Runs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: str
    timeout_s: float | None = None
    background: bool = False

    @property
    def title(self) -> str:
        where = " (in the background)" if self.background else ""
        return f"$ {one_line(self.command, 160 - len(where) - 2)}{where}"

    async def run(self, workspace: Workspace, voice: Voice) -> Outcome:
        if self.background:
            return await self._start(workspace)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        async def pass_on(data: bytes) -> None:
            if text := decoder.decode(data):
                await voice.print(text)

        limit_s = min(self.timeout_s or DEFAULT_TIME_LIMIT_S, MAX_TIME_LIMIT_S)
        result = await workspace.run(self.command, time_limit_s=limit_s, on_output=pass_on)
        if rest := decoder.decode(b"", final=True):
            await voice.print(rest)
        output = await as_read(result.output, result.dropped_bytes, workspace)
        note = _ending(result, limit_s)
        text = "\n".join(part for part in (output, note) if part)
        if result.ended == "interrupted":
            return Outcome(text=text, status="interrupted")
        return Outcome(text=text or "[no output]", status="error" if note else "ok")

    async def _start(self, workspace: Workspace) -> Outcome:
        started = await workspace.start(self.command)
        try:
            progress = await started.read(wait_s=_FIRST_LOOK_S)
            text = await _progress_text(progress, workspace)
        except BaseException:
            # Nobody has been told its name, so nobody could stop it.
            with anyio.move_on_after(_STOP_LIMIT_S, shield=True):
                await started.stop()
            raise
        failed = progress.ended is not None and progress.exit_code != 0
        return Outcome(text=f"Started in the background as {started.id}.\n{text}", status="error" if failed else "ok")


class Bash:
    name: ClassVar[str] = "bash"
    kind: ClassVar[ToolKind] = "execute"
    asked: ClassVar[bool] = True
    description: ClassVar[str] = (
        "Run a bash command in the working directory. Each call is a new shell. It is waited for, at most "
        f"{DEFAULT_TIME_LIMIT_S} s unless timeout_s says otherwise (up to {MAX_TIME_LIMIT_S}), and what it leaves "
        "running is ended. With background it goes on (servers, watchers); see bash_output, bash_stop."
    )
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "timeout_s": {"type": "number"},
            "background": {"type": "boolean"},
        },
        "required": ["command"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> BashPlan:
        plan = understood(given, BashPlan)
        if not plan.command.strip():
            raise BadInput("command is empty")
        if plan.timeout_s is not None and not plan.timeout_s > 0:
            raise BadInput("timeout_s must be greater than 0")
        if plan.background and plan.timeout_s is not None:
            raise BadInput("timeout_s is for commands that are waited for, not with background")
        return plan


class BashOutputPlan(_Runs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    wait_s: float = 0.0

    @property
    def title(self) -> str:
        return one_line(f"output of {self.id}")

    async def run(self, workspace: Workspace, _voice: Voice) -> Outcome:
        command = _found(self.id, workspace)
        progress = await command.read(wait_s=min(self.wait_s, MAX_WAIT_S))
        return Outcome(text=await _progress_text(progress, workspace))


class BashOutput:
    name: ClassVar[str] = "bash_output"
    kind: ClassVar[ToolKind] = "read"
    asked: ClassVar[bool] = False
    description: ClassVar[str] = (
        "What a background command printed since the last look, and whether it runs. wait_s: wait so long for news."
    )
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "wait_s": {"type": "number"}},
        "required": ["id"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> BashOutputPlan:
        plan = understood(given, BashOutputPlan)
        if not plan.wait_s >= 0:
            raise BadInput("wait_s must not be negative")
        return plan


class BashStopPlan(_Runs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str

    @property
    def title(self) -> str:
        return one_line(f"stop {self.id}")

    async def run(self, workspace: Workspace, _voice: Voice) -> Outcome:
        command = _found(self.id, workspace)
        await command.stop()
        return Outcome(text=await _progress_text(await command.read(), workspace))


class BashStop:
    name: ClassVar[str] = "bash_stop"
    kind: ClassVar[ToolKind] = "execute"
    asked: ClassVar[bool] = False
    description: ClassVar[str] = "End a background command and all it started."
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {"id": {"type": "string"}},
        "required": ["id"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> BashStopPlan:
        return understood(given, BashStopPlan)


def _found(wanted: str, workspace: Workspace) -> BackgroundCommand:
    for command in workspace.background:
        if command.id == wanted:
            return command
    known = "; ".join(f"{command.id} ($ {one_line(command.command, 60)})" for command in workspace.background)
    raise ToolRefused(
        f"there is no background command {wanted!r} in this session's present life; there "
        + (f"are: {known}" if known else "are none")
    )


async def _progress_text(progress: CommandProgress, workspace: Workspace) -> str:
    output = await as_read(progress.output, progress.dropped_bytes, workspace)
    match progress.ended:
        case None:
            how = "still running"
        case "stopped":
            how = "stopped"
        case "timed_out":
            how = "stopped: it ran too long"
        case "failed":
            how = "lost: the system could not go on with it"
        case "exited":
            how = f"exit code {progress.exit_code}" if progress.signal is None else f"ended by signal {progress.signal}"
    return f"{output or '[no new output]'}\n[{how}]"


def _ending(result: CommandResult, limit_s: float) -> str:
    """What to say about the end of a command; nothing when all is well."""
    match result.ended:
        case "timed_out":
            return f"[stopped after {limit_s:g} s: the time limit]"
        case "interrupted":
            return "[interrupted]"
        case "exited":
            if result.signal is not None:
                return f"[ended by signal {result.signal}]"
            if result.exit_code:
                return f"[exit code {result.exit_code}]"
    return ""
