"""The tool that runs commands: `bash`.

Rule: what the model reads says how the command ended. Killed, timed out and failed are three different things.
"""

import codecs
from typing import ClassVar

import msgspec

from enginehouse_engines.openai_compatible.toolbox.tool import (
    BadInput,
    OnText,
    Outcome,
    capped,
    one_line,
    understood,
)
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.permissions import JsonObject, ToolKind
from enginehouse_protocol.workspace import CommandResult, Workspace

DEFAULT_TIME_LIMIT_S = 120
MAX_TIME_LIMIT_S = 600


class BashPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: str
    timeout_s: float | None = None

    @property
    def title(self) -> str:
        return f"$ {one_line(self.command)}"

    @property
    def paths(self) -> tuple[str, ...]:
        return ()

    async def preview(self, _workspace: Workspace) -> tuple[FileChange, ...]:
        return ()

    async def run(self, workspace: Workspace, on_text: OnText) -> Outcome:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        async def pass_on(data: bytes) -> None:
            if text := decoder.decode(data):
                await on_text(text)

        limit_s = min(self.timeout_s or DEFAULT_TIME_LIMIT_S, MAX_TIME_LIMIT_S)
        result = await workspace.run(self.command, time_limit_s=limit_s, on_output=pass_on)
        if rest := decoder.decode(b"", final=True):
            await on_text(rest)
        output = capped(result.output.decode("utf-8", "replace"))
        note = _ending(result, limit_s)
        dropped = f"[{result.dropped_bytes} bytes from its middle were not kept]" if result.dropped_bytes else ""
        text = "\n".join(part for part in (output.removesuffix("\n"), dropped, note) if part)
        if result.ended == "interrupted":
            return Outcome(text=text, status="interrupted")
        return Outcome(text=text or "[no output]", status="error" if note else "ok")


class Bash:
    name: ClassVar[str] = "bash"
    kind: ClassVar[ToolKind] = "execute"
    description: ClassVar[str] = (
        "Run a bash command in the working directory and wait for it. Each call is a new shell. What it leaves "
        f"running in the background is ended. Limit: {DEFAULT_TIME_LIMIT_S} s unless timeout_s says otherwise, at "
        f"most {MAX_TIME_LIMIT_S} s."
    )
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout_s": {"type": "number"}},
        "required": ["command"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> BashPlan:
        plan = understood(given, BashPlan)
        if not plan.command.strip():
            raise BadInput("command is empty")
        if plan.timeout_s is not None and not plan.timeout_s > 0:
            raise BadInput("timeout_s must be greater than 0")
        return plan


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
