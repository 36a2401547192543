"""What a transcript says, as state: a pure fold over its events.

Rule: everything here can be rebuilt from the events alone. Lists, counters and titles are caches of this.
"""

from dataclasses import dataclass, field

from enginehouse_protocol.content import content_text
from enginehouse_protocol.events import (
    Event,
    HistoryReplaced,
    MessageQueued,
    MessageUser,
    MessageWithdrawn,
    NativeUpdated,
    PermissionDecided,
    PermissionRequested,
    QuestionAnswered,
    QuestionAsked,
    SessionChanged,
    SessionClosed,
    SessionCreated,
    ToolDetached,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.ids import CallId, EngineName, MessageId, QuestionId, RequestId, TurnId
from enginehouse_protocol.permissions import Allow
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.workspace import Root

_TITLE_LENGTH = 60


@dataclass
class OpenUse:
    """A tool use without a result."""

    use: ToolUse
    turn_id: TurnId | None
    allowed: bool = False
    """True: it was let run, so it may have done its work."""
    detached: bool = False


@dataclass
class SessionFold:
    """A session's state after some events. `apply` them in order."""

    last_seq: int = 0
    created: SessionCreated | None = None
    created_at_ms: int = 0
    updated_at_ms: int = 0
    title: str = ""
    settings: SessionSettings = SessionSettings()
    roots: tuple[Root, ...] = ()
    closed: bool = False
    turns: int = 0
    open_turn: TurnId | None = None
    last_end: TurnCompleted | TurnFailed | None = None
    """How the last turn ended; None while one is open and before the first."""
    unfinished: list[ToolUse] = field(default_factory=list[ToolUse])
    """Uses of the last turn that were interrupted or whose outcome nobody knows."""
    queue: dict[MessageId, MessageQueued] = field(default_factory=dict[MessageId, MessageQueued])
    open_uses: dict[CallId, OpenUse] = field(default_factory=dict[CallId, OpenUse])
    requests: dict[RequestId, PermissionRequested] = field(default_factory=dict[RequestId, PermissionRequested])
    questions: dict[QuestionId, QuestionAsked] = field(default_factory=dict[QuestionId, QuestionAsked])
    native: NativeUpdated | None = None
    history_start: int = 1
    """The first seq a model may still see: what lies before was replaced."""

    @property
    def engine(self) -> EngineName:
        return self.created.engine if self.created else EngineName("")

    @property
    def directory(self) -> str:
        return self.roots[0].path if self.roots else ""

    def apply(self, event: Event) -> None:  # noqa: C901, PLR0912 one arm a tag, nothing nested
        self.last_seq = event.seq
        self.updated_at_ms = event.at_ms
        match event.body:
            case ToolUse() as body:
                self.open_uses[body.call_id] = OpenUse(body, event.turn_id)
            case ToolResult() as body:
                ended = self.open_uses.pop(body.call_id, None)
                if ended and body.status in ("interrupted", "unknown"):
                    self.unfinished.append(ended.use)
            case PermissionDecided() as body:
                if body.request_id:
                    self.requests.pop(body.request_id, None)
                if body.call_id in self.open_uses:
                    self.open_uses[body.call_id].allowed = isinstance(body.decision, Allow)
            case PermissionRequested() as body:
                self.requests[body.request_id] = body
            case MessageQueued() as body:
                self.queue[body.message_id] = body
            case MessageUser() as body:
                self.queue.pop(body.message_id, None)
                if not self.title and body.source in ("human", "queue"):
                    self.title = _title_from(content_text(body.content))
            case MessageWithdrawn() as body:
                self.queue.pop(body.message_id, None)
            case TurnStarted():
                self.turns += 1
                self.open_turn = event.turn_id
                self.last_end = None
                self.unfinished = []
            case TurnCompleted() | TurnFailed() as body:
                self.open_turn = None
                self.last_end = body
            case ToolDetached() as body:
                if body.call_id in self.open_uses:
                    self.open_uses[body.call_id].detached = True
            case NativeUpdated() as body:
                self.native = body
            case QuestionAsked() as body:
                self.questions[body.question_id] = body
            case QuestionAnswered() as body:
                self.questions.pop(body.question_id, None)
            case SessionCreated() as body:
                self.created, self.created_at_ms = body, event.at_ms
                self.settings, self.roots = body.settings, body.roots
            case SessionChanged() as body:
                self.settings = body.settings or self.settings
                self.roots = body.roots or self.roots
                if body.title is not None:
                    self.title = body.title
            case HistoryReplaced() as body:
                self.history_start = max(self.history_start, body.last_seq + 1)
            case SessionClosed():
                self.closed = True
            case _:
                pass


def _title_from(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _TITLE_LENGTH else words[: _TITLE_LENGTH - 1] + "…"
