"""The messages of one session that wait for their turn.

Rule: what waits is what the record says waits; here lives only whether it is held, and what came along with a message
for its turn alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from enginehouse_core.sessions.record import SessionRecord
from enginehouse_protocol.content import Content
from enginehouse_protocol.errors import MessageNotQueued
from enginehouse_protocol.events import MessageQueued, MessageWithdrawn
from enginehouse_protocol.hub import QueuedMessage, QueueState, Receipt
from enginehouse_protocol.ids import MessageId


@dataclass(frozen=True)
class Wishes:
    """What came along with a message, for its turn only. Not kept past the hub's end."""

    max_steps: int | None = None
    unattended: Literal["wait", "deny"] = "wait"


class MessageQueue:
    def __init__(self, record: SessionRecord, usual: Wishes) -> None:
        """`usual`: for messages that came without wishes."""
        self.held = self.cut_off = bool(record.fold.queue)
        """`held`: nothing leaves it until a person sends or resumes. `cut_off`: because it was found on disk, so what
        waits there was cut off from its person by a crash, not by their wish."""
        self.usual = usual
        self._record = record
        self._wishes: dict[MessageId, Wishes] = {}

    def __len__(self) -> int:
        """How many wait, what is still on its way to the disk included."""
        return len(self._record.ahead.queue)

    def state(self) -> QueueState:
        queued = self._record.fold.queue.values()
        messages = tuple(QueuedMessage(message_id=entry.message_id, content=entry.content) for entry in queued)
        return QueueState(messages=messages, held=self.held)

    def hold(self) -> None:
        self.held, self.cut_off = True, False

    def let_go(self) -> None:
        self.held = self.cut_off = False

    def wish(self, message_id: MessageId, wishes: Wishes) -> None:
        self._wishes[message_id] = wishes

    def next(self) -> tuple[MessageId, Wishes] | None:
        """The message whose turn it is, once it is on disk; None also while the queue is held."""
        if self.held:
            return None
        for message_id in self._record.fold.queue:
            return message_id, self._wishes.get(message_id, self.usual)
        return None

    def forget(self) -> None:
        """Drop the wishes of messages that do not wait any more."""
        self._wishes = {key: wish for key, wish in self._wishes.items() if key in self._record.ahead.queue}

    async def add(
        self,
        message_id: MessageId,
        content: tuple[Content, ...],
        *,
        busy: Callable[[], bool],
        ending: Callable[[], bool],
    ) -> int:
        """Put a message at the end; returns its seq. One that is known keeps its own.

        0: something came in between, so that these have another answer now, or the queue is another; look again.
        """

        def source() -> Literal["human", "queue"]:
            return "queue" if busy() or self else "human"

        recent = self._record.ahead.recent
        queued = MessageQueued(message_id=message_id, content=content, source=source())
        seq = await self._record.put(
            queued, only_if=lambda: message_id not in recent and queued.source == source() and not ending()
        )
        return seq or recent.get(message_id, 0)

    async def edit(self, message_id: MessageId, content: tuple[Content, ...]) -> Receipt:
        """Raises: MessageNotQueued, TranscriptUnavailable."""
        edited = msgspec.structs.replace(self._waiting(message_id), content=content)
        return Receipt(message_id=message_id, seq=await self._change(message_id, edited))

    async def withdraw(self, message_id: MessageId) -> QueuedMessage:
        """The text comes back. Raises: MessageNotQueued, TranscriptUnavailable."""
        entry = self._waiting(message_id)
        await self._change(message_id, MessageWithdrawn(message_id=message_id, by="person"))
        return QueuedMessage(message_id=message_id, content=entry.content)

    async def withdraw_all(self) -> None:
        """The session closes."""
        for message_id in list(self._record.ahead.queue):
            await self._record.put(MessageWithdrawn(message_id=message_id, by="close"))

    async def _change(self, message_id: MessageId, body: MessageQueued | MessageWithdrawn) -> int:
        seq = await self._record.put(body, only_if=lambda: message_id in self._record.ahead.queue)
        if not seq:
            self._waiting(message_id)
        await self._record.log.synced(seq)
        return seq

    def _waiting(self, message_id: MessageId) -> MessageQueued:
        entry = self._record.ahead.queue.get(message_id)
        if entry is None:
            raise MessageNotQueued(f"message {message_id} is not in the queue; it may have been sent already")
        return entry
