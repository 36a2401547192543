"""How long a record takes to be durable, beside a bare fsync of the same size on the same disk."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from benchmarks.row import Row
from enginehouse_core.transcript.file import TranscriptFile
from enginehouse_core.transcript.index import SeqIndex
from enginehouse_core.transcript.log import SessionLog
from enginehouse_protocol.events import Event, Notice
from enginehouse_protocol.ids import new_session_id

ACKS = 400
WAITERS = 64
ROUNDS = 20
BODY = Notice(level="info", code="benchmark", text="x" * 280)


class Counting(TranscriptFile):
    """The real file, counting its syncs."""

    syncs = 0

    def append(self, lines: "list[bytes]") -> list[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        type(self).syncs += 1
        return super().append(lines)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        bare, ours, per_sync = anyio.run(_measure, Path(folder))
    return [
        Row("durable ack, p50", f"{ours:.2f} ms", f"fdatasync {bare:.2f} ms", ours / bare, "<= 2"),
        Row(f"records a sync, {WAITERS} waiters", f"{per_sync:.0f}", "1", per_sync, ">= 8"),
    ]


async def _measure(folder: Path) -> tuple[float, float, float]:
    session_id = new_session_id()
    file = Counting.create(folder / session_id, session_id)
    log = SessionLog(session_id, folder / session_id, file, 0, SeqIndex())
    bare: list[float] = []
    ours: list[float] = []
    per_sync = 0.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.write)
        descriptor = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        line = log.stamp(BODY, None).line + b"\n"
        for _ in range(ACKS):
            bare.append(_timed(lambda: (os.write(descriptor, line), os.fdatasync(descriptor))))
            start = time.perf_counter()
            await log.synced(_put(log))
            ours.append(time.perf_counter() - start)
        os.close(descriptor)
        Counting.syncs = 0
        for _ in range(ROUNDS):
            async with anyio.create_task_group() as waiters:
                for _ in range(WAITERS):
                    waiters.start_soon(_wait, log)
        per_sync = WAITERS * ROUNDS / Counting.syncs
        log.close()
    return 1_000 * sorted(bare)[ACKS // 2], 1_000 * sorted(ours)[ACKS // 2], per_sync


def _put(log: SessionLog) -> int:
    stamped = log.stamp(BODY, None)
    log.put(stamped)
    assert isinstance(stamped.event, Event)
    return stamped.event.seq


async def _wait(log: SessionLog) -> None:
    await log.synced(_put(log))


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
