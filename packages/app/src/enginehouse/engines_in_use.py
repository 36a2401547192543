"""Asking every engine what it is and can, each within a deadline.

Rule: one that is broken, slow or not installed is a line of the answer, never its end.
"""

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
import anyio.to_thread

from enginehouse.environment import any_launch_of
from enginehouse.wiring import FACTORIES
from enginehouse_core.keeper import command_kept
from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.capabilities import EngineDescription
from enginehouse_protocol.engine import Access, EngineHome, Secret
from enginehouse_protocol.errors import EnginehouseError
from enginehouse_protocol.ids import EngineName

DEADLINE_S = 8.0
_CLEANING_S = 1.0


@dataclass(frozen=True)
class EngineAnswer:
    """An engine's answer; without a description `problem` says why."""

    name: EngineName
    description: EngineDescription | None
    problem: str | None
    configured: bool = False
    """Whether the person set anything up for it, so that it is not expected to have a problem."""


_LATE = f"no answer within {DEADLINE_S:g} s"


async def ask_all(folders: Folders, environment: Mapping[str, str], answers: dict[EngineName, EngineAnswer]) -> None:
    """Fills `answers` as they come."""

    async def ask(name: EngineName) -> None:
        with anyio.move_on_after(DEADLINE_S):
            await _ask(name, folders, environment, answers)

    async with anyio.create_task_group() as tasks:
        for name in FACTORIES:
            tasks.start_soon(ask, name)


async def _ask(
    name: EngineName, folders: Folders, environment: Mapping[str, str], answers: dict[EngineName, EngineAnswer]
) -> None:
    configured = True  # what cannot be understood was meant for it
    home = EngineHome(
        state=folders.engine(name),
        kept=command_kept,
        log=logging.getLogger(f"enginehouse_engines.{name}"),
    )
    try:
        launch = await anyio.to_thread.run_sync(any_launch_of, name, folders, environment)
        configured = launch.provider is not None
        answers[name] = EngineAnswer(name, None, _LATE, configured)
        secret = Secret(launch.key, launch.secrets[launch.key]) if launch.key else None
        access = Access(provider=launch.provider, secret=secret, environment=launch.environment)
        async with FACTORIES[name](home) as engine:
            description = await engine.describe(access)
    except (EnginehouseError, ImportError, OSError) as error:
        answers[name] = EngineAnswer(name, None, str(error), configured)
    else:
        answers[name] = EngineAnswer(name, description, description.problem, configured)


def asked_engines() -> list[EngineAnswer]:
    """The same, for a command. Blocks; in a thread that is left to itself at the end, because what an engine waits for
    (the name of a host, most of all) may be something that cannot be cancelled."""
    folders, environment = Folders.of(os.environ), dict(os.environ)
    answers: dict[EngineName, EngineAnswer] = {}
    over = threading.Event()
    broken: list[BaseException] = []

    def ask() -> None:
        try:
            anyio.run(ask_all, folders, environment, answers)
        except BaseException as error:  # noqa: BLE001 raised again where it is waited for
            broken.append(error)
        finally:
            over.set()

    threading.Thread(target=ask, daemon=True).start()
    over.wait(DEADLINE_S + _CLEANING_S)
    if broken:
        raise broken[0]
    return [answers.get(name, EngineAnswer(name, None, _LATE)) for name in FACTORIES]
