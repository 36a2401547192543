"""The live end of one session's record: stamps bodies, hands groups of lines to the file, tells views.

Rule: write first, then tell. `visible` is the place of the first durable entry that is not on disk, else the end:
whatever comes after it is neither shown nor folded into what is shown, and delivery order is emission order. That a
group can be read in the file does not mean it is on disk: a page shows no more of it than the ring does.

There is no timer: a group is written as soon as the one before it is on disk, and what arrives meanwhile is the next
group. Source of the shape: a shared log with a cursor per view needs no queue per view, and views share the bytes.
"""

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import anyio
import anyio.to_thread

from enginehouse_core.transcript.file import TranscriptFile
from enginehouse_core.transcript.index import SeqIndex
from enginehouse_core.transcript.live import PassingFold
from enginehouse_core.transcript.page import PAGE_BYTES, PAGE_EVENTS, page_after
from enginehouse_protocol.codec import encode_event
from enginehouse_protocol.errors import TranscriptUnavailable
from enginehouse_protocol.events import TRANSIENT, AnyBody, Event, Passing
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import SessionId, TurnId

RING_ENTRIES = 4_096
RING_BYTES = 8 << 20
BATCH_ENTRIES = 512
_RING_SLACK = 512  # entries trimmed beyond what is needed, so that trimming is rare
_WAITING_RECORDS = 2_048
_WAITING_BYTES = 4 << 20
_WAITING_S = 0.02

_sync_limiter: anyio.CapacityLimiter | None = None


def _limiter() -> anyio.CapacityLimiter:
    """Syncs have worker threads of their own: slow disks must not hold up everything else that needs one."""
    global _sync_limiter  # noqa: PLW0603 made inside the running loop
    if _sync_limiter is None:
        _sync_limiter = anyio.CapacityLimiter(8)
    return _sync_limiter


