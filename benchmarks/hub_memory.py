"""What the hub holds in memory with a hundred sessions nobody uses: at once, and when it has forgotten them.

Each session has had one short turn. Resident memory of the process that serves; its keeper is another.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import psutil

from benchmarks.forgetful_hub import KEPT_S
from benchmarks.row import Row
from end_to_end.person import Person
from enginehouse.connecting import connected
from enginehouse.environment import Flags, start_of
from enginehouse.hub_place import hub_place
from enginehouse_core.profile.folders import Folders
from enginehouse_hosts.client import RemoteHub
from enginehouse_protocol.content import Text
from enginehouse_protocol.events import TurnCompleted
from enginehouse_protocol.hub import Attach, CreateSession, SendMessage
from enginehouse_protocol.local_socket import holder_of
from model_server import reply, server_in_thread

SESSIONS = 100
AT_ONCE = 4
AIM_MB = 80
_PATIENCE_S = 60.0
_ROOT = Path(__file__).parent.parent


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as place, server_in_thread(reply("Done.")) as server:
        person = Person(Path(place) / "home", server.base_url)
        with _hub(person) as hub:
            started = _mb(hub)
            anyio.run(_talk, person, 1)
            first = _mb(hub)
            anyio.run(_talk, person, SESSIONS - 1)
            at_once = _mb(hub)
            _until(lambda: _transcripts(hub) == 0, KEPT_S + _PATIENCE_S)
            forgotten = _mb(hub)
    rows = {
        "hub, before any session": started,
        "hub, 1 idle session": first,
        f"hub, {SESSIONS} idle sessions": at_once,
        f"hub, {SESSIONS} idle sessions, forgotten": forgotten,
    }
    return [Row(what, f"{mb:.0f} MB", f"aim {AIM_MB} MB", mb / AIM_MB, "<= 1") for what, mb in rows.items()]


@contextmanager
def _hub(person: Person) -> Iterator[psutil.Process]:
    """The process that serves."""
    keeper = subprocess.Popen([sys.executable, "-m", "benchmarks.forgetful_hub"], env=person.environment, cwd=_ROOT)
    try:
        _until(lambda: person.runs("hub", "status").code == 0, _PATIENCE_S)
        holder = holder_of(hub_place(Folders.of(person.environment)))
        assert holder is not None
        hub = psutil.Process(holder.pid)
        yield hub
    finally:
        keeper.terminate()
        keeper.wait(30)


async def _talk(person: Person, count: int) -> None:
    folders = Folders.of(person.environment)
    limit = anyio.Semaphore(AT_ONCE)
    async with (
        connected(folders, person.environment, can_answer=False, start=False) as hub,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(count):
            tasks.start_soon(_one_turn, hub, person, limit)


async def _one_turn(hub: RemoteHub, person: Person, limit: anyio.Semaphore) -> None:
    start = start_of(Flags(), Folders.of(person.environment), person.environment)
    async with limit:
        create = CreateSession(
            engine=start.engine, directory=str(person.project), settings=start.settings, launch=start.launch
        )
        info = await hub.sessions_create(create)
        async with hub.sessions_attach(Attach(session_id=info.id)) as view:
            await hub.sessions_send(SendMessage(session_id=info.id, content=(Text(text="Say that it is done."),)))
            async for batch in view.batches():
                if any(isinstance(delivery.event.body, TurnCompleted) for delivery in batch):
                    return


def _mb(process: psutil.Process) -> float:
    return process.memory_info().rss / 1e6


def _transcripts(process: psutil.Process) -> int:
    """How many it holds open."""
    return sum("transcript" in file.path for file in process.open_files())


def _until(holds: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come true within {within_s:g} s")
        time.sleep(0.1)
