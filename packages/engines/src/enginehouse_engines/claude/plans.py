"""The model's plan, kept from the tools with which it plans.

Rule: only what the CLI took counts. A whole list replaces the plan, a change of one entry changes it, and a change of
an entry nobody has seen (after a resume) waits for the next whole list.
"""

from typing import Any, Literal, cast

from enginehouse_protocol.events import PlanEntry, ToolUse
from enginehouse_protocol.permissions import JsonObject

Progress = Literal["pending", "in_progress", "completed"]
_PROGRESS: dict[str, Progress] = {
    "pending": "pending",
    "in_progress": "in_progress",
    "completed": "completed",
}


class Plan:
    """One of the main conversation, one of each subagent."""

    def __init__(self) -> None:
        self._entries: dict[str, PlanEntry] = {}

    def took(self, use: ToolUse, structured: object) -> tuple[PlanEntry, ...] | None:
        """The whole plan after this use succeeded; None: it is no planning, or changed nothing."""
        said = cast(JsonObject, structured) if isinstance(structured, dict) else {}
        before = tuple(self._entries.values())
        match use.name:
            case "TodoWrite":
                self._replace(use.input.get("todos"), "content", numbered=False)
            case "TaskList":
                self._replace(said.get("tasks"), "subject", numbered=True)
            case "TaskCreate":
                self._add(said.get("task"), use.input)
            case "TaskUpdate":
                self._change(use.input, said)
            case _:
                return None
        after = tuple(self._entries.values())
        return after if after != before else None

    def _replace(self, listed: Any, text_key: str, *, numbered: bool) -> None:
        if not isinstance(listed, list):
            return
        entries: dict[str, PlanEntry] = {}
        for at, each in enumerate(cast(list[Any], listed)):
            if isinstance(each, dict):
                data = cast(JsonObject, each)
                key = str(data.get("id", at)) if numbered else str(at)
                entries[key] = PlanEntry(text=str(data.get(text_key, "")), status=_progress(data.get("status")))
        self._entries = entries

    def _add(self, task: Any, given: JsonObject) -> None:
        made = cast(JsonObject, task) if isinstance(task, dict) else {}
        key = made.get("id")
        if key is not None:
            text = made.get("subject", given.get("subject", ""))
            self._entries[str(key)] = PlanEntry(text=str(text), status="pending")

    def _change(self, given: JsonObject, said: JsonObject) -> None:
        key = str(given.get("taskId", ""))
        entry = self._entries.get(key)
        if entry is None or said.get("success") is False:
            return
        status = given.get("status")
        if status == "deleted":
            del self._entries[key]
            return
        self._entries[key] = PlanEntry(
            text=str(given.get("subject") or entry.text),
            status=_progress(status) if isinstance(status, str) else entry.status,
        )


def _progress(word: Any) -> Progress:
    return _PROGRESS.get(str(word), "pending")
