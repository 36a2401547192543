"""One request, sent until its answer is whole or there is no use in sending it again.

Rules: every attempt sends the same bytes. What was shown of an attempt that broke off stands until the next one has
something to show, and only then is it taken back (`message.reset`): if nothing better comes, it becomes a message that
says of itself that it is not complete. A retry is never silent, and a wait ends with the turn it belongs to.
"""

import time
from dataclasses import dataclass, field

import anyio

from enginehouse_engines.openai_compatible.client import ModelClient
from enginehouse_engines.openai_compatible.options import Options
from enginehouse_engines.openai_compatible.provider_errors import ProviderError, shown_s
from enginehouse_engines.openai_compatible.retries import Retries
from enginehouse_engines.openai_compatible.stream import Reply, Translator
from enginehouse_protocol.capabilities import ModelInfo
from enginehouse_protocol.engine import SessionPort
from enginehouse_protocol.events import (
    DurableEngineBody,
    MessageAssistant,
    MessageReset,
    Notice,
    Reasoning,
    UsageUpdated,
)
from enginehouse_protocol.ids import MessageId, ReplyId, new_message_id, new_reply_id

RETRY = "provider.retry"
"""Code of the notice that says why a request is sent again, and when."""
_AFTER_DONE_S = 0.25
"""How long to read on after `[DONE]`, so that the connection can be used again."""
_AFTER_FINISH_S = 3.0
"""How long to wait for token counts and `[DONE]` once a reply has its reason to end."""
_GATEWAY_TIMEOUTS = frozenset({504, 524})


@dataclass(kw_only=True)
class Attempt:
    """One answer under way: what of it is not yet in the record."""

    message_id: MessageId
    translator: Translator
    reply_id: ReplyId = field(default_factory=new_reply_id)
    started_s: float = field(default_factory=time.monotonic)
    counts: bool = True
    """Whether tokens may have been counted that are not recorded yet. False when the request surely did nothing."""
    failure: str = ""