class SessionLog:
    """The only place that stamps events. Run `write` as a task for as long as the log lives."""

    def __init__(
        self, session_id: SessionId, folder: Path, file: TranscriptFile, last_seq: int, index: SeqIndex
    ) -> None:
        self.session_id = session_id
        self.failure = ""
        """Why nothing can be recorded any more through this log; empty while all is well."""
        self._folder = folder
        self._file = file
        self._index = index
        self._last_seq = last_seq
        self._on_disk_seq = last_seq
        self._ring: list[Delivery] = []  # a list: each delivery to each view is a slice somewhere in it
        self._ring_start = 0  # position of the ring's first entry; positions count every entry since opening
        self._ring_bytes = 0
        self._trimmed_seq = last_seq  # the last durable event that is not in the ring
        self._visible = 0
        self._passing = PassingFold()
        self._folded = 0  # position up to which `_passing` knows
        self._shared: tuple[tuple[int, int], tuple[Delivery, ...], int] = (0, 0), (), 0
        self._unsynced: list[tuple[int, Delivery]] = []
        self._in_flight = 0
        self._waiting_bytes = 0
        self._oldest_waiting = 0.0
        self._work = anyio.Event()
        self._progress: anyio.Event | None = None  # made by whoever waits: most of the time nobody does
        self._changed: anyio.Event | None = None
        self._closing = False
        self._ended = anyio.Event()

    @property
    def last_seq(self) -> int:
        """Of what was stamped, on disk or not."""
        return self._last_seq

    @property
    def on_disk_seq(self) -> int:
        return self._on_disk_seq

    @property
    def passing(self) -> PassingFold:
        """Of everything visible."""
        for delivery in self._ring[self._folded - self._ring_start : self._visible - self._ring_start]:
            self._passing.apply(delivery.event.body)
        self._folded = self._visible
        return self._passing

    @property
    def visible(self) -> int:
        """The position after the last entry views may see. Grows with every one of them."""
        return self._visible

    # --- putting in -----------------------------------------------------------------------------------------------

    def stamp(self, body: AnyBody, turn_id: TurnId | None) -> Delivery:
        """An event with the next place in the record, and its bytes. It counts once it is `put`."""
        at_ms = time.time_ns() // 1_000_000
        event: Event | Passing
        if isinstance(body, TRANSIENT):
            event = Passing(session_id=self.session_id, at_ms=at_ms, turn_id=turn_id, body=body)  # pyright: ignore[reportArgumentType]
        else:
            seq = self._last_seq + 1
            event = Event(session_id=self.session_id, seq=seq, at_ms=at_ms, turn_id=turn_id, body=body)  # pyright: ignore[reportArgumentType]
        return Delivery(event=event, line=encode_event(event))

    def put(self, stamped: Delivery) -> None:
        """Order and queue what was just stamped. Does no I/O and does not wait.

        Raises:
            TranscriptUnavailable: an earlier group could not be written.
        """
        if self.failure or self._closing:
            raise TranscriptUnavailable(self.failure or "the session's record is closed")
        self._ring.append(stamped)
        self._ring_bytes += len(stamped.line)
        if isinstance(stamped.event, Event):
            self._last_seq = stamped.event.seq
            if not self._unsynced:
                self._oldest_waiting = time.monotonic()
            self._unsynced.append((self._ring_start + len(self._ring) - 1, stamped))
            self._waiting_bytes += len(stamped.line)
            self._work.set()
        elif not self._unsynced and not self._in_flight:
            self._advance()

    async def has_room(self) -> None:
        """Wait while too much waits for the disk. What bounds memory also lets the loop go idle for the writer."""
        while self._unsynced and not self.failure and not self._ended.is_set() and self._overfull():
            await self._progressed()

    def _overfull(self) -> bool:
        return (
            len(self._unsynced) >= _WAITING_RECORDS
            or self._waiting_bytes >= _WAITING_BYTES
            or time.monotonic() - self._oldest_waiting >= _WAITING_S
        )

    async def synced(self, seq: int) -> None:
        """Return once the event `seq` is on disk.

        Raises:
            TranscriptUnavailable: it will not be.
        """
        while self._on_disk_seq < seq:
            if self.failure or self._ended.is_set():
                raise TranscriptUnavailable(self.failure or "the session's record was closed")
            await self._progressed()

    # --- the writer -----------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write groups until `close`. The log's only task."""
        try:
            while True:
                await self._work.wait()
                self._work = anyio.Event()
                while self._unsynced:
                    await self._write_group()
                if self._closing or self.failure:
                    return
        finally:
            self._file.close()
            self._closing = True
            self._ended.set()
            self._notify()

    async def _write_group(self) -> None:
        group, self._unsynced = self._unsynced, []
        self._in_flight, self._waiting_bytes = len(group), 0
        lines = [delivery.line for _, delivery in group]
        try:
            offsets = await anyio.to_thread.run_sync(self._file.append, lines, limiter=_limiter())
        except TranscriptUnavailable as error:
            self._give_up(str(error))
            return
        for (_, delivery), offset in zip(group, offsets, strict=True):
            assert isinstance(delivery.event, Event)
            self._index.add(delivery.event.seq, offset)
            self._on_disk_seq = delivery.event.seq
        self._in_flight = 0
        self._advance()

    def _advance(self) -> None:
        self._visible = self._unsynced[0][0] if self._unsynced else self._ring_start + len(self._ring)
        if len(self._ring) > RING_ENTRIES or self._ring_bytes > RING_BYTES:
            self._trim()
        self._notify()

    def _trim(self) -> None:
        """Drop the oldest entries that views may have seen."""
        _ = self.passing  # it must not miss them
        gone = 0
        for delivery in islice(self._ring, self._visible - self._ring_start):
            if len(self._ring) - gone <= RING_ENTRIES - _RING_SLACK and self._ring_bytes <= RING_BYTES:
                break
            gone += 1
            self._ring_bytes -= len(delivery.line)
            if isinstance(delivery.event, Event):
                self._trimmed_seq = delivery.event.seq
        del self._ring[:gone]
        self._ring_start += gone

    def _give_up(self, why: str) -> None:
        """No view saw what comes after `visible`: it is taken back, and its seqs are free again."""
        self.failure = why
        self._unsynced, self._in_flight = [], 0
        while self._ring_start + len(self._ring) > self._visible:
            self._ring_bytes -= len(self._ring.pop().line)
        self._last_seq = self._on_disk_seq
        self._notify()

    def _notify(self) -> None:
        """Wake whoever waits for the disk, and every view that has seen all there was."""
        if self._progress is not None:
            self._progress.set()
            self._progress = None
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _progressed(self) -> None:
        self._progress = self._progress or anyio.Event()
        await self._progress.wait()

    def close(self) -> None:
        """Let the writer finish what is queued and end. Nothing can be put any more."""
        self._closing = True
        self._work.set()

    async def wait_closed(self) -> None:
        """Until the writer gave up the file."""
        await self._ended.wait()

    # --- reading --------------------------------------------------------------------------------------------------

    async def events_after(self, seq: int) -> list[Event]:
        """At most 1,000, what is not yet on disk included: an engine's own view of its session.

        What was taken back by the time this returns is not among them.
        """
        if seq < self._trimmed_seq:
            page = await self._page(seq)
            return [
                event for event in (item.event for item in _up_to(self._last_seq, page)) if isinstance(event, Event)
            ]
        events = (delivery.event for delivery in self._ring)
        return list(islice((e for e in events if isinstance(e, Event) and e.seq > seq), PAGE_EVENTS))

    async def _page(self, seq: int) -> list[Delivery]:
        """From the file, as far as it is written there: perhaps with events that are not on disk and never will be."""
        where = self._index.after(seq, PAGE_EVENTS)
        return await anyio.to_thread.run_sync(page_after, self._folder, self.session_id, seq, where)

    async def follow(self, seq: int, present: Callable[[], Delivery]) -> AsyncGenerator[tuple[Delivery, ...]]:
        """The durable events after `seq`, `present()`, then what becomes visible, in batches. One cursor; no queue.

        A reader that was too slow for the ring gets the durable events it missed, and the present again. One that
        already is where the record has not come to, because what it heard of was taken back, goes on where the record
        is.
        """
        seq = min(seq, self._on_disk_seq)
        while True:
            while seq < self._on_disk_seq and (page := await self.durable_after(seq)):
                seq = last_seq_of(page, seq)
                yield page
            # In one step with `present`: between them nothing can become visible.
            position, now = self._visible, present()
            seq = max(seq, self._on_disk_seq)
            yield (now,)
            while position >= self._ring_start:
                if position < self._visible:
                    batch, last_seq = self._visible_from(position)
                    position += len(batch)
                    seq = last_seq or seq
                    yield batch
                elif self.failure:
                    raise TranscriptUnavailable(self.failure)
                elif self._ended.is_set():
                    return
                else:
                    self._changed = self._changed or anyio.Event()
                    await self._changed.wait()

    async def durable_after(self, seq: int) -> tuple[Delivery, ...]:
        """The next that are on disk; none when only lost records follow."""
        if seq < self._trimmed_seq:
            return tuple(_up_to(self._on_disk_seq, await self._page(seq)))
        entries = self._ring[: self._visible - self._ring_start]
        return _bounded(entry for entry in entries if isinstance(entry.event, Event) and entry.event.seq > seq)

    def _visible_from(self, position: int) -> tuple[tuple[Delivery, ...], int]:
        """The next batch, and the seq of its last durable event (0: none). Views at one place get the same object."""
        place = position, self._visible
        if self._shared[0] != place:
            start = position - self._ring_start
            batch = self._ring[start : min(start + BATCH_ENTRIES, self._visible - self._ring_start)]
            cut = tuple(batch) if self._ring_bytes <= PAGE_BYTES else _bounded(batch)
            self._shared = place, cut, last_seq_of(cut, 0)
        return self._shared[1:]


def _bounded(entries: Iterable[Delivery]) -> tuple[Delivery, ...]:
    """From the first, at most 1,000 and about 1 MiB."""
    taken: list[Delivery] = []
    size = 0
    for entry in islice(entries, PAGE_EVENTS):
        taken.append(entry)
        size += len(entry.line)
        if size >= PAGE_BYTES:
            break
    return tuple(taken)


def _up_to(seq: int, page: list[Delivery]) -> list[Delivery]:
    return [item for item in page if isinstance(item.event, Event) and item.event.seq <= seq]


def last_seq_of(deliveries: Sequence[Delivery], before: int) -> int:
    """The seq of the last durable event among them; `before` when there is none."""
    for delivery in reversed(deliveries):
        if isinstance(delivery.event, Event):
            return delivery.event.seq
    return before
