"""The tools that only speak to the person: `todo`, `ask_user`.

Rule: they touch nothing, so nobody has to allow them; what they say goes through core like everything else.
"""

from typing import Annotated, ClassVar, Literal

import anyio.lowlevel
import msgspec

from enginehouse_engines.openai_compatible.toolbox.tool import BadInput, Outcome, Voice, one_line, understood
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.events import PlanEntry, QuestionOption
from enginehouse_protocol.permissions import JsonObject, ToolKind
from enginehouse_protocol.workspace import Workspace

_MAX_ENTRIES = 100
_MAX_OPTIONS = 20
_MAX_CHARS = 1_000
Short = Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_CHARS)]
_NOBODY = (
    "Nobody answered. Go on with what you think the person would want and say so at the end, or stop here and say what "
    "you need to know."
)


class _Speaks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of plans that name no file and change none."""

    @property
    def paths(self) -> tuple[str, ...]:
        return ()

    async def preview(self, _workspace: Workspace) -> tuple[FileChange, ...]:
        return ()


class TodoEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: Short
    status: Literal["pending", "in_progress", "completed"]


class TodoPlan(_Speaks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    entries: Annotated[tuple[TodoEntry, ...], msgspec.Meta(max_length=_MAX_ENTRIES)]

    @property
    def title(self) -> str:
        return f"plan: {sum(entry.status == 'completed' for entry in self.entries)} of {len(self.entries)} done"

    async def run(self, _workspace: Workspace, voice: Voice) -> Outcome:
        await voice.show_plan(tuple(PlanEntry(text=entry.text, status=entry.status) for entry in self.entries))
        return Outcome(text="Noted.")


class Todo:
    name: ClassVar[str] = "todo"
    kind: ClassVar[ToolKind] = "other"
    asked: ClassVar[bool] = False
    description: ClassVar[str] = (
        "Show the person your plan for work of several steps. Give the whole list each time something changes."
    )
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {
            "entries": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string"},
                        "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                    },
                    "required": ["text", "status"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["entries"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> TodoPlan:
        return understood(given, TodoPlan)


class Option(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    label: Short
    description: Annotated[str, msgspec.Meta(max_length=_MAX_CHARS)] = ""


class AskUserPlan(_Speaks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    question: Annotated[str, msgspec.Meta(min_length=1, max_length=10 * _MAX_CHARS)]
    options: Annotated[tuple[Option, ...], msgspec.Meta(max_length=_MAX_OPTIONS)] = ()
    multiple: bool = False
    free_text: bool = True

    @property
    def title(self) -> str:
        return one_line(f"ask: {self.question}")

    async def run(self, _workspace: Workspace, voice: Voice) -> Outcome:
        options = tuple(QuestionOption(label=one.label, description=one.description) for one in self.options)
        answers = await voice.ask(self.question, options, multiple=self.multiple, free_text=self.free_text)
        if not answers:
            await anyio.lowlevel.checkpoint_if_cancelled()  # an interrupt withdraws the question: no answer of anybody
            return Outcome(text=_NOBODY, status="error")
        if len(answers) == 1:
            return Outcome(text=f"The person answered: {answers[0]}")
        return Outcome(text="\n".join(["The person answered:", *(f"- {answer}" for answer in answers)]))


class AskUser:
    name: ClassVar[str] = "ask_user"
    kind: ClassVar[ToolKind] = "other"
    asked: ClassVar[bool] = False
    description: ClassVar[str] = (
        "Ask the person what only they can decide, and wait. multiple: several options may be chosen. free_text "
        "(default true): the answer may be another than the options."
    )
    schema: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "options": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"label": {"type": "string"}, "description": {"type": "string"}},
                    "required": ["label"],
                    "additionalProperties": False,
                },
            },
            "multiple": {"type": "boolean"},
            "free_text": {"type": "boolean"},
        },
        "required": ["question"],
        "additionalProperties": False,
    }

    def plan(self, given: JsonObject) -> AskUserPlan:
        plan = understood(given, AskUserPlan)
        if not plan.question.strip():
            raise BadInput("question is empty")
        if not plan.options and (plan.multiple or not plan.free_text):
            raise BadInput("without options the answer is free text; give options, or leave multiple and free_text out")
        labels = [option.label for option in plan.options]
        if len(set(labels)) < len(labels):
            raise BadInput("two options have the same label")
        return plan
