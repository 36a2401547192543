"""Asking every engine what it is and can, each within a deadline.

Rule: one that is broken, slow or not installed is a line of the answer, never its end.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

import anyio

from enginehouse.environment import launch_of
from enginehouse.wiring import FACTORIES
from enginehouse_core.keeper import command_kept
from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.capabilities import EngineDescription
from enginehouse_protocol.engine import Access, EngineHome, Secret
from enginehouse_protocol.errors import EnginehouseError
from enginehouse_protocol.ids import EngineName

DEADLINE_S = 8.0


@dataclass(frozen=True)
class Asked:
    """An engine's answer; without a description `problem` says why."""

    name: EngineName
    description: EngineDescription | None
    problem: str | None


async def ask_all(folders: Folders, environment: Mapping[str, str]) -> list[Asked]:
    answers: dict[EngineName, Asked] = {}

    async def ask(name: EngineName) -> None:
        answers[name] = Asked(name, None, f"no answer within {DEADLINE_S:g} s")
        with anyio.move_on_after(DEADLINE_S):
            answers[name] = await _ask(name, folders, environment)

    async with anyio.create_task_group() as tasks:
        for name in FACTORIES:
            tasks.start_soon(ask, name)
    return [answers[name] for name in FACTORIES]


async def _ask(name: EngineName, folders: Folders, environment: Mapping[str, str]) -> Asked:
    home = EngineHome(
        state=folders.engine(name),
        kept=command_kept,
        log=logging.getLogger(f"enginehouse_engines.{name}"),
    )
    try:
        launch = launch_of(name, folders, environment)
        secret = Secret(launch.key, launch.secrets[launch.key]) if launch.key else None
        access = Access(provider=launch.provider, secret=secret, environment=launch.environment)
        async with FACTORIES[name](home) as engine:
            description = await engine.describe(access)
    except (EnginehouseError, ImportError, OSError) as error:
        return Asked(name, None, str(error))
    return Asked(name, description, description.problem)


def asked_engines() -> list[Asked]:
    """The same, for a command. Blocks."""
    return anyio.run(ask_all, Folders.of(os.environ), dict(os.environ))
