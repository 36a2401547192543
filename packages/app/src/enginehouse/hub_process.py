"""The hub as a process of its own: one profile, one lock, one private socket, every host.

Rule: it starts knowing nothing of a person but where the profile is. It opens what it owns under the lifetime lock and
gives it up before the lock, so the next hub never finds anything half open.
"""

import gc
import logging
import os
import signal
import sys
from importlib import import_module

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, TaskStatus

from enginehouse import __version__
from enginehouse.hub_place import EDITION, SERVE, hub_place
from enginehouse.output import complain
from enginehouse.wiring import FIRST_TURN, hub_of
from enginehouse_core.profile.folders import Folders
from enginehouse_hosts.gateway import Gateway
from enginehouse_protocol.errors import ServiceRunning
from enginehouse_protocol.local_socket import ALREADY_RUNNING_EXIT, Guest, Lifetime, Server

_log = logging.getLogger("enginehouse.hub")


async def be_the_hub(folders: Folders, idle_after_s: float | None) -> int:
    """Serve until idle, asked, or signalled; returns the exit code.

    Raises:
        ServiceRunning: another process is the hub of this profile.
        ProfileError: somebody uses the profile without a hub, or it cannot be written.
        LocalSocketError: the run-time folder is not ours alone, or cannot be used.
    """
    await anyio.to_thread.run_sync(folders.create)  # with its own words for a disk that refuses
    lifetime = await anyio.to_thread.run_sync(Lifetime.acquire, hub_place(folders), __version__)
    with lifetime:
        async with hub_of(folders, SERVE) as hub:
            gateway = Gateway(hub, version=__version__)

            async def receive(stream: ByteStream, _: Guest) -> None:
                await gateway.serve(stream)

            server = Server(lifetime, EDITION, receive, idle_after_s=idle_after_s, busy=lambda: hub.busy)
            async with anyio.create_task_group() as tasks:
                await tasks.start(_serve, server, tasks.cancel_scope)
                _log.info("hub %s serves %s", __version__, folders.profile)
                await anyio.to_thread.run_sync(_prepare_first_turn, abandon_on_cancel=True)
    return 0


async def _serve(server: Server, whole: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
    await server.run(task_status=task_status)
    whole.cancel()  # also what is still being prepared


def _prepare_first_turn() -> None:
    """What costs a second at the first send is done before it. What cannot be imported, the engine reports when it is
    wanted; the hub has other engines.

    What was imported lives as long as the process: the collector need not look at it again.
    """
    for module in FIRST_TURN:
        try:
            import_module(module)
        except Exception as error:  # noqa: BLE001 a package may raise anything, and none may take the hub along
            _log.info("%s cannot be imported ahead: %s", module, error)
    gc.collect()
    gc.freeze()


class WarningsOnStderr(logging.Handler):
    """For whoever reads what the process printed. Only the constant part of a record of ours: its arguments, and all
    that others say, may hold what only the masked log may keep."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        said = str(record.msg) if record.name.partition(".")[0].startswith("enginehouse") else "said something"
        try:
            print(f"{record.levelname.lower()}: {record.name}: {said}", file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            pass  # nobody reads it


def run_process(folders: Folders, idle_after_s: float | None) -> int:
    """The whole life of the process, in its main thread; returns the exit code."""
    os.umask(0o077)
    os.chdir("/")  # it would keep somebody's disk from being unmounted
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # the terminal of whoever started it by hand
        signal.signal(signal.SIGHUP, lambda _number, _frame: signal.raise_signal(signal.SIGTERM))
    logging.getLogger().addHandler(WarningsOnStderr())
    try:
        return anyio.run(be_the_hub, folders, idle_after_s)
    except ServiceRunning as error:
        complain(str(error))
        return ALREADY_RUNNING_EXIT
