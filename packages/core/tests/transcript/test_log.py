"""The live log: durable before told, in order, gapless, and honest when the disk refuses."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from transcript.sample import SESSION

from enginehouse_core.transcript.file import TranscriptFile, read_transcript
from enginehouse_core.transcript.index import SeqIndex
from enginehouse_core.transcript.log import BATCH_ENTRIES, RING_ENTRIES, SessionLog
from enginehouse_protocol.errors import TranscriptUnavailable
from enginehouse_protocol.events import AnyBody, Event, MessageDelta, Notice
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


def seqs_of(deliveries: Iterable[Delivery]) -> list[int]:
    return [item.event.seq for item in deliveries if isinstance(item.event, Event)]


async def collect(log: SessionLog, seq: int, count: int) -> list[Delivery]:
    heard: list[Delivery] = []
    with anyio.fail_after(10):
        async for batch in log.follow(seq):
            heard += batch
            if len(heard) >= count:
                break
    return heard


async def test_a_view_hears_everything_in_the_order_it_was_put(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, _):
        sent = [put(log, delta(n) if n % 3 else note(n)) for n in range(300)]
        assert await collect(log, 0, 300) == sent


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
                async for batch in log.follow(0):
                    on_disk = {record.event.seq for record in read_transcript(tmp_path / "s", SESSION).records}
                    assert set(seqs_of(batch)) <= on_disk
                    heard += len(batch)
                    if heard == 200:
                        break


async def test_a_transient_waits_behind_the_durable_event_before_it(tmp_path: Path) -> None:
    async with live(tmp_path) as (log, _):
        put(log, note(1))
        put(log, delta(2))
        # Nothing is on disk yet: this task has not let the writer run.
        follower = log.follow(0)
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
        follower = log.follow(0)
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
            async for batch in log.follow(0):
                heard += batch
        assert [item.event.body for item in heard] == [note(1)]
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
