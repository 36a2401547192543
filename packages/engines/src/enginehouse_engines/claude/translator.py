"""What the CLI's frames mean: a state machine fed one raw frame after the other, in the order they came.

Rule: it does no I/O and never raises. Every use it says gets exactly one result, every turn it opens is ended, and what
it does not know is kept and said. Only frames of the model (stream, assistant) open a turn nobody asked for; what the
CLI writes into the conversation by itself never does: such a turn would have no end.
"""

import msgspec

from enginehouse_engines.claude.answers import Status
from enginehouse_engines.claude.frames import (
    ApiMessage,
    AssistantFrame,
    LifecycleFrame,
    RateLimitFrame,
    ResultFrame,
    StreamFrame,
    SystemFrame,
    Unknown,
    UserFrame,
    decode,
)
from enginehouse_engines.claude.notices import (
    failed,
    informed,
    limited,
    not_shortened,
    retrying,
    spoken,
    went_on,
)
from enginehouse_engines.claude.replies import THINKING, Replies
from enginehouse_engines.claude.saying import (
    Emit,
    ModeChanged,
    NativeId,
    NotUnderstood,
    Said,
    ToolsOffered,
    TurnEnded,
    WantsTurn,
)
from enginehouse_engines.claude.stop_reasons import end_of
from enginehouse_engines.claude.turns import Turns
from enginehouse_engines.claude.usage import Gauges, Uncounted
from enginehouse_engines.claude.uses import Uses
from enginehouse_protocol.engine import TurnEnd
from enginehouse_protocol.errors import EngineError, EngineExited
from enginehouse_protocol.events import (
    EngineBody,
    HistoryChanged,
    NativeUpdated,
    Notice,
    StepStarted,
    ToolUse,
)
from enginehouse_protocol.ids import CallId, TurnId
from enginehouse_protocol.permissions import Decision, JsonObject

_MEANINGLESS = frozenset(
    (
        "status",
        "thinking_tokens",
        "session_state_changed",
        "session_title_changed",
        "ui_invalidate",
        "background_tasks_changed",
        "task_progress",
        "model_refusal_no_fallback",
    )
)
"""System frames that say nothing a person or a program needs, or that the SDK gets."""
_HEARTBEATS = frozenset(("frame tool_progress", "frame keep_alive"))


