"""What a transcript says, as state: a pure fold over its events.

Rule: everything here can be rebuilt from the events alone. Lists, counters and titles are caches of this.
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
_RECENT = 64


@dataclass(slots=True)
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
    settings: SessionSettings = field(default_factory=SessionSettings)
    roots: tuple[Root, ...] = ()
    closed: bool = False
    turns: int = 0
    open_turn: TurnId | None = None
    last_end: TurnCompleted | TurnFailed | None = None
    """How the last turn ended; None while one is open and before the first."""
    unfinished: list[ToolUse] = field(default_factory=list[ToolUse])
    """Uses of the last turn that were interrupted or whose outcome nobody knows."""
    queue: dict[MessageId, MessageQueued] = field(default_factory=dict[MessageId, MessageQueued])
    recent: dict[MessageId, int] = field(default_factory=dict[MessageId, int])
    """The seqs of the newest messages people sent: who sends one of them again sends nothing."""
    open_uses: dict[CallId, OpenUse] = field(default_factory=dict[CallId, OpenUse])
    requests: dict[RequestId, PermissionRequested] = field(default_factory=dict[RequestId, PermissionRequested])
    questions: dict[QuestionId, QuestionAsked] = field(default_factory=dict[QuestionId, QuestionAsked])
    native: NativeUpdated | None = None
    replaced: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Ranges of seqs, both ends included and by their first, that a model no longer sees. They may overlap."""

    @property
    def engine(self) -> EngineName:
        return self.created.engine if self.created else EngineName("")

    @property
    def directory(self) -> str:
        return self.roots[0].path if self.roots else ""

    @property
    def history_start(self) -> int:
        """The first seq a model may still see: no replacement covers it. Later ones may be covered all the same."""
        start = 1
        for first, last in self.replaced:
            if first > start:
                break
            start = max(start, last + 1)
        return start

    def apply(self, event: Event) -> None:
        """The event after the last one applied."""
        self.last_seq = event.seq
        self.updated_at_ms = event.at_ms
        # A table, not a chain of tests: long conversations are folded when they are opened.
        arm = _ARMS.get(type(event.body))
        if arm is not None:
            arm(self, event, event.body)


def _use(fold: SessionFold, event: Event, body: ToolUse) -> None:
    fold.open_uses[body.call_id] = OpenUse(body, event.turn_id)


def _result(fold: SessionFold, _: Event, body: ToolResult) -> None:
    ended = fold.open_uses.pop(body.call_id, None)
    if ended and body.status in ("interrupted", "unknown"):
        fold.unfinished.append(ended.use)


def _detached(fold: SessionFold, _: Event, body: ToolDetached) -> None:
    if body.call_id in fold.open_uses:
        fold.open_uses[body.call_id].detached = True


def _requested(fold: SessionFold, _: Event, body: PermissionRequested) -> None:
    fold.requests[body.request_id] = body


def _decided(fold: SessionFold, _: Event, body: PermissionDecided) -> None:
    if body.request_id:
        fold.requests.pop(body.request_id, None)
    if body.call_id in fold.open_uses:
        fold.open_uses[body.call_id].allowed = isinstance(body.decision, Allow)


def _asked(fold: SessionFold, _: Event, body: QuestionAsked) -> None:
    fold.questions[body.question_id] = body


def _answered(fold: SessionFold, _: Event, body: QuestionAnswered) -> None:
    fold.questions.pop(body.question_id, None)


def _queued(fold: SessionFold, event: Event, body: MessageQueued) -> None:
    fold.queue[body.message_id] = body
    if fold.recent.setdefault(body.message_id, event.seq) == event.seq and len(fold.recent) > _RECENT:
        del fold.recent[next(iter(fold.recent))]


def _withdrawn(fold: SessionFold, _: Event, body: MessageWithdrawn) -> None:
    fold.queue.pop(body.message_id, None)


def _user(fold: SessionFold, _: Event, body: MessageUser) -> None:
    fold.queue.pop(body.message_id, None)
    if not fold.title and body.source in ("human", "queue"):
        fold.title = _title_from(content_text(body.content))


def _turn_started(fold: SessionFold, event: Event, _: TurnStarted) -> None:
    fold.turns += 1
    fold.open_turn = event.turn_id
    fold.last_end = None
    fold.unfinished = []


def _turn_ended(fold: SessionFold, _: Event, body: TurnCompleted | TurnFailed) -> None:
    fold.open_turn = None
    fold.last_end = body


def _native(fold: SessionFold, _: Event, body: NativeUpdated) -> None:
    fold.native = body


def _created(fold: SessionFold, event: Event, body: SessionCreated) -> None:
    fold.created, fold.created_at_ms = body, event.at_ms
    fold.settings, fold.roots = body.settings, body.roots


def _changed(fold: SessionFold, _: Event, body: SessionChanged) -> None:
    fold.settings = body.settings or fold.settings
    fold.roots = body.roots or fold.roots
    fold.title = fold.title if body.title is None else body.title


def _replaced(fold: SessionFold, _: Event, body: HistoryReplaced) -> None:
    if body.first_seq <= body.last_seq:
        bisect.insort(fold.replaced, (body.first_seq, body.last_seq))


def _closed(fold: SessionFold, _: Event, __: SessionClosed) -> None:
    fold.closed = True


_ARMS: dict[type, Callable[[SessionFold, Event, Any], None]] = {
    ToolUse: _use,
    ToolResult: _result,
    ToolDetached: _detached,
    PermissionRequested: _requested,
    PermissionDecided: _decided,
    QuestionAsked: _asked,
    QuestionAnswered: _answered,
    MessageQueued: _queued,
    MessageWithdrawn: _withdrawn,
    MessageUser: _user,
    TurnStarted: _turn_started,
    TurnCompleted: _turn_ended,
    TurnFailed: _turn_ended,
    NativeUpdated: _native,
    SessionCreated: _created,
    SessionChanged: _changed,
    HistoryReplaced: _replaced,
    SessionClosed: _closed,
}


def _title_from(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _TITLE_LENGTH else words[: _TITLE_LENGTH - 1] + "…"
