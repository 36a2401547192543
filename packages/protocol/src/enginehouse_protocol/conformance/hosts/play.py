"""One test's play: the driver, its windows, and what must hold at the end of every test.

Rule: whatever a test was about, at its end no window obeyed what it showed, every request in the record has exactly one
outcome, and every answer a person gave names the host.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import pytest

from enginehouse_protocol.conformance.hosts.driver import Ability, HostDriver, Window
from enginehouse_protocol.conformance.hosts.stage import Reply, said
from enginehouse_protocol.events import (
    Body,
    PermissionDecided,
    PermissionRequested,
    QuestionAnswered,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)

TEST_LIMIT_S = 100.0
SEEN_WITHIN_S = 30.0
"""For anything to appear, also on a machine that is busy otherwise."""
STOPPED_WITHIN_S = 10.0
"""For an interrupt to hold and to be seen. The hub has two seconds; the rest is for looking."""
_LOOK_EVERY_S = 0.05
B = TypeVar("B", bound=Body)
Condition = Callable[[], Awaitable[bool]]


class Play:
    """What tests do with a driver, each wait with a deadline."""

    def __init__(self, driver: HostDriver) -> None:
        self.driver = driver
        self.windows: list[Window] = []

    def plays(self, *replies: Reply) -> None:
        self.driver.plays(*replies)

    async def say(self, text: str, *, unasked: bool = False) -> Window:
        return self._known(await self.driver.say(text, unasked=unasked))

    async def look(self) -> Window:
        return self._known(await self.driver.look())

    def _known(self, window: Window) -> Window:
        if all(window is not each for each in self.windows):
            self.windows.append(window)
        return window

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def until(self, condition: Condition, what: str, *, within_s: float = SEEN_WITHIN_S) -> None:
        """Look until it is so; a failure tells what every window shows."""
        within_s *= self.driver.slowness
        with anyio.move_on_after(within_s):
            while not await condition():  # noqa: ASYNC110 - a screen signals nothing
                await anyio.sleep(_LOOK_EVERY_S)
            return
        shown = "\n---\n".join([(await window.read())[-4_000:] for window in self.windows])
        raise AssertionError(f"not within {within_s} s: {what}; the windows show:\n{shown}")

    async def sees(self, window: Window, text: str, *, within_s: float = SEEN_WITHIN_S) -> None:
        async def there() -> bool:
            return text in await window.read()

        await self.until(there, f"{text!r} is shown", within_s=within_s)

    async def card(self, window: Window) -> str:
        """What the card that is open in this window says, once there is one."""
        found: list[str] = []

        async def there() -> bool:
            if (card := await window.card()) is not None:
                found.append(card)
            return bool(found)

        await self.until(there, "a permission card is open")
        return found[0]

    async def question(self, window: Window) -> str:
        found: list[str] = []

        async def there() -> bool:
            if (question := await window.question()) is not None:
                found.append(question)
            return bool(found)

        await self.until(there, "a question is open")
        return found[0]

    async def withdrawn(self, window: Window) -> None:
        """Neither a card nor a question can be answered in this window any more."""

        async def gone() -> bool:
            return await window.card() is None and await window.question() is None

        await self.until(gone, "nothing is asked in the window any more", within_s=STOPPED_WITHIN_S)

    async def stopped(self, window: Window) -> str:
        """What the window says of a turn that did not come to its end, once it says something."""

        async def told() -> bool:
            return bool(await window.stopped())

        await self.until(told, "the window says that the turn was stopped", within_s=STOPPED_WITHIN_S)
        return await window.stopped()

    async def made(self, name: str, *, within_s: float = SEEN_WITHIN_S) -> None:
        """A file of this name is in the project."""

        async def there() -> bool:
            return (self.driver.project / name).exists()

        await self.until(there, f"{name} is there", within_s=within_s)

    # --- the record ---------------------------------------------------------------------------------------------------

    async def recorded(self, kind: type[B]) -> list[B]:
        return [event.body for event in await self.driver.record() if isinstance(event.body, kind)]

    async def is_idle(self) -> bool:
        started = len(await self.recorded(TurnStarted))
        return started == len(await self.recorded(TurnCompleted)) + len(await self.recorded(TurnFailed)) > 0

    async def idle(self, *, within_s: float = SEEN_WITHIN_S) -> None:
        await self.until(self.is_idle, "the turn is over in the record", within_s=within_s)

    async def was_interrupted(self) -> None:
        """The last turn ended in time, because somebody said stop."""
        await self.idle(within_s=STOPPED_WITHIN_S)
        assert (await self.recorded(TurnCompleted))[-1].stop == "interrupted"

    async def still_works(self) -> None:
        """The next message has an ordinary turn, which is shown."""
        self.plays(said("Still ", "here, as ever."))
        window = await self.say("are you there?")
        await self.sees(window, "Still here, as ever.")
        await self.idle()


@asynccontextmanager
async def playing(driver: HostDriver, *needed: Ability) -> AsyncGenerator[Play]:
    """A test's play; skips, loudly, what this host cannot do."""
    for ability in needed:
        if ability in driver.cannot:
            pytest.skip(f"{driver.host} has no {ability}: {driver.cannot[ability]}")
    play = Play(driver)
    with anyio.fail_after(TEST_LIMIT_S * driver.slowness):
        yield play
        await _holds_at_the_end(play)


async def _holds_at_the_end(play: Play) -> None:
    for window in play.windows:
        assert list(await window.obeyed()) == [], "content made the host do something"
    host = play.driver.host
    decided = await play.recorded(PermissionDecided)
    outcomes = Counter(each.request_id for each in decided if each.request_id is not None)
    requests = [each.request_id for each in await play.recorded(PermissionRequested)]
    assert outcomes == Counter(requests), "a request without its one outcome"
    assert {each.host for each in decided if each.by == "person"} <= {host}
    answered = [each for each in await play.recorded(QuestionAnswered) if each.answers is not None]
    assert {each.host for each in answered} <= {host}
