"""What must not grow: damaged files, long lines and full rings against small ones of their own kind, in one run."""

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel

from benchmarks.row import Row
from enginehouse_core.transcript.file import FILE_NAME, TranscriptFile
from enginehouse_core.transcript.index import SeqIndex
from enginehouse_core.transcript.load import load
from enginehouse_core.transcript.log import RING_ENTRIES, SessionLog
from enginehouse_core.transcript.page import PAGE_EVENTS, page_after
from enginehouse_core.transcript.scan import Header, encode_header, scan
from enginehouse_protocol.codec import encode_event
from enginehouse_protocol.events import Event, LiveState, MessageDelta, Notice, SessionStateChanged
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import SessionId, new_message_id, new_session_id

ROUNDS = 5
VIEWS = 50
DELTAS = 50


def measure() -> list[Row]:
    session_id = new_session_id()
    with tempfile.TemporaryDirectory() as place:
        small, large = (_cost(lambda n=n: scan(_one_line(session_id, n), session_id)) for n in (1_000, 4_000))
        clean = _paging(Path(place) / "clean", session_id, b"")
        damaged = _paging(Path(place) / "damaged", session_id, b"\0\n")
        empty, full = anyio.run(_deliveries, Path(place) / "log", session_id)
    return [
        _row("scan a line of 4,000 records against 1,000", large, small, 8),
        _row("page through a damaged file against a clean one", damaged, clean, 3),
        _row(f"deliver to {VIEWS} views, ring full against empty", full, empty, 3),
    ]


def _row(what: str, ours: float, beside: float, most: int) -> Row:
    return Row(what, f"{1_000 * ours:.1f} ms", f"{1_000 * beside:.1f} ms", ours / beside, f"<= {most}")


def _cost(work: Callable[[], object]) -> float:
    found: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def _line(session_id: SessionId, seq: int) -> bytes:
    body = Notice(level="info", code="c", text="x" * 1_000)
    return encode_event(Event(session_id=session_id, seq=seq, at_ms=1, turn_id=None, body=body))


def _one_line(session_id: SessionId, count: int) -> bytes:
    return b" ".join(_line(session_id, seq) for seq in range(1, count + 1)) + b"\n"


def _paging(folder: Path, session_id: SessionId, damage: bytes) -> float:
    folder.mkdir()
    header = encode_header(Header(session_id=session_id, created_at_ms=0))
    lines = b"".join(_line(session_id, seq) + b"\n" for seq in range(1, 10_001))
    (folder / FILE_NAME).write_bytes(header + b"\n" + damage + lines)
    index = load(folder, session_id).index

    def page() -> None:
        seq = 0
        while found := page_after(folder, session_id, seq, index.after(seq, PAGE_EVENTS)):
            assert isinstance(found[-1].event, Event)
            seq = found[-1].event.seq

    return _cost(page)


async def _deliveries(folder: Path, session_id: SessionId) -> tuple[float, float]:
    log = SessionLog(session_id, folder, TranscriptFile.create(folder, session_id), 0, SeqIndex())
    heard = [0]
    delta = MessageDelta(message_id=new_message_id(), text="word ")

    def present() -> Delivery:
        return log.stamp(LiveState(seq=0, state=SessionStateChanged(state="running")), None)

    async def listen() -> None:
        async for batch in log.follow(0, present):
            heard[0] += len(batch)

    async def cost() -> float:
        found: list[float] = []
        for _ in range(ROUNDS):
            began = time.process_time()
            for _ in range(DELTAS):
                due = heard[0] + VIEWS
                log.put(log.stamp(delta, None))
                while heard[0] < due:
                    await anyio.lowlevel.checkpoint()
            found.append(time.process_time() - began)
        return min(found)

    empty = full = 0.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.write)
        for _ in range(VIEWS):
            tasks.start_soon(listen)
        await anyio.wait_all_tasks_blocked()
        gc.disable()
        empty = await cost()
        for _ in range(RING_ENTRIES - 1_000):
            log.put(log.stamp(delta, None))
        await anyio.wait_all_tasks_blocked()
        full = await cost()
        gc.enable()
        log.close()
    return empty, full
