"""What the model asks the person, and how an answer goes back to it.

Rule: no words of ours are put into anybody's mouth: an answer is the label the person chose or the text they wrote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from enginehouse_protocol.content import plain
from enginehouse_protocol.events import QuestionAsked, QuestionOption, ToolUse
from enginehouse_protocol.ids import new_question_id
from enginehouse_protocol.permissions import JsonObject

_APPROVE: Final = "Approve the plan"
_KEEP: Final = "Keep planning"
ANSWERED: Final = (_APPROVE, _KEEP)
"""Labels that say nothing the model does not know from the decision."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question of a use, and the text under which the tool wants its answer."""

    key: str
    question: QuestionAsked


def questions_of(given: JsonObject, use: ToolUse) -> list[Asked]:
    """The questions of one `AskUserQuestion`; what has not the expected shape is left out, not guessed."""
    asked: list[Asked] = []
    for each in _objects(given.get("questions")):
        text = str(each.get("question", ""))
        question = QuestionAsked(
            question_id=new_question_id(),
            text=text,
            options=tuple(
                QuestionOption(label=str(option.get("label", "")), description=str(option.get("description", "")))
                for option in _objects(each.get("options"))
            ),
            multiple=each.get("multiSelect") is True,
            call_id=use.call_id,
            parent_call_id=use.parent_call_id,
        )
        asked.append(Asked(key=text, question=question))
    return asked


def answered_input(given: JsonObject, answers: Sequence[tuple[Asked, tuple[str, ...]]]) -> JsonObject:
    """The tool's input with the answers in it: that is how this tool hears them."""
    return {**given, "answers": {asked.key: ", ".join(answer) for asked, answer in answers}}


def plan_question(written: ToolUse) -> QuestionAsked:
    """`written`: the use as the model wrote it."""
    plan = written.input.get("plan")
    return QuestionAsked(
        question_id=new_question_id(),
        text=plan if isinstance(plan, str) and plan.strip() else plain(written.arguments) or "The plan is empty.",
        kind="plan",
        options=(
            QuestionOption(label=_APPROVE, description="Leave plan mode and begin."),
            QuestionOption(label=_KEEP, description="Stay in plan mode."),
        ),
        call_id=written.call_id,
        parent_call_id=written.parent_call_id,
    )


def _objects(value: Any) -> list[JsonObject]:
    if not isinstance(value, list):
        return []
    return [cast("JsonObject", each) for each in cast("list[object]", value) if isinstance(each, dict)]
