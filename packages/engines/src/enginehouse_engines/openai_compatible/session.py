"""The loop: one model call after the other, and the tools the model asks for in between.

Rules: it keeps no conversation of its own, only a fold of the transcript, brought up to date before every request.
`step.started` is recorded before a request leaves. However a turn ends, every tool use it recorded has its result and
text a person has seen is a message.

Calls of one reply run side by side when all of them only look; as soon as one writes or executes, all of them are
asked and run one after the other, in the model's order. All of them are recorded before the first one is asked, so that
the record has the whole reply whatever happens then.
"""

import hashlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from enginehouse_engines.openai_compatible.client import ModelClient
from enginehouse_engines.openai_compatible.instructions import system_text
from enginehouse_engines.openai_compatible.options import Options
from enginehouse_engines.openai_compatible.render import DIALECT, RENDERER, Conversation, request_body
from enginehouse_engines.openai_compatible.stream import Reply, Translator
from enginehouse_engines.openai_compatible.tool_runs import Prepared, carry_out, prepare
from enginehouse_engines.openai_compatible.toolbox import TOOLS
from enginehouse_engines.openai_compatible.toolbox.tool import definition
from enginehouse_protocol.engine import Applied, Opening, Turn, TurnEnd
from enginehouse_protocol.errors import EngineError, MalformedData, SettingRefused, TranscriptUnavailable
from enginehouse_protocol.events import (
    DurableEngineBody,
    MessageAssistant,
    Reasoning,
    StepHeader,
    StepStarted,
    ToolResult,
    ToolUse,
)
from enginehouse_protocol.ids import CallId, MessageId, ReplyId, TurnId, new_message_id, new_reply_id
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.settings import SessionSettings

_AT_ONCE = 8
_RECORD_S = 0.6
"""How long an interrupt may have to wait for what happened to be recorded."""
_AFTER_DONE_S = 0.25
"""How long to read on after `[DONE]`, so that the connection can be used again."""
_MAX_LISTED_MODELS = 20
_MAY_HAVE_COUNTED = frozenset({"provider.timeout", "provider.cut_stream"})
"""Failures before an answer that do not prove that the model did nothing."""


@dataclass(kw_only=True)
class _Answer:
    """An answer under way: what of it is not yet in the record."""

    message_id: MessageId
    reply_id: ReplyId
    translator: Translator
    started_s: float
    counts: bool = True
    """Whether tokens may have been counted. False only when the request surely did nothing."""


