"""The tool uses that have no result yet: whose they are, what was decided, which go on in the background, how they end.

Rule: a use leaves this list with its one result. What comes for a use that is not in it comes too late and is dropped.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from enginehouse_engines.claude.answers import Status, content_of, is_running, status_of
from enginehouse_engines.claude.plans import Plan
from enginehouse_engines.claude.tool_kinds import changes_of, kind_of, paths_of, preview_of, title_of
from enginehouse_protocol.content import Content, Text, content_text
from enginehouse_protocol.events import EngineBody, PlanUpdated, ToolDetached, ToolResult, ToolUse
from enginehouse_protocol.ids import CallId, ReplyId, new_call_id
from enginehouse_protocol.permissions import Decision, JsonObject


@dataclass(slots=True)
class OpenUse:
    use: ToolUse
    parent_id: str | None
    """The CLI's id of the use this one is below."""
    decision: Decision | None = None
    refused: bool = False
    """The CLI said no by itself."""
    background: bool = False
    """The CLI lists it as a task that goes on."""
    detached: bool = False
    """And that has been said."""

    @property
    def call_id(self) -> CallId:
        return self.use.call_id

    def result(self, status: Status, content: tuple[Content, ...] = ()) -> ToolResult:
        return ToolResult(call_id=self.call_id, status=status, content=content, parent_call_id=self.use.parent_call_id)


class Uses:
    def __init__(self, cwd: str = "") -> None:
        self._cwd = cwd
        self._open: dict[str, OpenUse] = {}
        self._tasks: dict[str, str] = {}
        self._parents: dict[str, CallId] = {}
        self._plans: dict[CallId | None, Plan] = {}

    def get(self, use_id: str | None) -> OpenUse | None:
        return self._open.get(use_id or "")

    def began(self, block: JsonObject, reply_id: ReplyId, arguments: str, parent_id: str | None) -> ToolUse:
        """The model uses a tool. `arguments` is the text the input was made of; empty when it was not streamed."""
        use_id, name = str(block.get("id", "")), str(block.get("name", ""))
        given = block.get("input")
        tool_input: JsonObject = given if isinstance(given, dict) else {}
        use = ToolUse(
            call_id=new_call_id(),
            name=name,
            kind=kind_of(name),
            title=title_of(name, tool_input, self._cwd),
            input=tool_input,
            arguments=arguments,
            provider_call_id=use_id,
            reply_id=reply_id,
            paths=paths_of(name, tool_input),
            preview=preview_of(name, tool_input),
            parent_call_id=self.call_id_of(parent_id),
        )
        self._open[use_id] = OpenUse(use=use, parent_id=parent_id)
        return use

    def as_it_runs(self, use_id: str, name: str, tool_input: JsonObject) -> ToolUse | None:
        """The same use with the input the CLI is about to run. None: not open."""
        opened = self.get(use_id)
        if opened is None or tool_input == opened.use.input:
            return opened.use if opened is not None else None
        return msgspec.structs.replace(
            opened.use,
            input=tool_input,
            title=title_of(name, tool_input, self._cwd),
            paths=paths_of(name, tool_input),
            preview=preview_of(name, tool_input),
        )

    def answered(
        self, block: JsonObject, structured: object, mark: str, *, interrupting: bool, in_turn: bool
    ) -> list[EngineBody] | None:
        """A tool's result; of a use that now goes on in the background, only that. None: nobody waits for it."""
        use_id = str(block.get("tool_use_id", ""))
        opened = self.get(use_id)
        if opened is None:
            return None
        is_error = block.get("is_error") is True
        if not is_error and (opened.background or is_running(structured)):
            return self.detach(opened)
        content = content_of(block.get("content"))
        status = status_of(
            content_text(content),
            is_error=is_error,
            decision=opened.decision,
            refused=opened.refused,
            mark=mark,
            interrupting=interrupting,
        )
        self.close(use_id)
        if status != "ok":
            return [opened.result(status, content)]
        changes = changes_of(opened.use.name, structured)
        bodies: list[EngineBody] = [msgspec.structs.replace(opened.result(status, content), changes=changes)]
        parent = opened.use.parent_call_id
        entries = self._plans.setdefault(parent, Plan()).took(opened.use, structured)
        if entries is not None and (in_turn or self.goes_on(opened.parent_id)):
            bodies.append(PlanUpdated(entries=entries, parent_call_id=parent))
        return bodies

    def call_id_of(self, parent_id: str | None) -> CallId | None:
        """Of a use other work is below, also when it is over."""
        if parent_id is None:
            return None
        if (parent := self.get(parent_id)) is not None:
            self._parents[parent_id] = parent.call_id
        return self._parents.get(parent_id)

    def close(self, use_id: str) -> None:
        self._open.pop(use_id, None)

    def goes_on(self, parent_id: str | None) -> bool:
        """Whether work below this use is legal when no turn is open."""
        while (parent := self.get(parent_id)) is not None:
            if parent.detached:
                return True
            parent_id = parent.parent_id
        return False

    # --- the CLI's tasks ---

    def task(self, task_id: str, use_id: str, *, background: bool) -> None:
        self._tasks[task_id] = use_id
        if background:
            self.backgrounded(task_id)

    def backgrounded(self, task_id: str) -> None:
        if (opened := self.get(self._tasks.get(task_id))) is not None:
            opened.background = True

    def detach(self, opened: OpenUse) -> list[EngineBody]:
        if opened.detached:
            return []
        opened.background = opened.detached = True
        return [ToolDetached(call_id=opened.call_id, parent_call_id=opened.use.parent_call_id)]

    def task_ended(self, task_id: str, use_id: str | None, status: str, summary: str) -> list[EngineBody]:
        """The owed result of background work, after those of what is still open below it."""
        use_id = use_id or self._tasks.get(task_id, "")
        self._tasks.pop(task_id, None)
        opened = self.get(use_id)
        if opened is None or not opened.background:
            return []  # in the foreground: its result comes as every other
        ended: Status = "ok" if status == "completed" else "error" if status == "failed" else "interrupted"
        said = self._end(
            (key for key in reversed(self._open) if self._is_below(key, use_id) and not self._open[key].detached),
            "interrupted" if ended == "interrupted" else "unknown",
        )
        self.close(use_id)
        return [*said, opened.result(ended, (Text(text=summary),) if summary else ())]

    # --- endings ---

    def end_turn(self, status: Status) -> list[EngineBody]:
        """Results for what the CLI left open; what goes on in the background is owed, and is said to."""
        said: list[EngineBody] = []
        for opened in self._open.values():
            if opened.background:
                said += self.detach(opened)
        left = (
            key
            for key in reversed(self._open)
            if not self._open[key].detached and not self.goes_on(self._open[key].parent_id)
        )
        return [*said, *self._end(left, status)]

    def end_all(self, status: Status, owed: Status) -> list[EngineBody]:
        """Results for everything: `owed` for what goes on in the background and below it."""
        on = [key for key in self._open if self._open[key].detached or self.goes_on(self._open[key].parent_id)]
        said = self._end((key for key in reversed(self._open) if key not in on), status)
        said += self._end(reversed(on), owed)
        self._tasks.clear()
        return said

    def _end(self, keys: Iterable[str], status: Status) -> list[EngineBody]:
        said: list[EngineBody] = []
        for key in tuple(keys):
            said.append(self._open[key].result(status))
            self.close(key)
        return said

    def _is_below(self, use_id: str, parent_id: str) -> bool:
        opened = self.get(use_id)
        while opened is not None and opened.parent_id is not None:
            if opened.parent_id == parent_id:
                return True
            opened = self.get(opened.parent_id)
        return False
