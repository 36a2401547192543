"""The rehearsal engine: offline, without a model, and honest about it. Everything else it does is real.

Rule: it never pretends. To words that are not part of its scenario it answers what it is and what it is not.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Self

import anyio
import msgspec

from enginehouse_engines.rehearsal.demo import DEMO
from enginehouse_engines.rehearsal.player import Player
from enginehouse_engines.rehearsal.position import position, spoken
from enginehouse_engines.rehearsal.scenario import Scenario
from enginehouse_protocol.capabilities import EngineAbilities, EngineDescription
from enginehouse_protocol.engine import Access, Applied, EngineHome, Fresh, Opening, Turn, TurnEnd
from enginehouse_protocol.errors import EngineError, NativeSessionLost, SettingRefused
from enginehouse_protocol.events import Event
from enginehouse_protocol.ids import EngineName, TurnId
from enginehouse_protocol.settings import SessionSettings

NAME = EngineName("rehearsal")
PACE_S = 0.015


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rehearsal's options in a provider profile."""

    pace_s: Annotated[float, msgspec.Meta(ge=0, le=5, description="Pause after each word, in seconds.")] = PACE_S


class RehearsalEngine:
    """Plays `scenario`. `pace_s` holds where no provider profile says otherwise; tests use 0."""

    def __init__(self, scenario: Scenario = DEMO, *, pace_s: float = PACE_S) -> None:
        self.name = NAME
        self.abilities = EngineAbilities(edited_input=True)
        self._scenario = scenario
        self._pace_s = pace_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def describe(self, access: Access) -> EngineDescription:
        problem = None
        try:
            self._pace(access)
        except EngineError as error:
            problem = str(error)
        return EngineDescription(
            name=self.name,
            title="Rehearsal (offline, plays a script, no model)",
            version=version("enginehouse-engines"),
            problem=problem,
            abilities=self.abilities,
            options_schema=msgspec.json.schema(Options),
        )

    def open(self, opening: Opening) -> AbstractAsyncContextManager["RehearsalSession"]:
        return self._open(opening)

    @asynccontextmanager
    async def _open(self, opening: Opening) -> AsyncGenerator["RehearsalSession"]:
        if not isinstance(opening.start, Fresh):
            raise NativeSessionLost("the rehearsal engine keeps no sessions; it reads the record")
        yield RehearsalSession(self._scenario, opening, self._pace(opening.access))

    def _pace(self, access: Access) -> float:
        if access.provider is None or not access.provider.options:
            return self._pace_s
        try:
            return msgspec.convert(access.provider.options, Options).pace_s
        except msgspec.ValidationError as error:
            raise EngineError(
                f"options of provider {access.provider.name!r}: {error}", code="engine.options_invalid"
            ) from error


class RehearsalSession:
    """One session. It holds no position: the record does."""

    def __init__(self, scenario: Scenario, opening: Opening, pace_s: float) -> None:
        self._scenario = scenario
        self._opening = opening
        self._pace_s = pace_s
        self._interrupted: set[TurnId] = set()
        self._running: tuple[TurnId, anyio.CancelScope] | None = None

    async def run(self, turn: Turn) -> TurnEnd:
        with anyio.CancelScope() as scope:
            self._running = turn.id, scope
            if turn.id in self._interrupted:
                scope.cancel()
            try:
                await anyio.lowlevel.checkpoint()
                await self._play(turn)
            finally:
                self._running = None
                self._interrupted.clear()
        return TurnEnd(stop="interrupted" if scope.cancelled_caught else "end")

    async def interrupt(self, turn_id: TurnId) -> None:
        self._interrupted.add(turn_id)
        if self._running is not None and self._running[0] == turn_id:
            self._running[1].cancel()

    async def apply(self, change: SessionSettings) -> Applied:
        if change.model is not None or change.effort is not None:
            raise SettingRefused("the rehearsal engine has no model, so there is none to choose and no effort to set")
        return "now"

    async def _play(self, turn: Turn) -> None:
        events = await self._record()
        player = Player(self._opening, events, self._pace_s)
        here = position(events, self._scenario)
        if here is None:
            words = next((text for message in reversed(turn.messages) if (text := spoken(message))), "")
            await player.say(_what_this_is(words, self._scenario), final=True)
        elif left := here.scene.steps[here.step :]:
            await player.play(left)
        else:
            await player.say("Nothing of this scene is left to play.", final=True)

    async def _record(self) -> list[Event]:
        events: list[Event] = []
        while page := await self._opening.history.events_after(events[-1].seq if events else 0):
            events += page
        return events


def create(home: EngineHome) -> RehearsalEngine:
    """The engine as the app makes it. It keeps no state and starts no process of its own."""
    home.log.debug("rehearsal: offline, no model")
    return RehearsalEngine()


def _what_this_is(words: str, scenario: Scenario) -> str:
    asked = f"I cannot answer “{_short(words)}”: " if words else ""
    prompts = "\n".join(f"- {prompt}" for prompt in scenario.prompts)
    return (
        f"{asked}this is the rehearsal engine. It plays a script, offline, and there is no model behind it.\n\n"
        "It is there to show how Enginehouse works: plan, permissions, edits, commands, interrupt. Run "
        f"`enginehouse demo` to see it on a throwaway project. The words its script knows:\n{prompts}\n\n"
        "For a real answer connect a model: set OPENAI_API_KEY (and OPENAI_BASE_URL for a server of your own) and "
        "leave out `--engine rehearsal`; `enginehouse engines` lists what can be used here."
    )


def _short(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= 60 else f"{line[:59]}…"