class OpenAICompatibleSession:
    """One session of the engine. Nothing runs outside `run`."""

    def __init__(self, opening: Opening, client: ModelClient, options: Options, log: logging.Logger) -> None:
        self._port = opening.port
        self._workspace = opening.workspace
        self._history = opening.history
        self._provider = opening.access.provider
        self._settings = opening.settings
        self._client = client
        self._options = options
        self._log = log
        self._system = system_text(opening)
        self._tools = tuple(definition(tool) for tool in TOOLS.values())
        self._conversation = Conversation()
        self._only_model: str | None = None
        self._running: tuple[TurnId, anyio.CancelScope] | None = None
        self._interrupted: deque[TurnId] = deque(maxlen=16)
        self._answer: _Answer | None = None
        self._uses: dict[CallId, ToolResult | None] = {}
        """Tool uses that are recorded and whose results are not; with the result once it is known."""

    # --- the contract ---------------------------------------------------------------------------------------------

    async def run(self, turn: Turn) -> TurnEnd:
        if turn.id in self._interrupted:
            return TurnEnd(stop="interrupted")
        scope = anyio.CancelScope()
        self._running = (turn.id, scope)
        try:
            with scope:
                return await self._turn(turn)
        except MalformedData as error:
            raise EngineError(f"what happened cannot be recorded: {error}", code=error.code) from error
        except EngineError:
            if not scope.cancel_called:
                raise
        finally:
            self._running = None
        return TurnEnd(stop="interrupted")

    async def interrupt(self, turn_id: TurnId) -> None:
        self._interrupted.append(turn_id)
        if self._running is not None and self._running[0] == turn_id:
            self._running[1].cancel()

    async def apply(self, change: SessionSettings) -> Applied:
        if change.model is not None and not change.model.strip():
            raise SettingRefused("a model needs a name")
        if change.effort is not None and not change.effort.strip():
            raise SettingRefused("an effort needs a name")
        self._settings = change
        return "now"

    # --- a turn ---------------------------------------------------------------------------------------------------

    async def _turn(self, turn: Turn) -> TurnEnd:
        self._uses.clear()
        self._answer = None
        try:
            step = 0
            while turn.limits.max_steps is None or step < turn.limits.max_steps:
                step += 1
                if (end := await self._step(step)) is not None:
                    return end
        except BaseException:
            await self._close()
            raise
        return TurnEnd(stop="max_steps", detail=f"{turn.limits.max_steps} model calls")

    async def _step(self, step: int) -> TurnEnd | None:
        """One model call and its tools. None: the model is to be asked again."""
        header = await self._header()
        await self._catch_up()
        body = request_body(header, self._conversation.messages(header.system))
        await self._port.emit(
            StepStarted(
                step=step,
                history_seq=self._conversation.seq,
                request_sha256=hashlib.sha256(body).hexdigest(),
                header=None if header == self._conversation.header else header,
            )
        )
        answer = self._answer = _Answer(
            message_id=(message_id := new_message_id()),
            reply_id=new_reply_id(),
            translator=Translator(message_id),
            started_s=time.monotonic(),
        )
        reply = await self._heard(answer, body)
        calls = await prepare(reply, answer.reply_id, self._workspace, self._log)
        await self._record(answer, reply, calls)
        await self._carry_out(calls)
        return _turn_end(reply, calls)

    async def _header(self) -> StepHeader:
        options: JsonObject = {"stream": True}
        if self._options.ask_usage:
            options["stream_options"] = {"include_usage": True}
        if self._settings.effort is not None:
            options["reasoning_effort"] = self._settings.effort
        return StepHeader(
            model=await self._model(),
            dialect=DIALECT,
            renderer=RENDERER,
            system=self._system,
            tools=self._tools,
            options=options | self._options.request,
        )

    async def _model(self) -> str:
        """The model asked for, else the provider's, else the only one there is."""
        asked = self._settings.model or (self._provider.model if self._provider is not None else None)
        if asked:
            return asked
        if self._only_model is None:
            names = [model.name for model in await self._client.models()]
            if len(names) != 1:
                listed = ", ".join(names[:_MAX_LISTED_MODELS]) or "none"
                more = f" and {len(names) - _MAX_LISTED_MODELS} more" if len(names) > _MAX_LISTED_MODELS else ""
                raise EngineError(
                    f"no model was chosen; {self._client.address} lists: {listed}{more}", code="engine.model_needed"
                )
            self._only_model = names[0]
        return self._only_model

    async def _catch_up(self) -> None:
        while self._conversation.seq < self._history.last_seq:
            events = await self._history.events_after(self._conversation.seq)
            if not events:
                return
            if not self._conversation.feed(events):
                self._conversation = self._conversation.started_over()

    async def _heard(self, answer: _Answer, body: bytes) -> Reply:
        """The model's answer, its deltas emitted as they came.

        Raises:
            EngineError: there is none, or it was cut. What had come is left in `answer`.
        """
        translator = answer.translator
        answered = False
        try:
            async with self._client.answer(body) as chunks:
                answered = True
                async for data in chunks:
                    for delta in translator.feed(data):
                        await self._port.emit(delta)
                    if translator.over:
                        break
                with anyio.move_on_after(_AFTER_DONE_S):
                    async for _ in chunks:
                        pass
        except EngineError as error:
            answer.counts = answered or error.code in _MAY_HAVE_COUNTED
            if not translator.settled:
                raise
        deltas, reply = translator.end()
        for delta in deltas:
            await self._port.emit(delta)
        errors = self._client.errors
        if reply.fault is not None:
            raise errors.of_fault(reply.fault)
        if reply.empty and not (reply.ended and reply.finish):
            words = f"not a chat completion: {reply.stray}" if reply.stray else "an empty answer"
            raise errors.make("provider.bad_reply", words, advice="check the base URL (many end in /v1)")
        if not reply.ended:
            raise errors.make("provider.cut_stream", "the answer stopped before its end", advice="try again")
        if reply.finish == "tool_calls" and reply.empty:
            raise errors.make("provider.bad_reply", "announced tool calls and sent none", advice="try again")
        return reply

    async def _record(self, answer: _Answer, reply: Reply, calls: tuple[Prepared, ...]) -> None:
        """Everything of one reply at once, so that an interrupt comes before all of it or after all of it.

        Where the record is slow, what is left waits like everything else, and an interrupt may come in between.
        """
        self._answer = None
        waiting = deque[DurableEngineBody]([*_bodies(answer, reply, complete=True), *(call.use for call in calls)])
        with anyio.move_on_after(_RECORD_S, shield=True):
            await self._emit_all(waiting)
        await anyio.lowlevel.checkpoint_if_cancelled()  # before anybody is asked
        await self._emit_all(waiting)

    async def _emit_all(self, waiting: deque[DurableEngineBody]) -> None:
        while waiting:
            body = waiting.popleft()  # it is queued even if waiting for the record is cut short
            if isinstance(body, ToolUse):
                self._uses[body.call_id] = None
            try:
                await self._port.emit(body)
            except MalformedData:
                if isinstance(body, ToolUse):
                    del self._uses[body.call_id]
                raise

    async def _carry_out(self, calls: tuple[Prepared, ...]) -> None:
        if len(calls) < 2 or not all(call.only_looks for call in calls):
            for call in calls:
                await self._carry_out_one(call)
            return
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def one(call: Prepared) -> None:
            async with limiter:
                await self._carry_out_one(call)

        await _side_by_side([lambda call=call: one(call) for call in calls])

    async def _carry_out_one(self, call: Prepared) -> None:
        result = await carry_out(call, self._port, self._workspace, self._log)
        self._uses[result.call_id] = result
        await self._port.emit(result)
        del self._uses[result.call_id]

    async def _close(self) -> None:
        """Record what a turn that ends early leaves open. Bounded, and silent when nothing can be recorded."""
        answer, self._answer = self._answer, None
        with anyio.move_on_after(_RECORD_S, shield=True):
            try:
                if answer is not None:
                    _, reply = answer.translator.end()
                    whole = answer.translator.settled and reply.fault is None
                    for body in _bodies(answer, reply, complete=whole):
                        await self._port.emit(body)
                for call_id, known in self._uses.items():
                    await self._port.emit(known or ToolResult(call_id=call_id, status="interrupted"))
            except (TranscriptUnavailable, MalformedData):
                self._log.warning("a turn ended early and its end could not be recorded")


