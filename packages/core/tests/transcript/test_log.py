"""The live log: durable before told, in order, gapless, and honest when the disk refuses."""

import errno
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from transcript.sample import SESSION, events, transcript

from enginehouse_core.transcript.file import FILE_NAME, TranscriptFile, read_transcript
from enginehouse_core.transcript.index import SeqIndex
from enginehouse_core.transcript.load import open_transcript
from enginehouse_core.transcript.log import BATCH_ENTRIES, RING_ENTRIES, SessionLog
from enginehouse_protocol.errors import TranscriptUnavailable
from enginehouse_protocol.events import AnyBody, Event, LiveState, MessageDelta, Notice, SessionStateChanged
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import MessageId

pytestmark = pytest.mark.anyio


class SlowFile(TranscriptFile):
    """A real file whose disk a test can hold, or break."""

    def __init__(self, descriptor: int, path: Path, size_bytes: int) -> None:
        super().__init__(descriptor, path, size_bytes)
        self.groups: list[int] = []
        self.broken = ""

    def append(self, lines: "list[bytes] | tuple[bytes, ...]") -> list[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.broken:
            raise TranscriptUnavailable(self.broken)
        self.groups.append(len(lines))
        return super().append(lines)


@asynccontextmanager
async def live(folder: Path) -> AsyncGenerator[tuple[SessionLog, SlowFile]]:
    file = SlowFile.create(folder / "s", SESSION)
    file.groups.clear()
    log = SessionLog(SESSION, folder / "s", file, 0, SeqIndex())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.write)
        yield log, file
        log.close()


def note(number: int) -> Notice:
    return Notice(level="info", code="n", text=str(number))


def delta(number: int) -> MessageDelta:
    return MessageDelta(message_id=MessageId("m"), text=str(number))


def put(log: SessionLog, body: AnyBody) -> Delivery:
    stamped = log.stamp(body, None)
    log.put(stamped)
    return stamped


def present(log: SessionLog) -> Delivery:
    whole = LiveState(seq=log.on_disk_seq, state=SessionStateChanged(state="idle"))
    return log.stamp(log.passing.as_of(whole), None)


def following(log: SessionLog, seq: int) -> AsyncGenerator[tuple[Delivery, ...]]:
    return log.follow(seq, partial(present, log))


def live_state(deliveries: Iterable[Delivery]) -> LiveState:
    """The only thing a batch with a live state holds."""
    (delivery,) = deliveries
    assert isinstance(delivery.event.body, LiveState)
    return delivery.event.body


def seqs_of(deliveries: Iterable[Delivery]) -> list[int]:
    return [item.event.seq for item in deliveries if isinstance(item.event, Event)]


async def collect(log: SessionLog, seq: int, count: int) -> list[Delivery]:
    heard: list[Delivery] = []
    with anyio.fail_after(10):
        async for batch in following(log, seq):
            heard += batch
            if len(heard) >= count:
                break
    return heard


async def test_a_view_hears_everything_in_the_order_it_was_put(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, _):
        follower = following(log, 0)
        assert live_state(await anext(follower)).seq == 0
        sent = [put(log, delta(n) if n % 3 else note(n)) for n in range(300)]
        heard: list[Delivery] = []
        with anyio.fail_after(10):
            while len(heard) < len(sent):
                heard += await anext(follower)
        assert heard == sent
        await follower.aclose()


async def test_a_late_view_hears_the_durable_events_and_then_what_is_open(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, _):
        for n in range(30):
            put(log, delta(n) if n % 3 else note(n))
        await log.synced(log.last_seq)
        heard = await collect(log, 4, 7)
        assert seqs_of(heard) == list(range(5, 11))
        assert [type(item.event) for item in heard[:-1]] == [Event] * 6
        state = live_state(heard[-1:])
        assert state.seq == 10
        assert [message.text for message in state.messages] == ["".join(str(n) for n in range(30) if n % 3)]


async def test_a_durable_event_is_on_disk_before_a_view_hears_it(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, _):

        async def emit() -> None:
            for n in range(200):
                put(log, note(n))
                if n % 7 == 0:
                    await log.synced(log.last_seq)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(emit)
            heard = 0
            with anyio.fail_after(10):
                async for batch in following(log, 0):
                    on_disk = {record.event.seq for record in read_transcript(tmp_path / "s", SESSION).records}
                    assert set(seqs_of(batch)) <= on_disk
                    heard += len(seqs_of(batch))
                    if heard == 200:
                        break


