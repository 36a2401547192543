"""Plays a scene from a given step on.

Rule: whatever a step opened is closed before it is left, also when it is cancelled: a cut message stands with
`complete=False`, a cut use gets its result `interrupted`. Those last words are shielded and bounded.
"""

import re
import time
from collections.abc import Sequence

import anyio
import anyio.lowlevel

from enginehouse_engines.rehearsal.position import last_interruption
from enginehouse_engines.rehearsal.scenario import (
    EditFile,
    Progress,
    ProposePlan,
    ReadFile,
    Recall,
    RunCommand,
    Say,
    Step,
    ToolStep,
)
from enginehouse_engines.rehearsal.tools import Running, describe
from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import Opening
from enginehouse_protocol.errors import TranscriptUnavailable
from enginehouse_protocol.events import (
    DurableEngineBody,
    Event,
    MessageAssistant,
    MessageDelta,
    PlanEntry,
    PlanUpdated,
    QuestionAsked,
    QuestionOption,
    ToolResult,
)
from enginehouse_protocol.ids import new_message_id, new_question_id, new_reply_id
from enginehouse_protocol.permissions import Allow

LAST_WORDS_S = 1.0


class Player:
    """One turn. `events` is the record as it was when the turn began; `pace_s` is the pause after each word."""

    def __init__(self, opening: Opening, events: Sequence[Event], pace_s: float) -> None:
        self._port = opening.port
        self._workspace = opening.workspace
        self._events = events
        self._pace_s = pace_s

    async def play(self, steps: Sequence[Step]) -> None:
        """All steps in order, or as many as the person's answers and the facts allow."""
        for step in steps:
            otherwise = await self._one(step)
            if otherwise:
                await self.say(otherwise, final=True)
                return

    async def say(self, text: str, *, final: bool, pause_s: float | None = None) -> None:
        """Stream it word by word, then say it for good."""
        message_id, reply_id, started = new_message_id(), new_reply_id(), time.monotonic()
        shown = ""

        def message(*, complete: bool) -> MessageAssistant:
            return MessageAssistant(
                message_id=message_id,
                reply_id=reply_id,
                text=shown,
                phase="final" if final else "commentary",
                complete=complete,
                duration_ms=round((time.monotonic() - started) * 1000),
            )

        try:
            for word in re.findall(r"\S+\s*|\s+", text):
                shown += word
                await self._port.emit(MessageDelta(message_id=message_id, text=word))
                await anyio.sleep(self._pace_s if pause_s is None else pause_s)
        except anyio.get_cancelled_exc_class():
            if shown:
                await self._last_words(message(complete=False))
            raise
        await self._port.emit(message(complete=True))

    async def _one(self, step: Step) -> str:
        """Play one step. The result is what to say instead of going on; "" goes on."""
        match step:
            case Say():
                await self.say(step.text, final=step.final, pause_s=step.pause_s)
                return ""
            case Recall():
                await self.say(self._recalled(step), final=False)
                return ""
            case ReadFile() | RunCommand() | EditFile():
                return step.otherwise if not _as_expected(step, await self._use(step)) else ""
            case ProposePlan():
                return "" if await self._approved(step) else step.otherwise
            case Progress():
                await self._port.emit(_plan(step))
                return ""

    async def _use(self, step: ToolStep) -> ToolResult:
        use = await describe(step, self._workspace)
        await self._port.emit(use)
        running = Running(use, self._port, self._workspace)
        try:
            decision = await self._port.ask(use)
            await anyio.lowlevel.checkpoint_if_cancelled()  # interrupted while the person was asked
            if isinstance(decision, Allow):
                result = await running.finish(use.input if decision.input is None else decision.input)
            else:
                result = ToolResult(call_id=use.call_id, status="denied", content=(Text(text=decision.reason),))
            await self._port.emit(result)
        except anyio.get_cancelled_exc_class():
            await self._last_words(running.interrupted())  # ignored when the result is there already
            raise
        return result

    async def _approved(self, step: ProposePlan) -> bool:
        answers = await self._port.question(
            QuestionAsked(
                question_id=new_question_id(),
                text=step.text,
                kind="plan",
                options=tuple(QuestionOption(label=label) for label in step.options),
                free_text=False,
            )
        )
        return answers is not None and answers[:1] == step.options[:1]

    def _recalled(self, step: Recall) -> str:
        cut = last_interruption(self._events)
        if cut is None:
            return step.otherwise
        if not cut.tool:
            return "The record says that the last turn was interrupted while no command was running."
        got = f" Its last line was “{cut.output}”." if cut.output else ""
        return (
            f"The record says that the last turn was interrupted while `{cut.tool}` was running.{got} The command "
            "is recorded as interrupted, not as done, and nothing of it goes on."
        )

    async def _last_words(self, body: DurableEngineBody) -> None:
        with anyio.move_on_after(LAST_WORDS_S, shield=True):
            try:
                await self._port.emit(body)
            except TranscriptUnavailable:
                pass  # core closes what is open when it can write again


def _as_expected(step: ToolStep, result: ToolResult) -> bool:
    if isinstance(step, RunCommand):
        wanted = {"pass": ("ok",), "fail": ("error",), "any": ("ok", "error")}[step.expected]
        return result.status in wanted
    return result.status == "ok"


def _plan(step: Progress) -> PlanUpdated:
    return PlanUpdated(
        entries=tuple(
            PlanEntry(
                text=text,
                status="completed"
                if at < step.done
                else "in_progress"
                if at == step.done and step.started
                else "pending",
            )
            for at, text in enumerate(step.entries)
        )
    )
