"""The loop: one model call after the other, and the tools the model asks for in between.

Rules: it keeps no conversation of its own, only a fold of the transcript, brought up to date before every request.
`step.started` is recorded before a request leaves; sending the same bytes again is the same step. However a turn ends,
every tool use it recorded has its result and text a person has seen is a message.

Calls of one reply run side by side when all of them only look; as soon as one writes or executes, all of them are
asked and run one after the other, in the model's order. All of them are recorded before the first one is asked, so that
the record has the whole reply whatever happens then.
"""

import hashlib
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.lowlevel
import msgspec

from enginehouse_engines.openai_compatible.accounting import accounted
from enginehouse_engines.openai_compatible.client import ModelClient
from enginehouse_engines.openai_compatible.dialects import REASONING_FIELDS, dialect_of, sends_images, sends_reasoning
from enginehouse_engines.openai_compatible.guard import (
    EMPTY_REPLY,
    REPEATED,
    STOPPED,
    Advice,
    Guard,
    Result,
    steps_left,
)
from enginehouse_engines.openai_compatible.image_supply import ImageSupply
from enginehouse_engines.openai_compatible.instructions import system_text
from enginehouse_engines.openai_compatible.known_providers import ModelFacts
from enginehouse_engines.openai_compatible.model_calls import Attempt, ModelCalls, bodies_of
from enginehouse_engines.openai_compatible.options import Options
from enginehouse_engines.openai_compatible.provider_errors import ProviderError
from enginehouse_engines.openai_compatible.render import RENDERER, Conversation, request_body
from enginehouse_engines.openai_compatible.rendered_images import images_of
from enginehouse_engines.openai_compatible.stream import Reply
from enginehouse_engines.openai_compatible.tool_runs import Prepared, carry_out, prepare
from enginehouse_engines.openai_compatible.toolbox import TOOLS
from enginehouse_engines.openai_compatible.toolbox.tool import definition
from enginehouse_protocol.content import Text, content_text
from enginehouse_protocol.engine import Applied, Opening, Turn, TurnEnd
from enginehouse_protocol.errors import EngineError, MalformedData, SettingRefused, TranscriptUnavailable
from enginehouse_protocol.events import (
    DurableEngineBody,
    Notice,
    StepHeader,
    StepStarted,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.ids import CallId, TurnId
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.settings import SessionSettings

_AT_ONCE = 8
_RECORD_S = 0.6
"""How long an interrupt may have to wait for what happened to be recorded."""
_MAX_LISTED_MODELS = 20
_NAMES_REASONING = re.compile(rf"\b({'|'.join(REASONING_FIELDS)})\b")
_NAMES_USAGE = re.compile(r"\b(stream_options|include_usage)\b")


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
        self._images = ImageSupply(opening.history, lambda model: options.facts(client.base_url, model).images, log)
        self._conversation = Conversation(
            dialect=dialect_of(client.base_url, options.send_reasoning), images=self._images.data
        )
        self._calls = ModelCalls(client, opening.port, options)
        self._guard = Guard()
        self._only_model: str | None = None
        self._ask_usage = options.ask_usage
        self._reasoning_refused = False
        self._running: tuple[TurnId, anyio.CancelScope] | None = None
        self._interrupted: deque[TurnId] = deque(maxlen=16)
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
        self._calls.taken()
        self._guard = Guard()
        limit = turn.limits.max_steps
        try:
            await self._say_what_is_not_shown(turn)
            step = 0
            while limit is None or step < limit:
                step += 1
                last_words = "" if limit is None else steps_left(limit - step, limit)
                if (end := await self._step(step, last_words)) is not None:
                    return end
        except BaseException:
            await self._close()
            raise
        return TurnEnd(stop="max_steps", detail=f"{limit} model calls")

    async def _say_what_is_not_shown(self, turn: Turn) -> None:
        if not any(images_of(message) for message in turn.messages):
            return
        model = await self._model()
        await self._catch_up()
        if not self._images.may_be_sent_to(model, self._conversation.header):
            text = f"{model} takes no images, so it is told only what they are; another model may take them"
            await self._port.emit(Notice(level="warning", code="provider.images_left_out", text=text))

    async def _step(self, step: int, last_words: str) -> TurnEnd | None:
        """One model call and its tools. None: the model is to be asked again."""
        model = await self._model()
        header = await self._caught_up(model)
        body = request_body(header, self._conversation.messages(header.system))
        await self._port.emit(
            StepStarted(
                step=step,
                history_seq=self._conversation.seq,
                request_sha256=hashlib.sha256(body).hexdigest(),
                header=None if header == self._conversation.header else header,
            )
        )
        try:
            attempt, reply = await self._calls.whole(body)
        except ProviderError as error:
            if await self._does_without(error, header, body):
                return None
            if error.code != "provider.content_filter":
                raise
            await self._close()
            return TurnEnd(stop="refused", detail=str(error))
        calls = await prepare(reply, attempt.reply_id, self._workspace, self._log)
        await self._record(attempt, reply, calls, self._options.facts(self._client.base_url, model))
        if not calls:
            return await self._without_calls(reply)
        advice = self._guard.about_to(reply.calls)
        if advice is not None and advice.stop:
            return await self._stopped(calls, advice)
        results = await self._carry_out(calls, advice, last_words)
        self._guard.came_of(reply.calls, results)
        if advice is not None and advice.holds(results[-1]):
            await self._port.emit(Notice(level="info", code=REPEATED, text=advice.to_person))
        if reply.too_long and all(call.plan is None for call in calls):
            return TurnEnd(stop="max_tokens", detail="the reply reached its length limit")
        return None

    async def _without_calls(self, reply: Reply) -> TurnEnd | None:
        """How the turn goes on after a reply without calls: mostly not at all."""
        if reply.too_long:
            return TurnEnd(stop="max_tokens", detail="the reply reached its length limit")
        if reply.refused:
            return TurnEnd(stop="refused", detail="content filter" if reply.filtered else "the model refused")
        if reply.text.strip():
            return TurnEnd(stop="end")
        advice = self._guard.empty_reply()
        code = STOPPED if advice.stop else EMPTY_REPLY
        await self._port.emit(Notice(level="warning", code=code, text=advice.to_person))
        return TurnEnd(stop="end", detail="the model said nothing") if advice.stop else None

    async def _stopped(self, calls: Sequence[Prepared], advice: Advice) -> TurnEnd:
        """End a turn that gets nowhere: its last calls are answered, not run."""
        for call in calls:
            result = ToolResult(call_id=call.use.call_id, status="error", content=(Text(text=advice.to_model),))
            await self._result(result)
        await self._port.emit(Notice(level="warning", code=STOPPED, text=advice.to_person))
        return TurnEnd(stop="max_steps", detail=advice.to_person)

    async def _does_without(self, error: ProviderError, header: StepHeader, body: bytes) -> bool:
        """Whether the server refused something we can leave out; if so it is left out from now on, and that is said."""
        asks_otherwise = error.http_status in (400, 422)
        named = _NAMES_REASONING.search(str(error)) if sends_reasoning(header.dialect) != "never" else None
        if asks_otherwise and self._ask_usage and _NAMES_USAGE.search(str(error)):
            self._ask_usage, what = False, "the request for token counts, so it is"
        elif asks_otherwise and named is not None and f'"{named[0]}":"'.encode() in body:
            self._reasoning_refused, what = True, "its own reasoning in the conversation, so it is"
        elif self._images.are_refused(error, header.model, body):
            what = f"the conversation with its images; {header.model} is told what they are, and they are"
        else:
            return False
        text = f"{error}. The server refuses {what} left out from now on."
        await self._port.emit(Notice(level="warning", code="provider.adapted", text=text))
        return True

    async def _caught_up(self, model: str) -> StepHeader:
        """Fold what was recorded meanwhile; the header of a request made of it now."""
        await self._catch_up()
        recorded = self._conversation.header
        dialect = dialect_of(
            self._client.base_url,
            self._options.send_reasoning,
            recorded=recorded.dialect if recorded is not None else None,
            refused=self._reasoning_refused,
            images=self._images.may_be_sent_to(model, recorded),
        )
        if dialect != self._conversation.dialect:
            self._conversation = self._conversation.started_over(dialect)
            await self._catch_up()
        options: JsonObject = {"stream": True}
        if self._ask_usage:
            options["stream_options"] = {"include_usage": True}
        options |= self._options.effort(self._client.base_url, self._settings.effort)
        return StepHeader(
            model=model,
            dialect=dialect,
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
            names = [model.name for model in await self._calls.models()]
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
            if sends_images(self._conversation.dialect):
                await self._images.load(events)
            if not self._conversation.feed(events):
                self._conversation = self._conversation.started_over()
            self._images.keep_only(self._conversation.unsealed_images)

    async def _record(self, attempt: Attempt, reply: Reply, calls: tuple[Prepared, ...], facts: ModelFacts) -> None:
        """Everything of one reply at once, so that an interrupt comes before all of it or after all of it.

        Where the record is slow, what is left waits like everything else, and an interrupt may come in between.
        """
        self._calls.taken()
        told = [
            accounted(body, facts) if isinstance(body, UsageUpdated) else body
            for body in bodies_of(attempt, reply, complete=True)
        ]
        waiting = deque[DurableEngineBody]([*told, *(call.use for call in calls)])
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

    async def _carry_out(self, calls: Sequence[Prepared], advice: Advice | None, last_words: str) -> list[Result]:
        """Run what may run, and say what it gave. The last call's result also carries what we say ourselves."""
        came: dict[CallId, Result] = {}

        async def one(call: Prepared) -> None:
            result = await carry_out(
                call,
                self._port,
                self._workspace,
                self._log,
                shows_images=sends_images(self._conversation.dialect),
            )
            came[result.call_id] = gave = (result.status, content_text(result.content))
            if call is calls[-1]:
                advised = advice.to_model if advice is not None and advice.holds(gave) else ""
                said = tuple(Text(text=f"[{text}]") for text in (advised, last_words) if text)
                result = msgspec.structs.replace(result, content=(*result.content, *said))
            await self._result(result)

        if len(calls) < 2 or not all(call.only_looks for call in calls):
            for call in calls:
                await one(call)
        else:
            limiter = anyio.CapacityLimiter(_AT_ONCE)

            async def limited(call: Prepared) -> None:
                async with limiter:
                    await one(call)

            await _side_by_side([lambda call=call: limited(call) for call in calls])
        return [came[call.use.call_id] for call in calls]

    async def _result(self, result: ToolResult) -> None:
        self._uses[result.call_id] = result
        await self._port.emit(result)
        del self._uses[result.call_id]

    async def _close(self) -> None:
        """Record what a turn that ends early leaves open. Bounded, and silent when nothing can be recorded."""
        with anyio.move_on_after(_RECORD_S, shield=True):
            try:
                for body in self._calls.unrecorded():
                    await self._port.emit(body)
                for call_id, known in self._uses.items():
                    await self._port.emit(known or ToolResult(call_id=call_id, status="interrupted"))
            except (TranscriptUnavailable, MalformedData):
                self._log.warning("a turn ended early and its end could not be recorded")


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
