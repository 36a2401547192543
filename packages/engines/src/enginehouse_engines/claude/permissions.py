"""Every use of a tool goes to core before it runs, whatever the person's own Claude settings would allow.

Rule: the hook answers `ask` for each use, in so many words, so that the CLI asks us (`can_use_tool`), once; a hook that
said nothing would let the person's allow rules run it unasked. What fails here blocks. Nothing is decided here: core
decides, and what nobody answers is a deny.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
from claude_agent_sdk import (
    HookContext,
    HookInput,
    HookJSONOutput,
    HookMatcher,
    PermissionResult,
    PermissionResultAllow,
    PermissionResultDeny,
    ToolPermissionContext,
)
from claude_agent_sdk.types import HookEvent

from enginehouse_engines.claude.outbox import Outbox
from enginehouse_engines.claude.questions import ANSWERED, Asked, answered_input, plan_question, questions_of
from enginehouse_engines.claude.translator import Translator
from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.engine import SessionPort
from enginehouse_protocol.errors import EnginehouseError
from enginehouse_protocol.events import ToolUse
from enginehouse_protocol.ids import CallId
from enginehouse_protocol.permissions import Allow, Deny, Expired, JsonObject

_A_DAY_S: Final = 86_400.0
_FRAME_S: Final = 1.0
_CANCELLED: Final = "the request was cancelled before anybody answered"
_UNSEEN: Final = "this use was not recorded, so nobody could be asked about it; try again"


class Permissions:
    """For one session; it outlives the CLI's process."""

    def __init__(
        self,
        port: SessionPort,
        translator: Translator,
        outbox: Outbox,
        recorded: Callable[[CallId], Awaitable[ToolUse]],
        stopping: Callable[[], bool],
        log: logging.Logger,
    ) -> None:
        """`recorded` returns a use once it has been emitted. While `stopping`, nothing more is allowed."""
        self._port = port
        self._translator = translator
        self._outbox = outbox
        self._recorded = recorded
        self._stopping = stopping
        self._log = log
        self._pending: set[anyio.CancelScope] = set()

    def hooks(self) -> dict[HookEvent, list[HookMatcher]]:
        return {"PreToolUse": [HookMatcher(hooks=[self._before], timeout=_A_DAY_S, on_failure="block")]}

    async def can_use_tool(self, name: str, given: dict[str, Any], context: ToolPermissionContext) -> PermissionResult:
        """Called by the SDK in a task for each use, which it cancels when the CLI takes the question back."""
        scope = anyio.CancelScope()
        self._pending.add(scope)
        try:
            with scope:
                return await self._decide(name, given, context.tool_use_id or "")
        except EnginehouseError as error:
            self._log.warning("%s could not be asked about: %s", name, error)
            return PermissionResultDeny(message=f"nobody could be asked: {error}")
        finally:
            self._pending.discard(scope)
        return PermissionResultDeny(message=_CANCELLED)

    def cancel(self) -> None:
        """The process that asked has ended: whoever is asked need not answer any more."""
        for scope in tuple(self._pending):
            scope.cancel()

    async def _before(self, _given: HookInput, _use_id: str | None, _context: HookContext) -> HookJSONOutput:
        return {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "ask",
                "permissionDecisionReason": "Enginehouse asks about every use",
            }
        }

    async def _decide(self, name: str, given: JsonObject, use_id: str) -> PermissionResult:
        use = await self._use(use_id, name, given)
        if use is None:
            self._log.error("claude asked about %s %s, of which nothing was seen", name, use_id)
            return PermissionResultDeny(message=_UNSEEN)
        written = await self._recorded(use.call_id)
        match name:
            case "AskUserQuestion":
                return await self._question(use, given, use_id)
            case "ExitPlanMode":
                return await self._plan(written, use_id)
            case _:
                return await self._permission(use, use_id)

    async def _permission(self, use: ToolUse, use_id: str) -> PermissionResult:
        decision = await self._port.ask(use)
        if self._stopping() and isinstance(decision, Allow):
            decision = Deny(reason=_CANCELLED)
        self._translator.decided(use_id, decision)
        if isinstance(decision, Allow):
            return PermissionResultAllow(updated_input=decision.input)
        return PermissionResultDeny(message=well_formed(decision.reason))

    async def _question(self, use: ToolUse, given: JsonObject, use_id: str) -> PermissionResult:
        asked = questions_of(given, use)
        answers: list[tuple[Asked, tuple[str, ...]]] = []
        for each in asked:
            answer = await self._port.question(each.question)
            if answer is None or self._stopping():
                return self._refused(use_id, Expired(reason="nobody answered"))
            answers.append((each, answer))
        return PermissionResultAllow(updated_input=answered_input(given, answers))

    async def _plan(self, written: ToolUse, use_id: str) -> PermissionResult:
        """The plan is only in the use as it was written: the CLI takes it out of what it asks about."""
        question = plan_question(written)
        answer = await self._port.question(question)
        if answer is None or self._stopping():
            return self._refused(use_id, Expired(reason="nobody answered, so the plan is not approved; keep planning"))
        if answer[:1] == (question.options[0].label,):
            return PermissionResultAllow()
        words = "; ".join(word for word in answer if word not in ANSWERED)
        said = f", who says: {words}" if words else ""
        return self._refused(use_id, Deny(reason=f"The plan is not approved by the person{said}. Keep planning."))

    def _refused(self, use_id: str, decision: Deny | Expired) -> PermissionResult:
        self._translator.decided(use_id, decision)
        return PermissionResultDeny(message=well_formed(decision.reason))

    async def _use(self, use_id: str, name: str, given: JsonObject) -> ToolUse | None:
        """What core is asked about. The question may overtake the frame that announces the use, by very little."""
        with anyio.move_on_after(_FRAME_S):
            while (use := self._translator.asked(use_id, name, given)) is None:
                await self._outbox.changed()
            return use
        return None
