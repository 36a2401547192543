"""A hub that plays what a test tells it to, and a terminal a test can read.

Rule: the hub is a real implementation of the verbs a conversation uses; what it was asked is kept, in order.
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio

from enginehouse_hosts.terminal.streams import Streams
from enginehouse_protocol.codec import encode_event
from enginehouse_protocol.errors import EnginehouseError, MessageNotQueued
from enginehouse_protocol.events import TRANSIENT, Body, Event, MessageQueued, MessageWithdrawn, Passing
from enginehouse_protocol.hub import (
    AnswerPermission,
    AnswerQuestion,
    Attach,
    CreateSession,
    Delivery,
    HubApi,
    Launch,
    Nothing,
    QueuedMessage,
    Receipt,
    SendMessage,
    SessionInfo,
    SessionRef,
    SetSession,
    WithdrawQueued,
)
from enginehouse_protocol.ids import EngineName, MessageId, SessionId, TurnId
from enginehouse_protocol.settings import SessionSettings

S = SessionId("s_0000000000000000000000000a")
M = MessageId("m_0000000000000000000000000a")
T = TurnId("t_0000000000000000000000000a")
CREATE = CreateSession(engine=EngineName("x"), directory="/p", settings=SessionSettings(), launch=Launch())


def info(last_seq: int = 0) -> SessionInfo:
    return SessionInfo(
        id=S,
        title="",
        directory="/p",
        engine=EngineName("x"),
        state="idle",
        settings=SessionSettings(),
        created_at_ms=0,
        updated_at_ms=0,
        turns=0,
        last_seq=last_seq,
    )


class DeskHub:
    """Every verb answers at once; `on_send`, `on_answer` and `on_interrupt` say what happens then."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.on_send: Callable[[], None] = lambda: None
        self.on_answer: Callable[[AnswerPermission | AnswerQuestion], None] = lambda _: None
        self.on_interrupt: Callable[[], None] = lambda: None
        self.refuses: EnginehouseError | None = None
        self.withdraws = False
        self._seq = 0
        self._heard: list[Delivery] = []
        self._over = False
        self._changed = anyio.Event()

    @property
    def api(self) -> HubApi:
        return cast(HubApi, self)

    def happens(self, *bodies: Body, turn_id: TurnId | None = T) -> None:
        for body in bodies:
            self._heard.append(self.stamped(body, turn_id))
        self._changed.set()

    def stamped(self, body: Any, turn_id: TurnId | None = T) -> Delivery:
        event: Event | Passing
        if isinstance(body, TRANSIENT):
            event = Passing(session_id=S, at_ms=1, turn_id=turn_id, body=cast(Any, body))
        else:
            self._seq += 1
            event = Event(session_id=S, seq=self._seq, at_ms=1, turn_id=turn_id, body=body)
        return Delivery(event=event, line=encode_event(event))

    def ends(self) -> None:
        self._over = True
        self._changed.set()

    async def sessions_create(self, params: CreateSession) -> SessionInfo:
        self.asked.append(params)
        return info()

    async def sessions_set(self, params: SetSession) -> SessionInfo:
        self.asked.append(params)
        return info()

    async def sessions_send(self, params: SendMessage) -> Receipt:
        self.asked.append(params)
        if self.refuses is not None:
            raise self.refuses
        self.happens(MessageQueued(message_id=M, content=params.content), turn_id=None)
        self.on_send()
        return Receipt(message_id=M, seq=self._seq)

    async def sessions_interrupt(self, params: SessionRef) -> Nothing:
        self.asked.append(params)
        self.on_interrupt()
        return Nothing()

    async def queue_withdraw(self, params: WithdrawQueued) -> QueuedMessage:
        self.asked.append(params)
        if not self.withdraws:
            raise MessageNotQueued("not in the queue")
        self.happens(MessageWithdrawn(message_id=params.message_id, by="person"), turn_id=None)
        return QueuedMessage(message_id=params.message_id, content=())

    async def permissions_answer(self, params: AnswerPermission) -> Nothing:
        self.asked.append(params)
        self.on_answer(params)
        return Nothing()

    async def questions_answer(self, params: AnswerQuestion) -> Nothing:
        self.asked.append(params)
        self.on_answer(params)
        return Nothing()

    @asynccontextmanager
    async def sessions_attach(self, params: Attach) -> AsyncIterator["DeskHub"]:
        self.asked.append(params)
        yield self

    async def batches(self) -> AsyncIterator[tuple[Delivery, ...]]:
        while True:
            while self._heard:
                yield (self._heard.pop(0),)
            if self._over:
                return
            self._changed = anyio.Event()
            await self._changed.wait()


class Desk:
    """Streams whose other ends a test holds: pipes, or one terminal for all three."""

    def __init__(self, *, terminal: bool, environment: dict[str, str] | None = None) -> None:
        self._held: list[int] = []
        if terminal:
            self._ours, theirs = os.openpty()
            self._held = [self._ours, theirs]
            self._out = self._err = self._ours
            descriptors = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        else:
            self._out, out = os.pipe()
            self._err, err = os.pipe()
            nothing = os.open(os.devnull, os.O_RDONLY)
            self._held = [self._out, out, self._err, err, nothing]
            descriptors = {"stdin": nothing, "stdout": out, "stderr": err}
        os.set_blocking(self._out, False)
        os.set_blocking(self._err, False)
        self.streams = Streams(environment or {}, **descriptors)
        self.shown = ""

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)

    def out(self) -> str:
        return _rest(self._out)

    def err(self) -> str:
        return _rest(self._err)

    async def until(self, text: str) -> None:
        """Wait until the terminal shows `text`."""
        while text not in self.shown:
            await anyio.wait_readable(self._ours)
            self.shown += _rest(self._ours)

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())


def _rest(descriptor: int) -> str:
    data = b""
    while True:
        try:
            more = os.read(descriptor, 1 << 16)
        except (BlockingIOError, OSError):
            break
        if not more:
            break
        data += more
    return data.decode().replace("\r\n", "\n")
