"""One session's log, many views of it in one process, beside one `asyncio.Queue` a view.

Deliveries a CPU second: how often an event reached a view, for the time this process spent on it.
"""

import asyncio  # noqa: TID251 what ours is compared with
import tempfile
import time
from pathlib import Path

import anyio
import anyio.lowlevel

from benchmarks.row import Row
from enginehouse_core.transcript.file import TranscriptFile
from enginehouse_core.transcript.index import SeqIndex
from enginehouse_core.transcript.log import SessionLog
from enginehouse_protocol.events import LiveState, MessageDelta, SessionStateChanged
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import new_message_id, new_session_id

DELTAS = 8_192
ROUNDS = 3
WANTED_PER_S = 60_000
_BURSTS = (8, 512)
"""Deltas between two chances for views to run: what a model's stream brings in one read, and an engine far ahead."""


def measure() -> list[Row]:
    rows: list[Row] = []
    for burst in _BURSTS:
        for views in (1, 10, 100):
            ours = max(anyio.run(_log, views, burst) for _ in range(ROUNDS))
            queues = max(anyio.run(_queues, views, burst) for _ in range(ROUNDS))
            target = {10: ">= 5 far ahead", 100: f">= {WANTED_PER_S:,}/s"}.get(views, "reported")
            what = f"fan-out to {views} views, {burst} at once"
            rows.append(Row(what, f"{ours:,.0f}/CPU s", f"queues {queues:,.0f}/CPU s", ours / queues, target))
    return rows


async def _log(views: int, burst: int) -> float:
    heard = 0

    def present() -> Delivery:
        return log.stamp(LiveState(seq=0, state=SessionStateChanged(state="running")), None)

    async def look(everything: int) -> None:
        nonlocal heard
        seen = 0
        async for batch in log.follow(0, present):
            seen += len(batch)
            if seen == everything + 1:  # and the present, which came first
                heard += everything
                return

    with tempfile.TemporaryDirectory() as folder:
        session_id = new_session_id()
        file = TranscriptFile.create(Path(folder) / session_id, session_id)
        log = SessionLog(session_id, Path(folder) / session_id, file, 0, SeqIndex())
        body = MessageDelta(message_id=new_message_id(), text=" and then")
        stamped = [log.stamp(body, None) for _ in range(DELTAS)]
        start = heard_per_s = 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.write)
            async with anyio.create_task_group() as looking:
                for _ in range(views):
                    looking.start_soon(look, DELTAS)
                await anyio.sleep(0.05)
                start = time.process_time()
                for number in range(DELTAS):
                    log.put(stamped[number])
                    if number % burst == 0:
                        await anyio.lowlevel.checkpoint()
            heard_per_s = heard / (time.process_time() - start)
            log.close()
    return heard_per_s


async def _queues(views: int, burst: int) -> float:
    queues: list[asyncio.Queue[MessageDelta]] = [asyncio.Queue() for _ in range(views)]
    heard = 0

    async def look(queue: asyncio.Queue[MessageDelta]) -> None:
        nonlocal heard
        for _ in range(DELTAS):
            await queue.get()
        heard += DELTAS

    start = 0.0
    async with anyio.create_task_group() as looking:
        for queue in queues:
            looking.start_soon(look, queue)
        await anyio.sleep(0.05)
        start = time.process_time()
        body = MessageDelta(message_id=new_message_id(), text=" and then")
        for number in range(DELTAS):
            for queue in queues:
                queue.put_nowait(body)
            if number % burst == 0:
                await anyio.lowlevel.checkpoint()
    return heard / (time.process_time() - start)
