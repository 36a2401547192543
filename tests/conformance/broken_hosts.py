"""Hosts that break one rule each: the mistakes real hosts make, on the smallest host there is.

Rule: each overrides what it does wrong and nothing else.
"""

from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from conformance.paper_host import PaperDriver, PaperWindow
from enginehouse_protocol.errors import AlreadyDecided
from enginehouse_protocol.events import (
    AnyEvent,
    LiveState,
    MessageAssistant,
    PermissionRequested,
    ToolOutput,
    ToolResult,
    TurnCompleted,
    TurnStarted,
)
from enginehouse_protocol.hub import SessionRef
from enginehouse_protocol.ids import MessageId
from enginehouse_protocol.permissions import Allow, Deny

_TOO_MUCH = 100_000

# --- showing ----------------------------------------------------------------------------------------------------------


class RepeatsTheAnswer(PaperWindow):
    """It shows the finished message beside what it streamed."""

    async def note(self, event: AnyEvent) -> None:
        if isinstance(event.body, MessageAssistant):
            self.lines[f"{event.body.message_id} again"] = str(event.body.text)
        await super().note(event)


class WaitsForTheEnd(PaperWindow):
    def delta(self, message_id: MessageId, text: str) -> None:
        """Streams nothing."""


class KeepsWhatWasTakenBack(PaperWindow):
    def reset(self, message_id: MessageId) -> None:
        """Hears of no reset."""


class Obeys(PaperWindow):
    def safe(self, text: str) -> str:
        return text


class SwallowsWhatFollowsAnEscape(PaperWindow):
    def safe(self, text: str) -> str:
        return super().safe(text.partition("\x1b")[0])


class ForgetsTools(PaperWindow):
    async def note(self, event: AnyEvent) -> None:
        if not isinstance(event.body, ToolResult):
            await super().note(event)


class ShowsTheLastThirty(PaperWindow):
    async def read(self) -> str:
        return "\n".join([*self.lines.values()][-30:])


# --- cards and questions ----------------------------------------------------------------------------------------------


class CutsItsCards(PaperWindow):
    def drawn(self, request: PermissionRequested) -> str:
        return super().drawn(request)[:500]


class AllowsByItself(PaperWindow):
    async def asked(self, body: PermissionRequested) -> None:
        await super().asked(body)
        await self.answer(body, Allow())
        self.cards[body.request_id] = body


class TakesLeavingForAYes(PaperWindow):
    async def leave(self) -> None:
        if self.cards:
            await self.allow()
        await super().leave()


class KeepsReasonsToItself(PaperWindow):
    async def deny(self, reason: str) -> None:
        await super().deny("no")


class ForgetsEdits(PaperWindow):
    async def allow(self, instead: str | None = None) -> None:
        await super().allow()


class AnswersTheOtherOne(PaperWindow):
    async def answer(self, request: PermissionRequested, decision: Allow | Deny) -> None:
        await super().answer([*self.cards.values()][-1], decision)


class AlwaysTakesTheFirstOption(PaperWindow):
    async def reply(self, answer: str) -> None:
        await super().reply("red")


class SignsNothing(PaperDriver):
    def __init__(self, folder: Path, tasks: TaskGroup, *, slowness: float = 1.0) -> None:
        super().__init__(folder, tasks, slowness=slowness)
        self.signs_as = ""


class BeginsAsNobody(PaperDriver):
    def __init__(self, folder: Path, tasks: TaskGroup, *, slowness: float = 1.0) -> None:
        super().__init__(folder, tasks, slowness=slowness)
        self.begins_as = ""


# --- interrupts -------------------------------------------------------------------------------------------------------


class Deaf(PaperWindow):
    async def interrupt(self) -> None:
        """Nobody listens."""


class DeafInAFlood(PaperWindow):
    """Its button is not heard while output comes."""

    flooded = False

    async def note(self, event: AnyEvent) -> None:
        self.flooded = self.flooded or isinstance(event.body, ToolOutput)
        await super().note(event)

    async def interrupt(self) -> None:
        if not self.flooded:
            await super().interrupt()


