"""Runs single tools without a model, and hears what they say."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from enginehouse_engines.openai_compatible.toolbox import TOOLS
from enginehouse_engines.openai_compatible.toolbox.tool import Outcome
from enginehouse_protocol.events import PlanEntry, QuestionOption
from enginehouse_protocol.workspace import Workspace


@dataclass
class Listener:
    """Who hears what a use says, and answers."""

    printed: list[str] | None = None
    plans: list[tuple[PlanEntry, ...]] = field(default_factory=list[tuple[PlanEntry, ...]])
    questions: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    answers: tuple[str, ...] | None = None
    shows_images: bool = False

    async def print(self, text: str, /) -> None:
        if self.printed is not None:
            self.printed.append(text)

    async def show_plan(self, entries: tuple[PlanEntry, ...], /) -> None:
        self.plans.append(entries)

    async def ask(
        self, text: str, options: tuple[QuestionOption, ...], /, *, multiple: bool, free_text: bool
    ) -> tuple[str, ...] | None:
        self.questions.append((text, options, multiple, free_text))
        return self.answers


class Silent(Listener):
    async def print(self, text: str, /) -> None:
        pytest.fail("a file tool printed something")


SILENT = Silent()


async def run(
    workspace: Workspace, name: str, heard: list[str] | None = None, *, shows_images: bool = False, **given: Any
) -> Outcome:
    return await TOOLS[name].plan(given).run(workspace, Listener(printed=heard, shows_images=shows_images))