def _bodies(answer: _Answer, reply: Reply, *, complete: bool) -> list[DurableEngineBody]:
    """What is recorded of an answer besides its tool uses."""
    bodies: list[DurableEngineBody] = []
    if reply.text or reply.reasoning:
        phase = "commentary" if reply.calls else "final"
        bodies.append(
            MessageAssistant(
                message_id=answer.message_id,
                reply_id=answer.reply_id,
                text=reply.text,
                reasoning=Reasoning(text=reply.reasoning) if reply.reasoning else None,
                phase=phase if complete else None,
                complete=complete,
                duration_ms=round((time.monotonic() - answer.started_s) * 1000),
            )
        )
    if answer.counts:
        bodies.append(reply.usage)
    return bodies


def _turn_end(reply: Reply, calls: tuple[Prepared, ...]) -> TurnEnd | None:
    """How the turn ends with this reply. Calls decide, not what the server calls the reason."""
    if any(call.plan is not None for call in calls):
        return None
    if reply.finish == "length":
        return TurnEnd(stop="max_tokens", detail="the reply reached its length limit")
    if calls:
        return None
    if reply.refused:
        return TurnEnd(
            stop="refused", detail="content filter" if reply.finish == "content_filter" else "the model refused"
        )
    return TurnEnd(stop="end")


async def _side_by_side(jobs: list[Callable[[], Awaitable[None]]]) -> None:
    """Run all of them. The first error ends the others and comes out as itself, not as a group."""
    failed: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def guarded(job: Callable[[], Awaitable[None]]) -> None:
            try:
                await job()
            except Exception as error:  # noqa: BLE001 - raised again below
                failed.append(error)
                group.cancel_scope.cancel()

        for job in jobs:
            group.start_soon(guarded, job)
    if failed:
        raise failed[0]
