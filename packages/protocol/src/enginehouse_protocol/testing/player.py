"""Plays the steps of one scripted turn.

Rule: whatever a step opened is closed before it is left, also when it is cancelled: a cut message stands with
`complete=False`, a cut tool use gets `interrupted`. Those last words are shielded and bounded.
"""

import time

import anyio
from anyio.abc import TaskGroup

from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.content import FileChange, Text
from enginehouse_protocol.engine import Opening, Turn, TurnEnd
from enginehouse_protocol.errors import EngineExited, TranscriptUnavailable, WorkspaceError
from enginehouse_protocol.events import (
    DurableEngineBody,
    MessageAssistant,
    MessageDelta,
    PlanEntry,
    PlanUpdated,
    QuestionAsked,
    Reasoning,
    ReasoningDelta,
    ToolDetached,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.ids import (
    ReplyId,
    new_call_id,
    new_message_id,
    new_question_id,
    new_reply_id,
)
from enginehouse_protocol.permissions import Allow, JsonObject
from enginehouse_protocol.testing.script import (
    AskPerson,
    Crash,
    Do,
    Emit,
    End,
    Fail,
    Hang,
    Plan,
    RequestTurn,
    Say,
    Step,
    Together,
    Usage,
    UseTool,
    Wait,
    words,
)

LAST_WORDS_S = 1.0
READ_LIMIT_BYTES = 1 << 20


class TurnIsOver(Exception):
    """An `End` step was played."""

    def __init__(self, end: TurnEnd) -> None:
        super().__init__(end)
        self.end = end


class Player:
    """One turn being played. `known` grows with what is said and with what tools answered."""

    def __init__(self, opening: Opening, turn: Turn, background: TaskGroup, known: list[str]) -> None:
        self.known = known
        self.hanging: Hang | None = None
        self._opening = opening
        self._port = opening.port
        self._turn = turn
        self._background = background

    async def play(self, step: Step) -> None:
        match step:
            case Say():
                await self._say(step)
            case UseTool():
                await self._together((step,))
            case Together():
                await self._together(step.uses)
            case AskPerson():
                await self._ask_person(step)
            case Plan():
                await self._port.emit(_plan(step))
            case Usage():
                await self._port.emit(
                    UsageUpdated(scope="request", input_tokens=step.input_tokens, output_tokens=step.output_tokens)
                )
            case Emit():
                await self._port.emit(step.body)
            case Wait():
                await step.gate.passed()
            case Hang():
                await self._hang(step)
            case Fail():
                raise step.error
            case Crash():
                await self._crash(step)
            case RequestTurn():
                self._background.start_soon(self._request_turn, step)
            case End():
                raise TurnIsOver(TurnEnd(stop=step.stop, detail=step.detail))
            case Do():
                await step.action(self._opening, self._turn)
            case _:
                raise TypeError(f"{type(step).__name__} is no step of a script")

    async def _say(self, step: Say) -> None:
        text = step.text if isinstance(step.text, str) else step.text(tuple(self.known))
        pieces = step.pieces or words(text)
        message_id, reply_id, started = new_message_id(), new_reply_id(), time.monotonic()
        shown: list[str] = []

        def message(complete: bool) -> MessageAssistant:
            return MessageAssistant(
                message_id=message_id,
                reply_id=reply_id,
                text="".join(shown),
                reasoning=Reasoning(text=step.reasoning) if step.reasoning else None,
                complete=complete,
                duration_ms=round((time.monotonic() - started) * 1000),
            )

        try:
            if step.reasoning:
                await self._port.emit(ReasoningDelta(message_id=message_id, text=step.reasoning))
            for number, piece in enumerate(pieces):
                shown.append(piece)
                await self._port.emit(MessageDelta(message_id=message_id, text=piece))
                if number == 0 and step.hold is not None:
                    await step.hold.passed()
                if step.pause_s:
                    await anyio.sleep(step.pause_s)
        except anyio.get_cancelled_exc_class():
            await self._last_words(message(complete=False))
            raise
        finally:
            self.known.append(f"assistant: {''.join(shown)}")
        await self._port.emit(message(complete=True))

    async def _crash(self, step: Crash) -> None:
        message_id = new_message_id()
        for piece in words(step.text):
            await self._port.emit(MessageDelta(message_id=message_id, text=piece))
        raise EngineExited("the scripted engine crashed as it was told to")

    async def _together(self, steps: tuple[UseTool, ...]) -> None:
        reply_id = new_reply_id()
        uses = [_use(step, reply_id) for step in steps]
        left = {use.call_id for use in uses}
        try:
            for use in uses:
                await self._port.emit(use)
            async with anyio.create_task_group() as tools:
                for step, use in zip(steps, uses, strict=True):
                    tools.start_soon(self._one_use, step, use)
            left.clear()
        except anyio.get_cancelled_exc_class():
            for call_id in left:
                # one that has its result already is ignored, by contract
                await self._last_words(ToolResult(call_id=call_id, status="interrupted"))
            raise
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # one failure ends the turn, under its own name

    async def _one_use(self, step: UseTool, use: ToolUse) -> None:
        if step.refused:
            await self._finish(use, "error", step.refused)
            return
        allowed = use.input
        if step.ask:
            decision = await self._port.ask(use)
            if not isinstance(decision, Allow):
                await self._finish(use, "denied", decision.reason)
                return
            allowed = use.input if decision.input is None else decision.input
        if step.detached is not None:
            await self._port.emit(ToolDetached(call_id=use.call_id))
            self._background.start_soon(self._finish_later, step, use)
            return
        if step.hold is not None:
            await step.hold.passed()
        started = time.monotonic()
        if step.result is not None:
            await self._finish(use, "error" if step.error else "ok", step.result)
        else:
            await self._port.emit(await self._run(step, use, allowed, started))

    async def _run(self, step: UseTool, use: ToolUse, given: JsonObject, started: float) -> ToolResult:
        """Do it, for real where the kind says how."""
        workspace = self._opening.workspace
        status, text, changes = "ok", "done", ()
        try:
            match use.kind:
                case "execute":
                    result = await workspace.run(
                        str(given["command"]),
                        time_limit_s=step.time_limit_s,
                        on_output=lambda data: self._port.emit(
                            ToolOutput(call_id=use.call_id, text=data.decode("utf-8", "replace"))
                        ),
                    )
                    text = result.output.decode("utf-8", "replace")
                    status = "ok" if result.exit_code == 0 else "error"
                case "read":
                    content = await workspace.read(str(given["path"]), max_bytes=READ_LIMIT_BYTES)
                    text = content.data.decode("utf-8", "replace")
                case "edit":
                    path = str(given["path"])
                    there = await workspace.stat(path)
                    await workspace.write(path, str(given["content"]).encode())
                    changes = (FileChange(path=path, change="created" if there is None else "modified"),)
                case _:
                    pass
        except WorkspaceError as error:
            status, text = "error", str(error)
        self.known.append(f"{use.name}: {text}")
        return ToolResult(
            call_id=use.call_id,
            status="ok" if status == "ok" else "error",
            content=(Text(text=text),),
            changes=changes,
            duration_ms=round((time.monotonic() - started) * 1000),
        )

    async def _finish(self, use: ToolUse, status: str, text: str) -> None:
        self.known.append(f"{use.name} {status}: {text}")
        result = ToolResult(
            call_id=use.call_id,
            status="ok" if status == "ok" else "denied" if status == "denied" else "error",
            content=(Text(text=text),),
        )
        await self._port.emit(result)

    async def _finish_later(self, step: UseTool, use: ToolUse) -> None:
        assert step.detached is not None
        try:
            await step.detached.passed()
            await self._finish(use, "error" if step.error else "ok", step.result or "done")
        except anyio.get_cancelled_exc_class():
            await self._last_words(ToolResult(call_id=use.call_id, status="interrupted"))
            raise
        except TranscriptUnavailable:
            pass  # there is no turn to stop

    async def _ask_person(self, step: AskPerson) -> None:
        answers = await self._port.question(
            QuestionAsked(
                question_id=new_question_id(),
                text=step.text,
                kind="plan" if step.plan else "choice",
                options=step.choices,
            )
        )
        self.known.append(f"answers: {answers}")
        for following in step.then(answers):
            await self.play(following)

    async def _hang(self, step: Hang) -> None:
        self.hanging = step
        try:
            await step.gate.passed()
        finally:
            self.hanging = None

    async def _request_turn(self, step: RequestTurn) -> None:
        if step.gate is not None:
            await step.gate.passed()
        self._port.request_turn(step.origin)

    async def _last_words(self, body: DurableEngineBody) -> None:
        with anyio.move_on_after(LAST_WORDS_S, shield=True):
            try:
                await self._port.emit(body)
            except TranscriptUnavailable:
                pass  # core closes what is open when it can write again


def _use(step: UseTool, reply_id: ReplyId) -> ToolUse:
    return ToolUse(
        call_id=step.call_id or new_call_id(),
        name=step.name,
        kind=step.kind,
        title=step.title or f"{step.name} {well_formed(str(next(iter(step.input.values()), '')))}".rstrip(),
        input=step.input,
        arguments=step.arguments,
        reply_id=reply_id,
        provider_call_id=step.provider_call_id,
        paths=step.paths or ((str(step.input["path"]),) if "path" in step.input else ()),
        preview=step.preview,
        parent_call_id=step.parent_call_id,
    )


def _plan(step: Plan) -> PlanUpdated:
    return PlanUpdated(
        entries=tuple(
            PlanEntry(
                text=text,
                status="completed" if at < step.done else "in_progress" if at == step.done else "pending",
            )
            for at, text in enumerate(step.entries)
        )
    )
