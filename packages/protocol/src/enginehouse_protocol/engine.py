"""The engine contract: what core asks of an agent, and what an agent may ask of core.

Rules, each held by a test of `enginehouse_protocol.conformance`:

- `run` is the only place a turn lives. It raises only `EngineError`. Core cancels it only after `interrupt` missed its
  deadline, and then leaves the session's context.
- Outside a turn only owed results, what runs below a detached use, usage, notices, `native.updated` and transients
  are legal. Work an engine starts by itself is held, bounded, and `request_turn` called.
- `ask` and `question` are never awaited on the task that reads the engine's stream. Concurrent asks are normal.
- Every `tool.use` gets its `tool.result` before `run` returns, unless `tool.detached` says that it goes on.
- `emit` raising `TranscriptUnavailable` means: stop the turn.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, Self

import msgspec

from enginehouse_protocol.capabilities import EngineAbilities, EngineDescription
from enginehouse_protocol.events import EngineBody, Event, MessageUser, QuestionAsked, StopReason, ToolUse
from enginehouse_protocol.ids import EngineName, SessionId, TurnId
from enginehouse_protocol.permissions import Decision, JsonObject
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.workspace import Root, Workspace


class Secret:
    """A value that must not be seen. Its repr hides it; `reveal` is the only way in, and easy to search for."""

    __slots__ = ("_value", "name")

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self.name, self._value) == (other.name, other._value)

    def __hash__(self) -> int:
        return hash((self.name, self._value))

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"

    def __reduce__(self) -> str:
        raise TypeError(f"{self!r} must not be pickled")


class Provider(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a model is. Made by core from the provider's profile file or from the environment."""

    name: str
    base_url: str | None = None
    model: str | None = None
    """Used when nobody asks for another."""
    options: JsonObject = {}
    """The engine's own words; it publishes their schema in its description."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Whose account, where, in which environment."""

    provider: Provider | None = None
    secret: Secret | None = None
    """Never in `environment`, never in a file."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Launch environment for tools; never the hub's own."""


@dataclass(frozen=True, kw_only=True)
class EngineHome:
    """What the app gives an engine's factory."""

    state: Path
    """The engine's folder in the profile. It may not exist yet; the engine makes it when it needs it."""
    kept: Callable[[Sequence[str]], Sequence[str]]
    """argv → argv with the keeper in front, for a process that starts commands itself: nothing below survives it."""
    log: logging.Logger


class Fresh(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="fresh", omit_defaults=True):
    """Nothing to load. `recap`, when given, is what core rendered of a history the engine has lost."""

    recap: str = ""


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="resume", omit_defaults=True):
    """Load this from the engine's own store; raise `NativeSessionLost` when it is not there."""

    native_id: str


Start = Fresh | Resume


class History(Protocol):
    """The session's record, for reading. What was emitted but is not yet on disk is in it."""

    @property
    def last_seq(self) -> int: ...

    async def events_after(self, seq: int) -> list[Event]:
        """Oldest first, without gaps. At most 1,000; ask again for more."""
        ...

    async def blob(self, sha256: str) -> bytes:
        """What a record spilled. `FileUnusable` when it is missing."""
        ...


class SessionPort(Protocol):
    """The engine's way to core. Every method may be called from any task of the session."""

    async def emit(self, body: EngineBody) -> None:
        """Mask, order and queue a body. Waits only for back-pressure, never for the disk.

        A `tool.use` whose call id is known is ignored, and so is a second `tool.result`.

        Raises:
            TranscriptUnavailable: nothing can be recorded; stop the turn.
            MalformedData: the body breaks the contract.
        """
        ...

    async def ask(self, use: ToolUse) -> Decision:
        """May this run? Emits the `tool.use` first if its call id is new; returns once the decision is on disk.

        `use.input` is what will run and may differ from what was emitted. Cancelling expires the request.
        """
        ...

    async def question(self, question: QuestionAsked) -> tuple[str, ...] | None:
        """Ask the person something on the model's behalf. None: nobody answered."""
        ...

    def request_turn(self, origin: str) -> None:
        """The engine has something to say by itself. Core calls `run(Turn(origin=…, messages=()))` when idle."""
        ...


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Everything an engine session starts from. It never travels."""

    session_id: SessionId
    roots: tuple[Root, ...]
    start: Start
    settings: SessionSettings
    """None in it: say nothing to the engine."""
    instructions: str
    """Added to the engine's own."""
    access: Access
    port: SessionPort
    workspace: Workspace
    history: History


@dataclass(frozen=True, kw_only=True)
class TurnLimits:
    max_steps: int | None = None
    """Model calls in this turn; None: no limit."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """`messages` are in the transcript already. Empty when `origin` is the engine's own."""

    id: TurnId
    origin: str
    messages: tuple[MessageUser, ...]
    limits: TurnLimits = TurnLimits()


@dataclass(frozen=True, kw_only=True)
class TurnEnd:
    stop: StopReason
    detail: str = ""


Applied = Literal["now", "next_turn", "reopen"]
"""When a changed setting takes effect in the engine; `reopen`: core leaves the session and opens it again."""


class EngineSession(Protocol):
    """The live side of one session."""

    async def run(self, turn: Turn) -> TurnEnd:
        """One turn, from its messages to its end.

        Raises:
            EngineError: the turn failed; the session stays usable.
            TranscriptUnavailable: as `emit` raised it; the turn cannot be recorded.
        """
        ...

    async def interrupt(self, turn_id: TurnId) -> None:
        """End this turn soon; `run` then returns `interrupted`. Idempotent; may come before `run`'s first step."""
        ...

    async def apply(self, change: SessionSettings) -> Applied:
        """Take over changed settings (all of them, as they are from now on).

        Raises:
            SettingRefused: the engine cannot have that; nothing changed.
        """
        ...


class Engine(Protocol):
    """The adapter for one kind of agent. The app makes it with `factory(home: EngineHome)`."""

    name: EngineName
    abilities: EngineAbilities

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> bool | None: ...

    async def describe(self, access: Access) -> EngineDescription:
        """Ask the engine what it is and can. Never raises for a broken one: `problem` says what is wrong."""
        ...

    def open(self, opening: Opening) -> AbstractAsyncContextManager[EngineSession]:
        """Entering may raise `EngineError`; leaving ends every process of the session. One task does both."""
        ...