async def test_a_transient_waits_behind_the_durable_event_before_it(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, _):
        put(log, note(1))
        put(log, delta(2))
        # Nothing is on disk yet: this task has not let the writer run.
        follower = following(log, 0)
        assert live_state(await anext(follower)) == LiveState(seq=0, state=SessionStateChanged(state="idle"))
        first = await anext(follower)
        assert [type(item.event.body) for item in first] == [Notice, MessageDelta]
        await follower.aclose()


async def test_what_arrives_while_a_group_is_written_is_the_next_group(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, file):
        put(log, note(0))
        await log.synced(1)

        async def one(n: int) -> None:
            await log.synced(*seqs_of([put(log, note(n))]))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for n in range(64):
                    tasks.start_soon(one, n)
        assert sum(file.groups) == 65
        assert len(file.groups) <= 4


async def test_a_reader_that_fell_out_of_the_ring_gets_the_durable_events_from_the_file(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, _):
        follower = following(log, 0)
        assert live_state(await anext(follower)).seq == 0
        put(log, note(0))
        assert len(await anext(follower)) == 1
        for n in range(RING_ENTRIES * 2):
            put(log, note(n) if n % 2 else delta(n))
            if n % 500 == 0:
                await log.synced(log.last_seq)
        await log.synced(log.last_seq)
        seqs: list[int] = []
        with anyio.fail_after(20):
            async for batch in follower:
                assert len(batch) <= max(BATCH_ENTRIES, 1_000)
                seqs += seqs_of(batch)
                if seqs and seqs[-1] == log.last_seq:
                    break
            assert seqs == list(range(2, log.last_seq + 1))
            assert live_state(await anext(follower)).seq == log.last_seq
        await follower.aclose()


async def test_events_after_any_seq_are_the_same_from_ring_and_file(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, _):
        for n in range(RING_ENTRIES + 500):
            put(log, note(n))
        await log.synced(log.last_seq)
        for seq in (0, 63, 64, 400, RING_ENTRIES, log.last_seq - 1, log.last_seq):
            found = await log.events_after(seq)
            assert [event.seq for event in found] == list(range(seq + 1, min(seq + 1_000, log.last_seq) + 1))


async def test_what_could_not_be_written_never_happened(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, file):
        put(log, note(1))
        await log.synced(1)
        file.broken = "the disk is full"
        put(log, note(2))
        put(log, delta(3))
        with pytest.raises(TranscriptUnavailable, match="full"):
            await log.synced(2)
        assert log.last_seq == 1
        heard: list[Delivery] = []
        with pytest.raises(TranscriptUnavailable, match="full"):
            async for batch in following(log, 0):
                heard += batch
        assert heard[0].event.body == note(1)
        assert live_state(heard[1:]).seq == 1
        with pytest.raises(TranscriptUnavailable):
            put(log, note(4))


async def test_putting_too_much_waits_for_the_disk(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, file):
        big = Notice(level="info", code="n", text="x" * 500_000)
        for _ in range(40):
            await log.has_room()
            put(log, big)
        await log.synced(log.last_seq)
        assert max(file.groups) <= 10


class HeldFile(TranscriptFile):
    """A real file whose syncs wait until a test lets them go, or fail."""

    def __init__(self, descriptor: int, path: Path, size_bytes: int) -> None:
        super().__init__(descriptor, path, size_bytes)
        self.reached, self.let_go = threading.Event(), threading.Event()
        self.full = False

    def _sync(self) -> None:
        self.reached.set()
        assert self.let_go.wait(10)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._sync()


class LateLog(SessionLog):
    """A log whose pages are read at once and handed over when a test says so."""

    def __init__(self, folder: Path, file: TranscriptFile, last_seq: int, index: SeqIndex) -> None:
        super().__init__(SESSION, folder, file, last_seq, index)
        self.read, self.hand_over = anyio.Event(), anyio.Event()
        self.hand_over.set()

    async def _page(self, seq: int) -> list[Delivery]:
        page = await super()._page(seq)
        self.read.set()
        await self.hand_over.wait()
        return page


