"""What a `ScriptedEngine` does in a turn, as data.

Rule: a step says what happens, never how; `player` plays it. A test that needs something else uses `Do`.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio

from enginehouse_protocol.content import FileChange
from enginehouse_protocol.engine import Opening, Turn
from enginehouse_protocol.events import EngineBody, QuestionOption, StopReason
from enginehouse_protocol.ids import CallId
from enginehouse_protocol.permissions import JsonObject, ToolKind


class Gate:
    """A point where a script waits until the test opens it. Tests synchronise on it instead of sleeping."""

    def __init__(self) -> None:
        self._reached = anyio.Event()
        self._open = anyio.Event()

    def open(self) -> None:
        self._open.set()

    async def reached(self, *, deadline_s: float = 5.0) -> None:
        """Wait, bounded, until the script is here."""
        with anyio.fail_after(deadline_s):
            await self._reached.wait()

    async def passed(self) -> None:
        """The script's side: say that it is here, then wait."""
        self._reached.set()
        await self._open.wait()


@dataclass(frozen=True, kw_only=True)
class Step:
    """Base of every step."""


@dataclass(frozen=True)
class Say(Step):
    """Stream `text` in pieces, then the durable message. Interrupted: what was streamed, `complete=False`.

    `text` may be a function of everything the engine knows of the conversation, oldest first.
    """

    text: str | Callable[[tuple[str, ...]], str]
    pieces: tuple[str, ...] = ()
    """How it is cut; empty: after every word."""
    reasoning: str = ""
    pause_s: float = 0.0
    """Between pieces."""
    hold: Gate | None = None
    """Waited for after the first piece."""


@dataclass(frozen=True)
class UseTool(Step):
    """Emit the use, ask, run it if allowed, emit the result.

    Without `result`, what runs is real: kind execute runs `input["command"]` in the workspace, read reads
    `input["path"]`, edit writes `input["content"]` to `input["path"]`. Any other kind says `done`.
    """

    name: str
    input: JsonObject = field(default_factory=dict[str, object])
    kind: ToolKind = "other"
    title: str = ""
    result: str | None = None
    error: bool = False
    """The canned result is an error."""
    ask: bool = True
    paths: tuple[str, ...] = ()
    preview: tuple[FileChange, ...] = ()
    arguments: str = ""
    """Argument text as a provider sent it; `refused` says why it cannot be used."""
    refused: str = ""
    """The arguments make no sense: the use ends in an error without being asked about."""
    call_id: CallId | None = None
    provider_call_id: str | None = None
    parent_call_id: CallId | None = None
    hold: Gate | None = None
    """Waited for after the decision, before it runs."""
    detached: Gate | None = None
    """The use goes on in the background: `tool.detached` now, its result when the test opens this gate."""
    time_limit_s: float = 120.0


@dataclass(frozen=True)
class Together(Step):
    """Tool uses of one reply: all emitted first, then asked and run at the same time."""

    uses: tuple[UseTool, ...]

    def __init__(self, *uses: UseTool) -> None:
        object.__setattr__(self, "uses", uses)


@dataclass(frozen=True)
class AskPerson(Step):
    """A question on the model's behalf. `then` makes the steps that follow the answers (None: nobody)."""

    text: str
    options: tuple[str, ...] = ("yes", "no")
    plan: bool = False
    then: Callable[[tuple[str, ...] | None], Sequence[Step]] = lambda _answers: ()

    @property
    def choices(self) -> tuple[QuestionOption, ...]:
        return tuple(QuestionOption(label=label) for label in self.options)


@dataclass(frozen=True)
class Plan(Step):
    """The plan with its first `done` entries completed and the next one in progress."""

    entries: tuple[str, ...]
    done: int = 0


@dataclass(frozen=True)
class Usage(Step):
    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True)
class Emit(Step):
    """Any body, as it is, legal or not."""

    body: EngineBody


@dataclass(frozen=True)
class Wait(Step):
    """Wait at a gate; an interrupt ends it."""

    gate: Gate


@dataclass(frozen=True)
class Hang(Step):
    """Do nothing until cancelled, whatever is interrupted. `deaf`: `interrupt` does not return either."""

    gate: Gate = field(default_factory=Gate)
    deaf: bool = False


@dataclass(frozen=True)
class Fail(Step):
    """End the turn with this error: an `EngineError`, or another one to be a broken adapter."""

    error: Exception


@dataclass(frozen=True)
class Crash(Step):
    """Stream `text`, then be gone: no durable message, `EngineExited`."""

    text: str


@dataclass(frozen=True)
class RequestTurn(Step):
    """Ask for a turn of the engine's own: after `gate` (also when this turn is long over), else at once."""

    origin: str
    gate: Gate | None = None


@dataclass(frozen=True)
class End(Step):
    """End the turn here with this stop reason."""

    stop: StopReason
    detail: str = ""


@dataclass(frozen=True)
class Do(Step):
    """Run a function of the test inside the turn."""

    action: Callable[[Opening, Turn], Awaitable[object]]


def words(text: str) -> tuple[str, ...]:
    """`text` cut after every run of white space."""
    return tuple(re.findall(r"\S+\s*|\s+", text))
