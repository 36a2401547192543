"""From a call of the model to its result: understand, ask, run.

Rule: nothing runs that was not asked about, and what runs is the input that was decided on, not the one first asked.
A call we cannot understand is answered without asking anybody.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from enginehouse_engines.openai_compatible.stream import Reply
from enginehouse_engines.openai_compatible.tool_fragments import Call
from enginehouse_engines.openai_compatible.toolbox import TOOLS
from enginehouse_engines.openai_compatible.toolbox.tool import (
    BadInput,
    OnText,
    Outcome,
    Plan,
    Tool,
    ToolRefused,
    one_line,
    parsed,
    shown_path,
)
from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import SessionPort
from enginehouse_protocol.errors import EngineError, TranscriptUnavailable, UsageError, WorkspaceError
from enginehouse_protocol.events import ToolOutput, ToolResult, ToolUse
from enginehouse_protocol.ids import CallId, ReplyId, new_call_id
from enginehouse_protocol.permissions import Allow, JsonObject
from enginehouse_protocol.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A call with what we made of it: a plan, or the problem that stands in its way."""

    use: ToolUse
    tool: Tool | None = None
    plan: Plan | None = None
    problem: str = ""

    @property
    def only_looks(self) -> bool:
        return self.plan is None or self.use.kind in {"read", "search"}


async def prepare(reply: Reply, reply_id: ReplyId, workspace: Workspace) -> tuple[Prepared, ...]:
    """All calls of a reply, in their order. Reads what a preview needs, changes nothing."""
    cut = reply.finish == "length"
    return tuple([await _prepared(call, reply_id, workspace, cut=cut) for call in reply.calls])


async def _prepared(call: Call, reply_id: ReplyId, workspace: Workspace, *, cut: bool) -> Prepared:
    tool = TOOLS.get(call.name)
    given: JsonObject = {}
    try:
        given = parsed(call.arguments)
        if tool is None:
            raise BadInput(f"there is no tool {call.name!r}; there are {', '.join(TOOLS)}")
        plan = tool.plan(given)
    except BadInput as error:
        why = "the reply reached its length limit; " if cut else ""
        use = _use(
            call, reply_id, tool, given, title=one_line(f"{call.name or 'a tool without a name'} (not understood)")
        )
        return Prepared(use=use, tool=tool, problem=f"This call was not run: {why}{error}")
    use = _use(
        call,
        reply_id,
        tool,
        given,
        title=one_line(plan.title),
        paths=tuple(shown_path(workspace, path) for path in plan.paths),
    )
    return Prepared(use=msgspec.structs.replace(use, preview=await plan.preview(workspace)), tool=tool, plan=plan)


def _use(
    call: Call, reply_id: ReplyId, tool: Tool | None, given: JsonObject, *, title: str, paths: Sequence[str] = ()
) -> ToolUse:
    return ToolUse(
        call_id=new_call_id(),
        name=call.name,
        kind="other" if tool is None else tool.kind,
        title=title,
        input=given,
        arguments=call.arguments,
        provider_call_id=call.id or None,
        reply_id=reply_id,
        paths=tuple(paths),
    )


async def carry_out(prepared: Prepared, port: SessionPort, workspace: Workspace, log: logging.Logger) -> ToolResult:
    """Ask and, if allowed, run. Emits what it prints, not its result.

    Raises:
        TranscriptUnavailable: nothing can be recorded.
    """
    call_id = prepared.use.call_id
    if prepared.plan is None or prepared.tool is None:
        return result_of(call_id, Outcome(text=prepared.problem, status="error"))
    decision = await port.ask(prepared.use)
    if not isinstance(decision, Allow):
        return ToolResult(call_id=call_id, status="denied", content=(Text(text=f"Not allowed: {decision.reason}"),))
    plan, edited = prepared.plan, ""
    if decision.input is not None:
        ran = msgspec.json.encode(decision.input).decode()
        try:
            plan = prepared.tool.plan(decision.input)
        except BadInput as error:
            words = f"The person changed the input to {ran}, which the tool does not take: {error}. Nothing was run."
            return result_of(call_id, Outcome(text=words, status="error"))
        edited = f"The person changed the input before it ran. What ran: {ran}\n"

    async def on_text(text: str) -> None:
        await port.emit(ToolOutput(call_id=call_id, text=text))

    started = time.monotonic()
    outcome = await _run(plan, workspace, on_text, log)
    return result_of(
        call_id,
        msgspec.structs.replace(outcome, text=f"{edited}{outcome.text}"),
        duration_ms=round((time.monotonic() - started) * 1000),
    )


async def _run(plan: Plan, workspace: Workspace, on_text: OnText, log: logging.Logger) -> Outcome:
    try:
        return await plan.run(workspace, on_text)
    except (TranscriptUnavailable, EngineError):
        raise
    except (ToolRefused, WorkspaceError, UsageError) as error:
        return Outcome(text=str(error), status="error")
    except Exception as error:  # a tool ends here; its bug must not end the turn
        log.exception("tool failed: %s", plan.title)
        return Outcome(text=f"The tool itself failed: {type(error).__name__}: {error}", status="error")


def result_of(call_id: CallId, outcome: Outcome, *, duration_ms: int | None = None) -> ToolResult:
    return ToolResult(
        call_id=call_id,
        status=outcome.status,
        content=(Text(text=outcome.text),) if outcome.text else (),
        changes=outcome.changes,
        duration_ms=duration_ms,
    )