@asynccontextmanager
async def being_written(folder: Path) -> AsyncGenerator[tuple[LateLog, HeldFile]]:
    """A transcript of nine events opened again, and a tenth that is in the file and not yet on disk."""
    (folder / "s").mkdir()
    (folder / "s" / FILE_NAME).write_bytes(transcript(1))
    opened, loaded = open_transcript(folder / "s", SESSION)
    opened.close()
    file = HeldFile.open(folder / "s", SESSION)
    log = LateLog(folder / "s", file, loaded.fold.last_seq, loaded.index)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.write)
        put(log, note(10))
        assert await anyio.to_thread.run_sync(file.reached.wait, 10)
        try:
            yield log, file
        finally:
            file.let_go.set()
            log.close()


async def test_a_view_hears_of_an_event_in_the_file_only_when_it_is_on_disk_and_once(tmp_path: Path) -> None:
    async with being_written(tmp_path) as (log, file):
        follower = following(log, 0)
        with anyio.fail_after(10):
            assert seqs_of(await anext(follower)) == list(range(1, 10))
            assert live_state(await anext(follower)).seq == 9
            file.let_go.set()
            assert seqs_of(await anext(follower)) == [10]
            put(log, note(11))
            assert seqs_of(await anext(follower)) == [11]
        await follower.aclose()


async def test_a_view_that_read_the_file_while_a_write_failed_hears_nothing_of_it(tmp_path: Path) -> None:
    async with being_written(tmp_path) as (log, file):
        file.full = True
        heard: list[int] = []
        with anyio.fail_after(10), pytest.raises(TranscriptUnavailable, match="full"):
            async for batch in following(log, 0):
                heard += seqs_of(batch)
                file.let_go.set()
        assert heard == list(range(1, 10))


async def test_an_engine_sees_what_is_being_written_but_not_what_was_taken_back_meanwhile(tmp_path: Path) -> None:
    async with being_written(tmp_path) as (log, file):
        assert [event.seq for event in await log.events_after(0)] == list(range(1, 11))
        log.read, log.hand_over = anyio.Event(), anyio.Event()
        found: list[Event] = []

        async def look() -> None:
            found.extend(await log.events_after(0))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(look)
                await log.read.wait()
                file.full = True
                file.let_go.set()
                with pytest.raises(TranscriptUnavailable):
                    await log.synced(10)
                log.hand_over.set()
        assert [event.seq for event in found] == list(range(1, 10))


async def test_a_view_that_is_ahead_of_the_record_misses_none_of_what_happens_there(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, _):
        put(log, note(1))
        await log.synced(1)
        follower = following(log, 3)  # it heard of 2 and 3 from a record that lost them
        with anyio.fail_after(20):
            assert live_state(await anext(follower)).seq == 1
            put(log, delta(1))
            assert seqs_of(await anext(follower)) == []
            for n in range(2, RING_ENTRIES + 1_000):
                put(log, note(n))
            await log.synced(log.last_seq)
            heard: list[int] = []
            async for batch in follower:
                heard += seqs_of(batch)
                if heard and heard[-1] == log.last_seq:
                    break
        assert heard == list(range(2, log.last_seq + 1))
        await follower.aclose()


async def test_a_log_whose_writer_is_gone_refuses_instead_of_waiting(tmp_path: Path) -> None:
    file = SlowFile.create(tmp_path / "s", SESSION)
    log = SessionLog(SESSION, tmp_path / "s", file, 0, SeqIndex())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.write)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    with pytest.raises(TranscriptUnavailable, match="closed"):
        put(log, note(1))


@pytest.mark.parametrize("foreign", [b"", b"\0\0\n"])
async def test_pages_are_the_same_whether_the_file_is_damaged_or_not(tmp_path: Path, foreign: bytes) -> None:
    header, records = transcript(40).split(b"\n", 1)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / FILE_NAME).write_bytes(header + b"\n" + foreign + records)
    file, loaded = open_transcript(tmp_path / "s", SESSION)
    log = SessionLog(SESSION, tmp_path / "s", file, loaded.fold.last_seq, loaded.index)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.write)
        old = events(40)
        added = [put(log, note(n)).event for n in range(RING_ENTRIES + 1_000)]
        await log.synced(log.last_seq)
        for seq in (0, 1, 200, len(old) - 1, len(old), len(old) + 70):
            found: list[Event] = []
            with anyio.fail_after(10):
                while len(found) < 700:
                    found += await log.events_after(found[-1].seq if found else seq)
            assert found[:700] == [*old, *added][seq : seq + 700]
        log.close()