class Translator:
    """One for each engine session; it outlives the CLI's process."""

    def __init__(self, cwd: str = "") -> None:
        """`cwd`: titles show paths below it relative to it."""
        self.native_id = ""
        """The CLI's session id as last seen; resume with it."""
        self.mode = ""
        """The CLI's own permission mode as last seen."""
        self.turn_id: TurnId | None = None
        """The turn that was begun last; None once a result ended it."""
        self._replies = Replies()
        self._uses = Uses(cwd)
        self._gauges = Gauges()
        self._offered: ToolsOffered | None = None
        self._turns = Turns()
        self._limit: Notice | None = None
        self._compaction: HistoryChanged | None = None
        self._forget_turn()

    @property
    def in_turn(self) -> bool:
        """Whether the CLI owes a result: for our prompt, or for a turn it began by itself."""
        return self._turns.open

    # --- what the session tells ---

    def begin_turn(self, turn_id: TurnId, prompt_uuid: str) -> list[Said]:
        """Our prompt is about to be written; `prompt_uuid` is empty for a turn the CLI began by itself."""
        self.turn_id = turn_id
        self._turns.begin(prompt_uuid)
        return []

    def asked(self, use_id: str, tool_name: str, tool_input: JsonObject) -> ToolUse | None:
        """The use as it would run, for `port.ask`: the CLI asks about another input than it showed (paths made
        absolute). None: its frame was not fed yet, or its result was.
        """
        return self._uses.as_it_runs(use_id, tool_name, tool_input)

    def decided(self, use_id: str, decision: Decision) -> None:
        """What was answered. An edited use that runs is `ok` like every other; a denied one is no error."""
        if (opened := self._uses.get(use_id)) is not None:
            opened.decision = decision

    def interrupted(self) -> list[Said]:
        """An interrupt is about to be written. An idle CLI says nothing to that, so nothing is waited for."""
        self._interrupting = self.in_turn
        return []

    def died(self, reason: str) -> list[Said]:
        """The process ended, or nothing more can be read from it. What ran may have taken effect: `unknown`."""
        status: Status = "interrupted" if self._interrupting else "unknown"
        said = self._emits(self._replies.end_all(reason))
        said += self._emits(self._uses.end_all(status, "unknown"))
        if (usage := self._uncounted.at_death()) is not None:
            said.append(Emit(body=usage))
        if self.in_turn:
            end = TurnEnd(stop="interrupted") if self._interrupting else EngineExited(reason)
            said.append(TurnEnded(end=end, prompt_uuid=self._turns.over()))
        self._compaction = self.turn_id = None
        self._forget_turn()
        return said

    def closing(self) -> list[Said]:
        """The session ends on our side: what is owed is `unknown` for ever."""
        status: Status = "interrupted" if self._interrupting else "unknown"
        said = self._emits(self._replies.end_all("the session was closed"))
        said += self._emits(self._uses.end_all(status, "unknown"))
        self._turns.over()
        self._forget_turn()
        return said

    # --- what the CLI says ---

    def feed(self, frame: bytes | JsonObject) -> list[Said]:
        """What one raw stdout frame means, in order. Control frames are not for here."""
        decoded, wrong = decode(frame)
        match decoded:
            case StreamFrame():
                said = self._stream(decoded)
            case AssistantFrame():
                said = self._assistant(decoded)
            case UserFrame():
                said = self._user(decoded)
            case ResultFrame():
                said = self._result(decoded)
            case LifecycleFrame():
                said = self._lifecycle(decoded)
            case SystemFrame():
                said = self._system(decoded, frame)
            case RateLimitFrame():
                said = self._limited(decoded.rate_limit_info or {})
            case Unknown():
                said = []
                if decoded.what not in _HEARTBEATS:
                    said.append(NotUnderstood(what=decoded.what, data=decoded.data))
        if wrong:
            said.append(NotUnderstood(what=f"fields of a {decoded.__class__.__name__}: {', '.join(wrong)}"))
        return said

    def _stream(self, frame: StreamFrame) -> list[Said]:
        said = self._opening(frame.parent_tool_use_id)
        if said is None:
            return [NotUnderstood(what="the stream of work that is over", data={"of": frame.parent_tool_use_id})]
        event = frame.event
        parent = self._uses.call_id_of(frame.parent_tool_use_id)
        match event.type:
            case "content_block_delta":
                pass  # most frames are this one
            case "message_start" if parent is None:
                said += self._prose_passed()
                self._uncounted.began(streaming=self._streaming)
                self._streaming = True
            case "message_delta" if parent is None:
                self._gauges.request(event.usage)
                if event.delta is not None and event.delta.stop_reason is not None:
                    self._uncounted.ended(event.usage)
                    self._streaming = False
            case _:
                pass
        begun = self._replies.begun
        said += self._emits(self._replies.stream(event, parent))
        return said + self._steps_since(begun)

    def _assistant(self, frame: AssistantFrame) -> list[Said]:
        opening = self._opening(frame.parent_tool_use_id)
        if opening is None:
            return [NotUnderstood(what="a message of work that is over", data={"of": frame.parent_tool_use_id})]
        said: list[Said] = opening
        parent = self._uses.call_id_of(frame.parent_tool_use_id)
        if frame.is_prose:
            return said + self._prosaic(frame, parent)
        if parent is not None or not self._streaming:
            self._uncounted.elsewhere()
        if parent is None:
            said += self._prose_passed()
            self._gauges.model(frame.message.model)
            self._turn_ref = frame.uuid or self._turn_ref
            if frame.message.stop_reason is not None:  # not streamed: these are the whole reply's numbers
                self._gauges.request(frame.message.usage)
        for block in _blocks(frame.message):
            begun = self._replies.begun
            bodies = self._block(frame, block, parent, said)
            step = self._steps_since(begun)  # before what the new reply says, after what the old one left
            said += [*self._emits(bodies[:-1]), *step, *self._emits(bodies[-1:])]
        return said

    def _block(
        self, frame: AssistantFrame, block: JsonObject, parent: CallId | None, said: list[Said]
    ) -> list[EngineBody]:
        kind = str(block.get("type"))
        match kind:
            case "text" | "thinking" | "redacted_thinking":
                spent_ms = frame.thinking_duration_ms if kind in THINKING else None
                return self._replies.finished(
                    frame.message,
                    block,
                    parent,
                    aborted=frame.aborted,
                    duration_ms=None if spent_ms is None else round(spent_ms),
                )
            case "tool_use" | "server_tool_use":
                return self._used(frame, block, parent)
            case _ if kind.endswith("_tool_result"):
                return self._answered(block, None, []) or []
            case _:
                said.append(NotUnderstood(what=f"block {kind}", data=block))
                return []

    def _used(self, frame: AssistantFrame, block: JsonObject, parent: CallId | None) -> list[EngineBody]:
        use_id = _text(block, "id")
        if self._uses.get(use_id) is not None:
            return []  # said already
        reply_id, arguments, bodies = self._replies.used(frame.message, use_id, _text(block, "type"), parent)
        return [*bodies, self._uses.began(block, reply_id, arguments, frame.parent_tool_use_id)]

    def _user(self, frame: UserFrame) -> list[Said]:
        """Results of tools, and texts of the CLI, of which only a summary means something."""
        blocks = _blocks(frame.message)
        results = [block for block in blocks if block.get("type") == "tool_result"]
        structured = frame.tool_use_result if len(results) == 1 else None
        said: list[Said] = []
        for block in results:
            bodies = self._answered(block, structured, frame.tool_result_meta or [])
            if bodies is None:
                said.append(NotUnderstood(what="a result nobody waits for", data=block))
            said += self._emits(bodies or [])
        if not results and self._compaction is not None and frame.parent_tool_use_id is None and not frame.is_replay:
            texts = (_text(block, "text") for block in blocks)
            summary = self._compaction.summary or "\n".join(text for text in texts if text)
            self._compaction = msgspec.structs.replace(self._compaction, summary=summary)
            said += self._compacted()
        return said

    def _answered(self, block: JsonObject, structured: object, meta: list[JsonObject]) -> list[EngineBody] | None:
        use_id = block.get("tool_use_id")
        mark = next((_text(each, "non_execution_kind") for each in meta if each.get("id") == use_id), "")
        return self._uses.answered(block, structured, mark, interrupting=self._interrupting, in_turn=self.in_turn)

    def _result(self, frame: ResultFrame) -> list[Said]:
        end = end_of(frame, self._prose)
        usage = self._gauges.of_turn(frame)
        said: list[Said] = []
        if self.in_turn:
            aborted = isinstance(end, TurnEnd) and end.stop == "interrupted"
            said += self._compacted()
            said += self._emits(self._replies.end_main("the turn was interrupted" if aborted else "the turn ended"))
            said += self._emits(self._uses.end_turn("interrupted" if aborted else "unknown"))
            if not frame.is_error or aborted:
                said += self._prose_passed()
            if self._turn_ref and self.native_id:
                said.append(Emit(body=NativeUpdated(native_id=self.native_id, turn_ref=self._turn_ref)))
        elif isinstance(end, EngineError):
            said.append(Emit(body=failed(end)))
        if usage is not None:
            said.append(Emit(body=usage))
        if self.in_turn:
            prompt, origin = self._turns.answered_by(frame)
            said.append(TurnEnded(end=end, prompt_uuid=prompt, origin=origin))
            if not self.in_turn:
                self.turn_id = None
        self._forget_turn()
        return said

    def _lifecycle(self, frame: LifecycleFrame) -> list[Said]:
        """A prompt taken from the CLI's queue has no result. A turn of the CLI's own that goes on is asked for anew."""
        if not self._turns.cancels(frame):
            return []
        said = self._emits(self._replies.end_main("the turn was interrupted"))
        said += self._emits(self._uses.end_turn("interrupted"))
        said.append(TurnEnded(end=TurnEnd(stop="interrupted"), prompt_uuid=self._turns.over()))
        self.turn_id = None
        return said

    def _system(self, frame: SystemFrame, raw: bytes | JsonObject) -> list[Said]:
        match frame.subtype:
            case "init":
                return self._initialized(frame)
            case "status":
                said = self._mode_is(frame.permission_mode)
                if frame.compact_result == "failed":
                    said.append(Emit(body=not_shortened(frame)))
                if frame.status == "requesting":
                    self._uncounted.asked()
                return said
            case "api_retry":
                return [Emit(body=retrying(frame))]
            case "permission_denied":
                if (opened := self._uses.get(frame.tool_use_id)) is not None:
                    opened.refused = True
                return []
            case "task_started":
                self._uses.task(frame.task_id, frame.tool_use_id or "", background=frame.is_backgrounded)
                return []
            case "task_updated":
                if (frame.patch or {}).get("is_backgrounded") is True:
                    self._uses.backgrounded(frame.task_id)
                return []
            case "task_notification":
                self._turns.woken("task-notification")
                ended = self._uses.task_ended(frame.task_id, frame.tool_use_id, frame.status or "", frame.summary)
                return self._emits(ended)
            case "compact_boundary":
                self._compaction = _compaction(frame.compact_metadata or {})
                self._gauges.compacted(self._compaction.tokens_after)
                return []
            case "informational":
                return [Emit(body=informed(frame))] if frame.content else []
            case subtype if subtype in _MEANINGLESS:
                return []
            case _:
                return [NotUnderstood(what=f"system {frame.subtype}", data=raw if isinstance(raw, dict) else {})]

    def _initialized(self, frame: SystemFrame) -> list[Said]:
        said: list[Said] = []
        if frame.session_id and frame.session_id != self.native_id:
            self.native_id = frame.session_id
            said.append(Emit(body=NativeUpdated(native_id=frame.session_id)))
            said.append(NativeId(native_id=frame.session_id))
        self._gauges.model(frame.model)
        offered = ToolsOffered(tools=tuple(frame.tools or ()), model=frame.model, api_key_source=frame.api_key_source)
        if offered != self._offered:
            self._offered = offered
            said.append(offered)
        return said + self._mode_is(frame.permission_mode)

    def _mode_is(self, mode: str | None) -> list[Said]:
        if not mode or mode == self.mode:
            return []
        self.mode = mode
        return [ModeChanged(mode=mode)]

    def _limited(self, info: JsonObject) -> list[Said]:
        before, self._limit = self._limit, limited(info)
        return [] if self._limit is None or self._limit == before else [Emit(body=self._limit)]

    # --- turns ---

    def _opening(self, parent_id: str | None) -> list[Said] | None:
        """What goes before something of the model, which opens a turn when none is. None: it comes too late."""
        if parent_id is not None and self._uses.call_id_of(parent_id) is None:
            return None
        if self.in_turn or self._uses.goes_on(parent_id):
            return []
        if parent_id is not None:
            return None
        return [WantsTurn(origin=self._turns.begun_by_itself()), *self._compacted()]

    def _steps_since(self, begun: int) -> list[Said]:
        """One model call of the main conversation is one step."""
        if self._replies.begun == begun:
            return []
        self._steps += 1
        return [Emit(body=StepStarted(step=self._steps))]

    def _compacted(self) -> list[Said]:
        """The CLI shortened its context: said inside a turn, with its summary if that came."""
        if self._compaction is None or not self.in_turn:
            return []
        body, self._compaction = self._compaction, None
        return [Emit(body=body)]

    def _prosaic(self, frame: AssistantFrame, parent: CallId | None) -> list[Said]:
        """The CLI speaks: about an error, which the result may repeat, or about something it did by itself."""
        if parent is None and frame.error is not None:
            self._prose = frame
            return []
        return [Emit(body=spoken(frame, parent))]

    def _prose_passed(self) -> list[Said]:
        """The CLI spoke of an error and went on: that was no failure, but it was said."""
        prose, self._prose = self._prose, None
        return [] if prose is None else [Emit(body=went_on(prose))]

    def _forget_turn(self) -> None:
        self._turn_ref = ""
        self._prose: AssistantFrame | None = None
        self._interrupting = False
        self._uncounted = Uncounted()
        self._streaming = False
        self._steps = 0

    @staticmethod
    def _emits(bodies: list[EngineBody]) -> list[Said]:
        return [Emit(body=body) for body in bodies]


def _blocks(message: ApiMessage) -> list[JsonObject]:
    content = message.content
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(data: JsonObject, key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _compaction(metadata: JsonObject) -> HistoryChanged:
    before, after = metadata.get("pre_tokens"), metadata.get("post_tokens")
    return HistoryChanged(
        reason="compaction",
        tokens_before=before if isinstance(before, int) else None,
        tokens_after=after if isinstance(after, int) else None,
    )
