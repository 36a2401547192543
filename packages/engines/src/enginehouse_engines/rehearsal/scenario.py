"""What a rehearsal is made of: scenes, each a list of steps that follow when the person says certain words.

Rule: a step is data, and playing it leaves exactly one durable mark, so that a record tells how far a scene got.
"""

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, kw_only=True)
class Say:
    text: str
    final: bool = False
    """Whether it closes the scene, rather than comments on it."""
    pause_s: float | None = None
    """After each word; None: the engine's pace."""


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Say what the record knows about the turn that was interrupted last."""

    otherwise: str
    """Said when none was."""


@dataclass(frozen=True, kw_only=True)
class ReadFile:
    path: str
    otherwise: str = ""
    """Said, and the scene over, when it cannot be read. Empty: the scene goes on."""


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    command: str
    expected: Literal["pass", "fail", "any"] = "any"
    otherwise: str = ""
    """Said, and the scene over, when it did not run or ended differently. Empty: the scene goes on."""


@dataclass(frozen=True, kw_only=True)
class EditFile:
    """Replace `old`, which occurs once, by `new`. With an empty `old` the file is created."""

    path: str
    old: str
    new: str
    otherwise: str = ""


@dataclass(frozen=True, kw_only=True)
class ProposePlan:
    """Ask the person to approve a plan: the first of `options` does."""

    text: str
    otherwise: str
    options: tuple[str, ...] = ("Go ahead", "Not now")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Show the plan with its first `done` entries completed and the next one under way."""

    entries: tuple[str, ...]
    done: int
    started: bool = True
    """False: no entry is under way yet."""


Step = Say | Recall | ReadFile | RunCommand | EditFile | ProposePlan | Progress
ToolStep = ReadFile | RunCommand | EditFile


@dataclass(frozen=True, kw_only=True)
class Scene:
    """`prompt` is what the person says to see it."""

    prompt: str
    steps: tuple[Step, ...]


class Scenario(Protocol):
    """Finds scenes. The same words always find the same scene of a record."""

    @property
    def prompts(self) -> tuple[str, ...]: ...

    def find(self, text: str) -> Scene | None: ...


@dataclass(frozen=True, kw_only=True)
class FixedScenario:
    """A list of scenes, found by their prompts whatever the spelling of blanks and capitals."""

    scenes: tuple[Scene, ...]

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(scene.prompt for scene in self.scenes)

    def find(self, text: str) -> Scene | None:
        wanted = _folded(text)
        return next((scene for scene in self.scenes if _folded(scene.prompt) == wanted), None)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