class StopsWithoutAWord(PaperWindow):
    async def stopped(self) -> str:
        return ""


class KeepsItsCards(PaperWindow):
    def decided(self, request_id: str, outcome: str) -> None:
        self.outcome = outcome


class KeepsItsQuestions(PaperWindow):
    async def question(self) -> str | None:
        self.kept = await super().question() or self.kept
        return self.kept

    kept: str | None = None


# --- windows ----------------------------------------------------------------------------------------------------------


class SeesNothingOfTheText(PaperWindow):
    """Late: what was streamed before it came is lost on it."""

    async def live(self, body: LiveState) -> None:
        await super().live(LiveState(seq=body.seq, state=body.state, requests=body.requests, questions=body.questions))


class SeesTheTextTwice(PaperWindow):
    """Late: it adds the present to what the record has, and the rest after it."""

    async def note(self, event: AnyEvent) -> None:
        if isinstance(event.body, LiveState):
            for each in event.body.messages:
                self.puts(f"{each.message_id} so far", each.text)
        await super().note(event)


class SeesNoOpenCard(PaperWindow):
    """It knows requests only from being told live, as if there were no record."""

    async def note(self, event: AnyEvent) -> None:
        if isinstance(event.body, LiveState):
            self.cards.clear()
            return
        await super().note(event)


class WithdrawsWithoutAWord(PaperWindow):
    async def became_of_card(self) -> str:
        return ""


class BreaksOnALateAnswer(PaperWindow):
    async def allow_too_late(self) -> None:
        self.left.cancel()


class TakesRefusalsForErrors(PaperWindow):
    """Somebody else was first, which it has not heard of: it fails."""

    async def answer(self, request: PermissionRequested, decision: Allow | Deny) -> None:
        await super().answer(request, decision)
        if self.outcome:
            raise AlreadyDecided(self.outcome)


class AnswersExpiredCardsBySending(PaperWindow):
    """What was meant for a card goes to the model as a message."""

    async def allow_too_late(self) -> None:
        await self.driver.send("y")


class DropsWhatCannotBeginAtOnce(PaperDriver):
    async def send(self, text: str) -> None:
        bodies = [event.body for event in await self.record()]
        begun = sum(isinstance(body, TurnStarted) for body in bodies)
        if begun == sum(isinstance(body, TurnCompleted) for body in bodies):
            await super().send(text)


class EatsTheText(PaperDriver):
    async def take_back(self) -> str:
        return (await super().take_back()).split("\n")[0]


class TakesNothingBack(PaperDriver):
    """The text is back in the box, and sent all the same."""

    async def take_back(self) -> str:
        [waits] = (await (await self.hub()).queue_list(SessionRef(session_id=self._there()))).messages
        return "".join(getattr(part, "text", "") for part in waits.content)


class HangsWhenTheHubDies(PaperWindow):
    async def lost(self) -> None:
        await anyio.sleep_forever()


# --- floods -----------------------------------------------------------------------------------------------------------


class Drowns(PaperWindow):
    """It stops reading once much has come."""

    heard = 0

    async def note(self, event: AnyEvent) -> None:
        await super().note(event)
        self.heard += len(event.body.text) if isinstance(event.body, ToolOutput) else 0
        if self.heard > _TOO_MUCH:
            await anyio.sleep_forever()


class Pours(PaperWindow):
    """It shows all that a tool prints."""

    async def note(self, event: AnyEvent) -> None:
        if isinstance(event.body, ToolOutput):
            self.lines[f"{len(self.lines)}"] = event.body.text
        await super().note(event)


class CutsLongReplies(PaperWindow):
    async def read(self) -> str:
        return "\n".join(line if len(line) < 9_000 else f"{line[:9_000]}…" for line in self.lines.values())
