"""A hub with a real little log and nothing else: what is sent is recorded, views show it, a name is made once.

Rule: it keeps the promises of `HubApi` that a connection relies on: repetitions are recognised, a view gets what it
missed, a `live.state`, then what happens. What it was asked is kept, in order.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec

from enginehouse_protocol.codec import encode_event
from enginehouse_protocol.content import Text
from enginehouse_protocol.errors import EnginehouseError, SessionNotFound
from enginehouse_protocol.events import (
    TRANSIENT,
    AnyBody,
    Event,
    LiveState,
    MessageDelta,
    MessageQueued,
    Notice,
    OpenMessage,
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
    ListSessions,
    Nothing,
    PendingQuestions,
    PendingRequests,
    Receipt,
    ResumeQueue,
    SendMessage,
    SessionInfo,
    SessionList,
    SessionRef,
    SetSession,
)
from enginehouse_protocol.ids import EngineName, MessageId, SessionId, new_message_id, new_session_id
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import Gate

S = SessionId("s_0000000000000000000000000a")
M = MessageId("m_0000000000000000000000000a")
CREATE = CreateSession(engine=EngineName("x"), directory="/p", settings=SessionSettings(), launch=Launch())
PAGE = 1_000


def send(text: str = "hello", session_id: SessionId = S, message_id: MessageId | None = None) -> SendMessage:
    return SendMessage(session_id=session_id, content=(Text(text=text),), message_id=message_id)


def note(number: int) -> Notice:
    return Notice(level="info", code="test", text=str(number))


def delta(number: int) -> MessageDelta:
    return MessageDelta(message_id=M, text=f"{number} ")


def info(session_id: SessionId, last_seq: int = 0) -> SessionInfo:
    return SessionInfo(
        id=session_id,
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


class Ledger:
    """One session's record: what happened, and how far views may see."""

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self.entries: list[Delivery] = []
        self.closed = False
        self.breaks: Exception | None = None
        self.changed = anyio.Event()
        self.shown = 0
        """How many of them views were given, `live.state` aside."""
        self._seq = 0

    @property
    def last_seq(self) -> int:
        return max((entry.event.seq for entry in self.entries if isinstance(entry.event, Event)), default=0)

    @property
    def open_text(self) -> str:
        return "".join(entry.event.body.text for entry in self.entries if isinstance(entry.event.body, MessageDelta))

    def happens(self, *bodies: AnyBody) -> None:
        self.entries += [self._stamped(body) for body in bodies]
        self.tell()

    def _stamped(self, body: Any) -> Delivery:
        if isinstance(body, TRANSIENT):
            event: Any = Passing(session_id=self.session_id, at_ms=1, turn_id=None, body=cast(Any, body))
        else:
            self._seq += 1
            event = Event(session_id=self.session_id, seq=self._seq, at_ms=1, turn_id=None, body=body)
        return Delivery(event=event, line=encode_event(event))

    def cut_back(self, last_seq: int) -> None:
        """The end of the record is lost; its seqs will be given again."""
        self.entries = [e for e in self.entries if isinstance(e.event, Event) and e.event.seq <= last_seq]
        self._seq = last_seq

    def tell(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def live_state(self) -> Delivery:
        messages = (OpenMessage(message_id=M, text=self.open_text),) if self.open_text else ()
        state = LiveState(seq=self.last_seq, state=SessionStateChanged(state="idle"), messages=messages)
        return self._stamped(state)

    async def batches(self, after: int) -> AsyncGenerator[tuple[Delivery, ...]]:
        position = len(self.entries)
        missed = [e for e in self.entries if isinstance(e.event, Event) and e.event.seq > after]
        state = self.live_state()
        for start in range(0, len(missed), PAGE):
            batch = tuple(missed[start : start + PAGE])
            self.shown += len(batch)
            yield batch
        yield (state,)
        while True:
            if position < len(self.entries):
                batch = tuple(self.entries[position : position + PAGE])
                position += len(batch)
                self.shown += len(batch)
                yield batch
            elif self.breaks is not None:
                raise self.breaks
            elif self.closed:
                return
            else:
                await self.changed.wait()


class LedgerView:
    def __init__(self, ledger: Ledger, after: int) -> None:
        self._ledger = ledger
        self._after = after

    def batches(self) -> AsyncGenerator[tuple[Delivery, ...]]:
        return self._ledger.batches(self._after)


class LedgerHub:
    """The record outlives connections and processes: it is the disk, as far as a test is concerned."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.ledgers: dict[SessionId, Ledger] = {}
        self.views = 0
        """Attached at the moment."""
        self.attached: list[Attach] = []
        self.refuses: dict[str, Exception] = {}
        self.before: dict[str, Gate] = {}
        """A verb stops there before it does anything. Passed once."""
        self.after: dict[str, Gate] = {}
        """A verb stops there once it is done, before it answers. Passed once."""
        self.while_leaving: Gate | None = None
        self._receipts: dict[MessageId, Receipt] = {}
        self._changed = anyio.Event()
        self.ledger(S)

    @property
    def api(self) -> HubApi:
        return cast(HubApi, self)

    def ledger(self, session_id: SessionId = S) -> Ledger:
        return self.ledgers.setdefault(session_id, Ledger(session_id))

    def of(self, verb: str) -> list[Any]:
        return [params for name, params in self.asked if name == verb]

    async def until_views(self, count: int) -> None:
        while self.views != count:
            await self._changed.wait()

    def _found(self, session_id: SessionId) -> Ledger:
        if session_id not in self.ledgers:
            raise SessionNotFound(session_id)
        return self.ledgers[session_id]

    @asynccontextmanager
    async def _verb(self, name: str, params: msgspec.Struct) -> AsyncGenerator[None]:
        self.asked.append((name, params))
        if gate := self.before.pop(name, None):
            await gate.passed()
        if problem := self.refuses.get(name):
            raise problem
        yield
        if gate := self.after.pop(name, None):
            await gate.passed()

    async def sessions_create(self, params: CreateSession) -> SessionInfo:
        async with self._verb("create", params):
            session_id = params.session_id or new_session_id()
            self.ledger(session_id)
        return info(session_id)

    async def sessions_list(self, params: ListSessions) -> SessionList:
        async with self._verb("list", params):
            pass
        return SessionList(sessions=tuple(info(each) for each in self.ledgers))

    async def sessions_events(self, params: EventsAfter) -> EventsPage:
        async with self._verb("events", params):
            ledger = self._found(params.session_id)
        lines = [e.line for e in ledger.entries if isinstance(e.event, Event) and e.event.seq > params.after]
        return EventsPage(lines=tuple(msgspec.Raw(line) for line in lines[:PAGE]), last_seq=ledger.last_seq)

    async def sessions_send(self, params: SendMessage) -> Receipt:
        async with self._verb("send", params):
            ledger = self._found(params.session_id)
            message_id = params.message_id or new_message_id()
            if message_id not in self._receipts:
                ledger.happens(MessageQueued(message_id=message_id, content=params.content))
                self._receipts[message_id] = Receipt(message_id=message_id, seq=ledger.last_seq)
        return self._receipts[message_id]

    async def sessions_interrupt(self, params: SessionRef) -> Nothing:
        async with self._verb("interrupt", params):
            self._found(params.session_id)
        return Nothing()

    async def sessions_set(self, params: SetSession) -> SessionInfo:
        async with self._verb("set", params):
            self._found(params.session_id)
        return info(params.session_id)

    async def sessions_delete(self, params: SessionRef) -> Nothing:
        async with self._verb("delete", params):
            self._found(params.session_id).closed = True
            self.ledgers.pop(params.session_id).tell()
        return Nothing()

    async def queue_resume(self, params: ResumeQueue) -> Nothing:
        async with self._verb("resume", params):
            pass
        return Nothing()

    async def permissions_pending(self, _: Nothing, /) -> PendingRequests:
        return PendingRequests(requests=())

    async def permissions_answer(self, params: AnswerPermission) -> Nothing:
        async with self._verb("permission", params):
            pass
        return Nothing()

    async def questions_pending(self, _: Nothing, /) -> PendingQuestions:
        return PendingQuestions(questions=())

    async def questions_answer(self, params: AnswerQuestion) -> Nothing:
        async with self._verb("question", params):
            pass
        return Nothing()

    @asynccontextmanager
    async def sessions_attach(self, params: Attach) -> AsyncGenerator[LedgerView]:
        async with self._verb("attach", params):
            ledger = self._found(params.session_id)
        self.attached.append(params)
        self._count(1)
        try:
            yield LedgerView(ledger, params.after)
        finally:
            if self.while_leaving is not None:
                await self.while_leaving.passed()
            self._count(-1)

    def _count(self, difference: int) -> None:
        self.views += difference
        self._changed.set()
        self._changed = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        async def unasked(params: msgspec.Struct) -> msgspec.Struct:
            raise EnginehouseError(f"this hub has no {name}")

        return unasked
