"""A hub that plays what a test tells it to, and a terminal a test can read.

Rule: the hub is a real implementation of the verbs a conversation uses; what it was asked is kept, in order.
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec

from enginehouse_hosts.terminal.streams import Streams
from enginehouse_protocol.codec import encode_event
from enginehouse_protocol.errors import EnginehouseError, MessageNotQueued
from enginehouse_protocol.events import (
    TRANSIENT,
    Body,
    Event,
    LiveState,
    MessageQueued,
    MessageWithdrawn,
    Passing,
    SessionStateChanged,
)
from enginehouse_protocol.hub import (
    AnswerPermission,
    AnswerQuestion,
    Attach,
    CreateSession,
    Delivery,
    EventsAfter,
    EventsPage,
    HubApi,
    Launch,
    Nothing,
    PendingRequests,
    QueuedMessage,
    QueueState,
    Receipt,
    SendMessage,
    SessionInfo,
    SessionRef,
    SetSession,
    WithdrawQueued,
)
from enginehouse_protocol.ids import EngineName, MessageId, SessionId, TurnId
from enginehouse_protocol.permissions import PendingRequest
from enginehouse_protocol.settings import SessionSettings

S = SessionId("s_0000000000000000000000000a")
M = MessageId("m_0000000000000000000000000a")
T = TurnId("t_0000000000000000000000000a")
CREATE = CreateSession(engine=EngineName("x"), directory="/p", settings=SessionSettings(), launch=Launch())


def live(seq: int = 0, *, held: bool = False, busy: bool = False, **present: Any) -> LiveState:
    state = SessionStateChanged(state="running" if busy else "idle", held=held)
    return LiveState(seq=seq, state=state, **present)


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
    """Every verb answers at once; `on_send`, `on_answer` and the like say what happens then."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.on_send: Callable[[], None] = lambda: None
        self.on_attach: Callable[[], None] = lambda: None
        self.on_answer: Callable[[AnswerPermission | AnswerQuestion], None] = lambda _: None
        self.on_interrupt: Callable[[], None] = lambda: None
        self.on_withdraw: Callable[[], None] = lambda: None
        self.refuses: EnginehouseError | None = None
        self.withdraws = False
        self.deaf = False
        """It never answers an interrupt."""
        self.queue = QueueState(messages=(), held=False)
        self.pending: tuple[PendingRequest, ...] = ()
        self.first = live()
        self.fails: EnginehouseError | None = None
        """What ends the view."""
        self._seq = 0
        self._heard: list[tuple[Delivery, ...]] = []
        self._recorded: list[Delivery] = []
        self._over = False
        self._changed = anyio.Event()

    @property
    def api(self) -> HubApi:
        return cast(HubApi, self)

    def happens(self, *bodies: Body, turn_id: TurnId | None = T) -> None:
        for body in bodies:
            self.happens_at_once(body, turn_id=turn_id)

    def happens_at_once(self, *bodies: Body, turn_id: TurnId | None = T) -> None:
        """All of it in one batch."""
        batch = tuple(self.stamped(body, turn_id) for body in bodies)
        self._heard.append(batch)
        self._recorded += [delivery for delivery in batch if isinstance(delivery.event, Event)]
        self._changed.set()

    def happens_unseen(self, *bodies: Body) -> None:
        """It is recorded, and the view has not come to it yet."""
        self._recorded += [self.stamped(body) for body in bodies]

    def stamped(self, body: Any, turn_id: TurnId | None = T) -> Delivery:
        event: Event | Passing
        if isinstance(body, TRANSIENT):
            event = Passing(session_id=S, at_ms=1, turn_id=turn_id, body=cast(Any, body))
        else:
            self._seq += 1
            event = Event(session_id=S, seq=self._seq, at_ms=1, turn_id=turn_id, body=body)
        return Delivery(event=event, line=encode_event(event))

    def ends(self, error: EnginehouseError | None = None) -> None:
        self._over, self.fails = True, error
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
        assert params.message_id is not None
        self.happens(MessageQueued(message_id=params.message_id, content=params.content), turn_id=None)
        seq = self._seq
        self.on_send()
        return Receipt(message_id=params.message_id, seq=seq)

    async def sessions_interrupt(self, params: SessionRef) -> Nothing:
        self.asked.append(params)
        self.on_interrupt()
        if self.deaf:
            await anyio.sleep_forever()
        return Nothing()

    async def sessions_events(self, params: EventsAfter) -> EventsPage:
        lines = tuple(msgspec.Raw(each.line) for each in self._recorded[params.after :])
        return EventsPage(lines=lines, last_seq=len(self._recorded))

    async def queue_list(self, params: SessionRef) -> QueueState:
        return self.queue

    async def permissions_pending(self, _: Nothing, /) -> PendingRequests:
        return PendingRequests(requests=self.pending)

    async def queue_withdraw(self, params: WithdrawQueued) -> QueuedMessage:
        self.asked.append(params)
        self.on_withdraw()
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
        yield (self.stamped(self.first, None),)
        self.on_attach()
        while True:
            while self._heard:
                yield self._heard.pop(0)
            if self._over:
                if self.fails is not None:
                    raise self.fails
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
