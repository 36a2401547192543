"""Where a rehearsal is, read from the session's record alone.

Rule: pure functions of events. The engine holds no position of its own, so a new process goes on where the record
stops, and a scene that was cut is not told as if it had been finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from enginehouse_engines.rehearsal.scenario import Scenario, Scene
from enginehouse_protocol.content import content_text
from enginehouse_protocol.events import (
    Event,
    MessageAssistant,
    MessageUser,
    PlanUpdated,
    QuestionAnswered,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
)
from enginehouse_protocol.ids import CallId

GO_ON = frozenset(("go on", "continue"))
"""Said after an interrupt or a crash: play the rest of the scene."""


@dataclass(frozen=True)
class Position:
    """The next step of a scene, counted from 0."""

    scene: Scene
    step: int


@dataclass(frozen=True)
class Interruption:
    """What was under way when a turn was cut. `tool` is the title of the use that ran, `output` its last line."""

    tool: str = ""
    output: str = ""


def spoken(message: MessageUser) -> str:
    """What a person said, or "" when nobody did."""
    return content_text(message.content).strip() if message.source in ("human", "queue") else ""


def position(events: Sequence[Event], scenario: Scenario) -> Position | None:
    """What the last words of the person ask for. None: nothing that is part of a rehearsal.

    `events` is the whole record, oldest first, the current turn's messages included.
    """
    resumed = False
    for at in range(len(events) - 1, -1, -1):
        body = events[at].body
        if not isinstance(body, MessageUser) or not (words := spoken(body)):
            continue
        if words.casefold().rstrip(".!") in GO_ON:
            resumed = True
            continue
        scene = scenario.find(words)
        if scene is None:
            return None
        if not resumed:
            return Position(scene, 0)
        return None if _is_over(events[at:]) else Position(scene, min(_marks(events[at:]), len(scene.steps)))
    return None


def last_interruption(events: Sequence[Event]) -> Interruption | None:
    """The last turn that ended before the current one, if it was cut."""
    ended = next(
        (at for at in range(len(events) - 1, -1, -1) if isinstance(events[at].body, TurnCompleted | TurnFailed)),
        None,
    )
    if ended is None:
        return None
    match events[ended].body:
        case TurnCompleted(stop="interrupted") | TurnFailed():
            pass
        case _:
            return None
    titles: dict[CallId, str] = {}
    cut = Interruption()
    for event in events[:ended]:
        match event.body:
            case ToolUse() as use:
                titles[use.call_id] = use.title
            case ToolResult(status="interrupted" | "unknown") as result if event.turn_id == events[ended].turn_id:
                lines = content_text(result.content).strip().splitlines()
                cut = Interruption(titles.get(result.call_id, ""), lines[-1] if lines else "")
            case _:
                pass
    return cut


def _is_over(events: Sequence[Event]) -> bool:
    """Whether the scene ran to its end, or was ended by the person's answers."""
    return any(isinstance(event.body, TurnCompleted) and event.body.stop == "end" for event in events)


def _marks(events: Sequence[Event]) -> int:
    """How many steps left their mark. What was cut left none: it is played again."""
    return sum(_is_mark(event) for event in events)


def _is_mark(event: Event) -> bool:
    match event.body:
        case MessageAssistant(complete=complete):
            return complete
        case ToolResult(status=status):
            return status not in ("interrupted", "unknown")
        case QuestionAnswered(answers=answers):
            return answers is not None
        case PlanUpdated():
            return True
        case _:
            return False
