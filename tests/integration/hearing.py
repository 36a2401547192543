"""What one view has heard, and what it would show.

Rule: it knows of the text of a message only what came to it: the present it was told, and every piece since.
"""

import hashlib
from collections.abc import Callable

import anyio

from enginehouse_protocol.content import LongText, SpilledText
from enginehouse_protocol.events import (
    AnyEvent,
    Event,
    LiveState,
    MessageAssistant,
    MessageDelta,
    MessageQueued,
    MessageReset,
    MessageUser,
    MessageWithdrawn,
    PermissionDecided,
    PermissionRequested,
    SessionStateChanged,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.hub import View
from enginehouse_protocol.ids import MessageId, RequestId
from integration.host_words import Heard, Shown


class _Text:
    """A text that grows, without keeping it."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._hash = hashlib.sha256()

    def add(self, text: str) -> "_Text":
        data = text.encode()
        self.size_bytes += len(data)
        self._hash.update(data)
        return self

    @property
    def shown(self) -> Shown:
        return Shown(size_bytes=self.size_bytes, sha256=self._hash.hexdigest())


def _shown(text: LongText) -> Shown:
    if isinstance(text, SpilledText):
        return Shown(size_bytes=text.size_bytes, sha256=text.sha256)
    return _Text().add(text).shown


class Hearing:
    def __init__(self, aloud: Callable[[bytes], None] | None = None) -> None:
        self.last_seq = 0
        self.turns_ended = 0
        self.requests: dict[RequestId, PermissionRequested] = {}
        """Asked and, as far as was heard, not decided."""
        self.said: set[str] = set()
        """Texts of durable messages that are short enough to keep."""
        self._aloud = aloud
        self._lines = 0
        self._hash = hashlib.sha256()
        self._gapless = True
        self._lives = 0
        self._open: dict[MessageId, _Text] = {}
        self._streamed: dict[MessageId, Shown] = {}
        self._durable: dict[MessageId, Shown] = {}
        self._states: list[tuple[str, int, bool]] = []
        self._queued: set[MessageId] = set()
        self._in_turn = False
        self._news = anyio.Event()

    async def listen(self, view: View) -> None:
        async for batch in view.batches():
            for delivery in batch:
                if isinstance(delivery.event, Event):
                    self._record(delivery.event.seq, delivery.line)
                self._take(delivery.event)
            self._news.set()
            self._news = anyio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._news.wait()

    async def news(self) -> None:
        await self._news.wait()

    @property
    def at_rest(self) -> bool:
        return not self._in_turn and (not self._queued or self.held)

    @property
    def held(self) -> bool:
        return bool(self._states) and self._states[-1][2]

    @property
    def idle(self) -> bool:
        """As it was last told."""
        return self.at_rest and self._states[-1:] == [("idle", 0, False)]

    def shows(self, size_bytes: int) -> bool:
        return any(text.size_bytes == size_bytes for text in self._open.values())

    @property
    def heard(self) -> Heard:
        return Heard(
            lines=self._lines,
            sha256=self._hash.hexdigest(),
            gapless=self._gapless,
            lives=self._lives,
            open={message_id: text.shown for message_id, text in self._open.items()},
            streamed=dict(self._streamed),
            durable=dict(self._durable),
            states=tuple(self._states),
        )

    def _record(self, seq: int, line: bytes) -> None:
        self._gapless = self._gapless and seq == self.last_seq + 1
        self.last_seq = seq
        self._lines += 1
        self._hash.update(line + b"\n")
        if self._aloud is not None:
            self._aloud(line)

    def _take(self, event: AnyEvent) -> None:
        match event.body:
            case LiveState() as live:
                self._lives += 1
                self._open = {each.message_id: _Text().add(each.text) for each in live.messages}
                self.requests = {each.request_id: each for each in live.requests}
                self._state(live.state)
            case SessionStateChanged() as state:
                self._state(state)
            case MessageDelta(message_id=message_id, text=text):
                self._open.setdefault(message_id, _Text()).add(text)
            case MessageReset(message_id=message_id):
                self._open.pop(message_id, None)
            case MessageAssistant(message_id=message_id, text=text):
                self._streamed[message_id] = self._open.pop(message_id, _Text()).shown
                self._durable[message_id] = _shown(text)
                if isinstance(text, str) and len(text) < 200:
                    self.said.add(text)
            case MessageQueued(message_id=message_id):
                self._queued.add(message_id)
            case MessageUser(message_id=message_id) | MessageWithdrawn(message_id=message_id):
                self._queued.discard(message_id)
            case TurnStarted():
                self._in_turn = True
            case TurnCompleted() | TurnFailed():
                self._in_turn = False
                self.turns_ended += 1
            case PermissionRequested(request_id=request_id) as request:
                self.requests[request_id] = request
            case PermissionDecided(request_id=request_id) if request_id is not None:
                self.requests.pop(request_id, None)
            case _:
                pass

    def _state(self, state: SessionStateChanged) -> None:
        told = (state.state, state.queued, state.held)
        if self._states[-1:] != [told]:
            self._states.append(told)
