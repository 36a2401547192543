"""What an adapter gives the conformance suite: its engine, and a model behind it that does as it is told.

Rule: the suite speaks of neutral replies and uses; only the harness knows how its engine's tools and its provider's
wire look. What a harness cannot make happen it leaves out of `can`, and the tests that need it skip, saying so.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from enginehouse_protocol.engine import Access, Engine
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.settings import SessionSettings

Ability = Literal[
    "run_command",
    "write_file",
    "raw_arguments",
    "hang",
    "fail",
    "drop",
    "usage",
    "ill_formed_text",
    "route",
    "broken_provider",
    "prompt",
]
"""What a harness can make happen, or show: `prompt` is being able to see what the model was told."""


@dataclass(frozen=True)
class RunCommand:
    """The model uses the engine's shell."""

    command: str


@dataclass(frozen=True)
class WriteFile:
    """The model uses the engine's tool that creates a file."""

    path: str
    content: str


@dataclass(frozen=True)
class RawArguments:
    """The model uses the engine's shell with this argument text, whatever it is."""

    text: str


ModelUse = RunCommand | WriteFile | RawArguments


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One model call's answer: text in pieces, then tool uses, then how it ends."""

    pieces: tuple[str, ...] = ()
    uses: tuple[ModelUse, ...] = ()
    then: Literal["end", "hang", "fail", "drop"] = "end"
    """`hang`: nothing more comes. `fail`: the provider refuses instead of answering (pieces are not sent).
    `drop`: the connection or process is lost after the pieces."""
    usage: tuple[int, int] | None = None
    """Input and output tokens of this call."""
    same_provider_ids: bool = False
    """The provider gives all uses of all such replies the same ids."""


class EngineHarness(Protocol):
    """Made anew for each test by the fixture `harness`."""

    can: frozenset[Ability]
    access: Access
    """Its `secret` should be set: the suite looks for it in everything emitted."""
    settings: SessionSettings

    def make_engine(self) -> Engine:
        """An engine that shares nothing with earlier ones but what is on disk, as after a restart."""
        ...

    def expect(self, *replies: Reply, about: str = "") -> None:
        """What the model answers from now on, one reply a model call, instead of what was left over.

        A turn ends with the first reply without uses.

        With `about` (ability `route`) they answer only calls of the session in which somebody said that.
        """
        ...

    async def called(self, count: int) -> None:
        """Return once the model has been called `count` times since the harness was made. The caller bounds it."""
        ...

    def calls(self) -> int: ...

    def prompt(self) -> str:
        """All that the model was given in its last call, as text with JSON escapes undone."""
        ...

    def input_for(self, use: ModelUse) -> JsonObject:
        """The input the engine's tool takes for that use."""
        ...

    def broken(self) -> AbstractAsyncContextManager[Access]:
        """An access whose provider cannot be reached, or refuses."""
        ...
