"""From a call of the model to its result: understand, preview, ask, run.

Rules: nothing runs that was not asked about, and what runs is the input that was decided on, not the one first asked. A
call that we cannot understand, or whose preview says that it cannot be done, is answered without asking anybody.

A preview shows the files as the call will find them. So it is made with the reply only where every call before it just
looks; else the use is recorded without one, and its preview is made after those calls ran and goes with the question.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio.lowlevel
import msgspec

from enginehouse_engines.openai_compatible.stream import Reply
from enginehouse_engines.openai_compatible.tool_fragments import Call
from enginehouse_engines.openai_compatible.toolbox import TOOLS
from enginehouse_engines.openai_compatible.toolbox.tool import (
    BadInput,
    Outcome,
    Plan,
    Tool,
    ToolRefused,
    one_line,
    parsed,
    shown_path,
    takes,
)
from enginehouse_engines.openai_compatible.toolbox.voice import PortVoice
from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import SessionPort
from enginehouse_protocol.errors import EngineError, TranscriptUnavailable, UsageError, WorkspaceError
from enginehouse_protocol.events import ToolResult, ToolUse
from enginehouse_protocol.ids import CallId, ReplyId, new_call_id
from enginehouse_protocol.permissions import Allow, JsonObject
from enginehouse_protocol.workspace import Workspace

DoneT = TypeVar("DoneT")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A call with what we made of it: a plan, or the problem that stands in its way."""

    use: ToolUse
    tool: Tool | None = None
    plan: Plan | None = None
    """None when the call was not understood."""
    problem: str = ""
    """Why it is not run, for the model."""
    previewed: bool = False

    @property
    def only_looks(self) -> bool:
        return bool(self.problem) or self.use.kind in {"read", "search"}


async def prepare(reply: Reply, reply_id: ReplyId, workspace: Workspace, log: logging.Logger) -> tuple[Prepared, ...]:
    """All calls of a reply, in their order. Reads what a preview needs, changes nothing."""
    calls: list[Prepared] = []
    for call in reply.calls:
        cut = reply.too_long and call is reply.calls[-1]
        prepared = _understood(call, reply_id, workspace, cut=cut)
        if all(earlier.only_looks for earlier in calls):
            prepared = await _previewed(prepared, workspace, log)
        calls.append(prepared)
    return tuple(calls)


def _understood(call: Call, reply_id: ReplyId, workspace: Workspace, *, cut: bool) -> Prepared:
    tool = TOOLS.get(call.name)
    given: JsonObject = {}
    try:
        if cut and not call.arguments.strip():
            raise BadInput("its arguments did not come")
        given = parsed(call.arguments)
        if tool is None:
            raise BadInput(f"there is no tool {call.name!r}; there are {', '.join(TOOLS)}")
        plan = tool.plan(given)
    except BadInput as error:
        why = "the reply reached its length limit; " if cut else ""
        wanted = "" if tool is None else f". {takes(tool)}"
        use = _use(
            call, reply_id, tool, given, title=one_line(f"{call.name or 'a tool without a name'} (not understood)")
        )
        return Prepared(use=use, tool=tool, problem=f"This call was not run: {why}{error}{wanted}")
    use = _use(
        call,
        reply_id,
        tool,
        given,
        title=one_line(plan.title),
        paths=tuple(shown_path(workspace, path) for path in plan.paths),
    )
    return Prepared(use=use, tool=tool, plan=plan)


async def _previewed(prepared: Prepared, workspace: Workspace, log: logging.Logger) -> Prepared:
    plan = prepared.plan
    if plan is None or prepared.previewed:
        return prepared
    preview = await _tried(lambda: plan.preview(workspace), plan, log)
    if isinstance(preview, Outcome):
        return replace(prepared, problem=preview.text, previewed=True)
    use = msgspec.structs.replace(prepared.use, title=one_line(plan.title), preview=preview)
    return replace(prepared, use=use, previewed=True)


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


async def carry_out(
    prepared: Prepared, port: SessionPort, workspace: Workspace, log: logging.Logger, *, shows_images: bool = False
) -> ToolResult:
    """Ask and, if allowed, run. Emits what it prints, not its result. After an interrupt nothing is asked or begun.

    `shows_images`: whether the model takes them.

    Raises:
        TranscriptUnavailable: nothing can be recorded.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    prepared = await _previewed(prepared, workspace, log)
    call_id = prepared.use.call_id
    if prepared.problem or prepared.plan is None or prepared.tool is None:
        return result_of(call_id, Outcome(text=prepared.problem, status="error"))
    decision = await port.ask(prepared.use) if prepared.tool.asked else Allow()
    await anyio.lowlevel.checkpoint_if_cancelled()
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

    voice = PortVoice(port, call_id, shows_images)
    started = time.monotonic()
    outcome = await _tried(lambda: plan.run(workspace, voice), plan, log)
    return result_of(
        call_id,
        msgspec.structs.replace(outcome, text=f"{edited}{outcome.text}"),
        duration_ms=round((time.monotonic() - started) * 1000),
    )


async def _tried(work: Callable[[], Awaitable[DoneT]], plan: Plan, log: logging.Logger) -> DoneT | Outcome:
    """What `work` gives, or why it does not."""
    try:
        return await work()
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
        content=(*((Text(text=outcome.text),) if outcome.text else ()), *outcome.images),
        changes=outcome.changes,
        duration_ms=duration_ms,
    )
