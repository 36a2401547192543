"""What a tool says while it runs, on its way to core.

Rule: everything goes through the session's port, so it is masked, ordered and recorded like all else.
"""

from dataclasses import dataclass

from enginehouse_protocol.engine import SessionPort
from enginehouse_protocol.events import PlanEntry, PlanUpdated, QuestionAsked, QuestionOption, ToolOutput
from enginehouse_protocol.ids import CallId, new_question_id


@dataclass(frozen=True)
class PortVoice:
    """The `Voice` of one use."""

    port: SessionPort
    call_id: CallId
    shows_images: bool = False

    async def print(self, text: str, /) -> None:
        await self.port.emit(ToolOutput(call_id=self.call_id, text=text))

    async def show_plan(self, entries: tuple[PlanEntry, ...], /) -> None:
        await self.port.emit(PlanUpdated(entries=entries))

    async def ask(
        self, text: str, options: tuple[QuestionOption, ...], /, *, multiple: bool, free_text: bool
    ) -> tuple[str, ...] | None:
        return await self.port.question(
            QuestionAsked(
                question_id=new_question_id(),
                text=text,
                options=options,
                multiple=multiple,
                free_text=free_text,
                call_id=self.call_id,
            )
        )