class ModelCalls:
    """The model calls of one session, one at a time."""

    def __init__(self, client: ModelClient, port: SessionPort, options: Options) -> None:
        self._client = client
        self._port = port
        self._options = options
        self._open: Attempt | None = None
        self._shown: Attempt | None = None
        """An earlier attempt of the same request, broken off, whose text still stands before people."""

    async def whole(self, body: bytes) -> tuple[Attempt, Reply]:
        """The model's whole answer. Until `taken`, `unrecorded` gives it.

        Raises:
            ProviderError: there is none. What was shown of one is left to `unrecorded`.
        """
        retries = Retries(self._options)
        self._shown = None
        while True:
            attempt = self._open = Attempt(
                message_id=(message_id := new_message_id()), translator=Translator(message_id)
            )
            try:
                reply = await self._heard(attempt, body)
            except ProviderError as error:
                await self._wait(retries, error, attempt)
                continue
            await self._take_back()
            return attempt, reply

    async def models(self) -> tuple[ModelInfo, ...]:
        """What the server lists, asked for as patiently as for an answer."""
        retries = Retries(self._options)
        while True:
            try:
                return await self._client.models()
            except ProviderError as error:
                await self._wait(retries, error, None)

    async def _wait(self, retries: Retries, error: ProviderError, attempt: Attempt | None) -> None:
        """Until the request may be sent again; raises `error` when it may not. A person is told of either."""
        retry = retries.after(error)
        if retry is None and retries.made:
            raise error.after(retries.made) from error
        if retry is None:
            raise error
        if attempt is not None:
            self._open = None
            attempt.failure = str(error)
            if attempt.translator.said:
                self._shown = attempt
            if attempt.counts:
                attempt.counts = False
                await self._port.emit(UsageUpdated(scope="request"))
        which = f"{retry.number} of {retry.most}" if retry.most > 1 else "once"
        text = f"{error}. Sending the request again in {shown_s(retry.wait_s)} ({which})."
        await self._port.emit(Notice(level="warning", code=RETRY, text=text))
        await anyio.sleep(retry.wait_s)

    def taken(self) -> None:
        """The answer is in somebody else's hands, who records it."""
        self._open = self._shown = None

    def unrecorded(self) -> list[DurableEngineBody]:
        """What has to be recorded of an answer that came to nothing, or was not waited for."""
        bodies: list[DurableEngineBody] = []
        for attempt in (self._shown, self._open):
            if attempt is not None:
                _, reply = attempt.translator.end()
                bodies += bodies_of(attempt, reply, complete=attempt.translator.settled and reply.fault is None)
        self.taken()
        return bodies

    async def _take_back(self) -> None:
        """What stood of an earlier attempt is void: a later one is about to be shown."""
        shown, self._shown = self._shown, None
        if shown is not None:
            await self._port.emit(MessageReset(message_id=shown.message_id, reason=shown.failure))

    async def _heard(self, attempt: Attempt, body: bytes) -> Reply:
        """The answer to one attempt, its deltas emitted as they came."""
        translator = attempt.translator
        answered = in_a_hurry = False
        try:
            async with self._client.answer(body) as incoming:
                answered = True
                async for data in incoming:
                    for delta in translator.feed(data):
                        if self._shown is not None:
                            await self._take_back()
                        await self._port.emit(delta)
                    if translator.over:
                        break
                    if translator.settled and not in_a_hurry:
                        in_a_hurry = True
                        incoming.patience.hurry(min(_AFTER_FINISH_S, self._options.idle_timeout_s))
                with anyio.move_on_after(_AFTER_DONE_S):
                    async for _ in incoming:
                        pass
        except ProviderError as error:
            attempt.counts = answered or _may_have_counted(error)
            if not translator.settled:
                raise
        deltas, reply = translator.end()
        for delta in deltas:
            await self._take_back()
            await self._port.emit(delta)
        if (problem := self._problem(reply)) is not None:
            raise problem
        return reply

    def _problem(self, reply: Reply) -> ProviderError | None:
        """Why this is no whole reply; None: it is."""
        errors = self._client.errors
        if reply.fault is not None:
            return errors.of_fault(reply.fault)
        if reply.lost_calls:
            return errors.make(
                "provider.bad_reply", "announced tool calls and sent none", advice="try again", retries=1
            )
        if reply.ended and (reply.finish or not reply.empty):
            return None
        if reply.empty and reply.stray:
            return errors.make(
                "provider.bad_reply",
                f"not a chat completion: {reply.stray}",
                advice="check the base URL (many end in /v1)",
            )
        if reply.empty:
            return errors.make(
                "provider.bad_reply",
                "an empty answer",
                advice="check the base URL (many end in /v1) and what the server logged",
                retries=1,
            )
        words = f"; the last it said: {reply.stray}" if reply.stray else ""
        return errors.make(
            "provider.cut_stream", f"the answer stopped before its end{words}", advice="check what the server logged"
        )


def _may_have_counted(error: ProviderError) -> bool:
    """Whether the model may have worked, although no answer began: nobody answered, or somebody in between."""
    if error.http_status is not None:
        return error.http_status in _GATEWAY_TIMEOUTS
    return error.code in {"provider.timeout", "provider.cut_stream"}


def bodies_of(attempt: Attempt, reply: Reply, *, complete: bool) -> list[DurableEngineBody]:
    """What is recorded of an answer besides its tool uses."""
    bodies: list[DurableEngineBody] = []
    if reply.text or reply.reasoning:
        phase = "commentary" if reply.calls else "final"
        opaque = None if reply.reasoning_field is None else {"field": reply.reasoning_field}
        bodies.append(
            MessageAssistant(
                message_id=attempt.message_id,
                reply_id=attempt.reply_id,
                text=reply.text,
                reasoning=Reasoning(text=reply.reasoning, opaque=opaque) if reply.reasoning else None,
                phase=phase if complete else None,
                complete=complete,
                duration_ms=round((time.monotonic() - attempt.started_s) * 1000),
            )
        )
    if attempt.counts:
        attempt.counts = False
        bodies.append(reply.usage if reply.ended else UsageUpdated(scope="request"))  # of a cut one nobody knows
    return bodies
