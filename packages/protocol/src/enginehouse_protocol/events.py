"""Events: what happened in a session, as data. Format version 1.

Producers make *bodies*; the transcript alone stamps them into an `Event`. Durable bodies are kept for ever, transient
ones only pass by. Engines may emit `EngineBody`; everything else is core's.

Rules: a tag is never renamed, a field's default never changes, a new field has a default. A tag enters together with
the code that writes it and with a golden line in `tests/golden`. A tag that changes what earlier events mean, and a new
word in a closed set (`Literal`), need a new format version: an older reader would lose the whole event.
"""

from typing import Any, Literal, get_args

import msgspec

from enginehouse_protocol.content import Content, FileChange, LongText
from enginehouse_protocol.ids import (
    CallId,
    EngineName,
    MessageId,
    QuestionId,
    ReplyId,
    RequestId,
    SessionId,
    TurnId,
)
from enginehouse_protocol.permissions import DecidedBy, Decision, JsonObject, Risk, ToolKind
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.workspace import Root

FORMAT_VERSION = 1

StopReason = Literal["end", "interrupted", "max_steps", "max_tokens", "refused", "budget"]
Source = Literal[
    "human",
    "queue",
    "memory",
    "skill",
    "mode",
    "hook",
    "plugin",
    "team",
    "interruption",
    "guard",
    "compaction",
    "recap",
]
"""Who wrote what the model reads as a user's message. `queue`: a person, while an earlier turn was under way."""


class Body(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base of every body. Its tag is its name on the wire and on disk."""


class FromEngine(Body, frozen=True, kw_only=True):
    """Base of what engines emit."""

    parent_call_id: CallId | None = None
    """Set on the work of a native subagent: the tool use that started it."""


# --- durable, written by core -------------------------------------------------------------------------------------


class SessionCreated(Body, frozen=True, kw_only=True, tag="session.created"):
    engine: EngineName
    roots: tuple[Root, ...]
    """The first is the working directory."""
    settings: SessionSettings = SessionSettings()
    provider: str | None = None
    """Name of the provider profile; `environment` when variables alone said where the model is."""
    branch: str | None = None
    """The git branch checked out in the first root."""
    host: str = ""
    """Which host began it: it belongs to that one."""


class SessionChanged(Body, frozen=True, kw_only=True, tag="session.changed"):
    """What is given is new; what is None stays."""

    title: str | None = None
    settings: SessionSettings | None = None
    """All settings as they are from now on, not a difference."""
    roots: tuple[Root, ...] | None = None
    """The project moved and a person confirmed where to."""
    reason: Literal["person", "plan_approved"] = "person"


class SessionClosed(Body, frozen=True, kw_only=True, tag="session.closed"):
    pass


class MessageQueued(Body, frozen=True, kw_only=True, tag="message.queued"):
    """A receipt was given for this. A second one with the same id replaces the content and keeps the place."""

    message_id: MessageId
    content: tuple[Content, ...]
    source: Source = "human"


class MessageWithdrawn(Body, frozen=True, kw_only=True, tag="message.withdrawn"):
    message_id: MessageId
    by: Literal["person", "hook", "close"]
    reason: str = ""


class MessageUser(Body, frozen=True, kw_only=True, tag="message.user"):
    """What the model reads as the user's side. A queued message keeps its id; what core adds has an id of its own."""

    message_id: MessageId
    content: tuple[Content, ...]
    source: Source = "human"


class TurnStarted(Body, frozen=True, kw_only=True, tag="turn.started"):
    origin: str
    """`message`, or what the engine gave to `request_turn`."""
    message_ids: tuple[MessageId, ...] = ()


class TurnCompleted(Body, frozen=True, kw_only=True, tag="turn.completed"):
    stop: StopReason
    detail: str = ""


class TurnFailed(Body, frozen=True, kw_only=True, tag="turn.failed"):
    """`code` is stable, for programs; `message` is the provider's or our own words, for people."""

    code: str
    message: str
    http_status: int | None = None
    retry_after_s: float | None = None


class PermissionRequested(Body, frozen=True, kw_only=True, tag="permission.requested"):
    request_id: RequestId
    call_id: CallId
    kind: ToolKind
    title: str
    risk: Risk
    reasons: tuple[str, ...]
    input_digest: str
    """Of the exact input, before masking. Opaque: an answer echoes it."""
    expires_at_ms: int
    input: JsonObject | None = None
    """What would run, only where it differs from the input of the `tool.use`."""
    preview: tuple[FileChange, ...] = ()
    """What it would change, only where the engine knows better than when it emitted the `tool.use`."""
    always_rule: str | None = None


class PermissionDecided(Body, frozen=True, kw_only=True, tag="permission.decided"):
    """Written for every use core judges, before it runs."""

    call_id: CallId
    decision: Decision
    by: DecidedBy
    risk: Risk
    input_digest: str
    request_id: RequestId | None = None
    rule: str | None = None
    host: str | None = None
    """Which host the person answered from."""
    input: JsonObject | None = None
    """What was judged, only where it differs from the input of the `tool.use` and the decision does not carry it."""


class QuestionOption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    label: str
    description: str = ""


class QuestionAsked(Body, frozen=True, kw_only=True, tag="question.asked"):
    """The model asks the person. Kind `plan`: `text` is a plan; answering with its first option leaves plan mode."""

    question_id: QuestionId
    text: str
    kind: Literal["choice", "plan"] = "choice"
    options: tuple[QuestionOption, ...] = ()
    multiple: bool = False
    free_text: bool = True
    """Whether an answer may be something that is not among the options."""
    call_id: CallId | None = None
    """The tool use this question is, where it is one."""
    parent_call_id: CallId | None = None
    """Set on a question of a native subagent: the tool use that started it."""


class QuestionAnswered(Body, frozen=True, kw_only=True, tag="question.answered"):
    """`answers` is None when nobody answered."""

    question_id: QuestionId
    answers: tuple[str, ...] | None = None
    host: str | None = None


class HistoryReplaced(Body, frozen=True, kw_only=True, tag="history.replaced"):
    """From now on the model sees `summary` instead of the events first_seq…last_seq. Nothing is erased."""

    first_seq: int
    last_seq: int
    by: int
    """Seq of the event that caused it."""
    reason: Literal["rewind", "compaction", "prune"]
    summary: str = ""


class Notice(FromEngine, frozen=True, kw_only=True, tag="notice"):
    """Something a person should know that is no message of anybody. Core writes it too."""

    level: Literal["info", "warning", "error"]
    code: str
    text: str


# --- durable, written by engines ----------------------------------------------------------------------------------


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`text` may be shown. `opaque` is a provider's own blob: it goes back untouched and is never shown."""

    text: LongText = ""
    opaque: JsonObject | None = None


class MessageAssistant(FromEngine, frozen=True, kw_only=True, tag="message.assistant"):
    """One contiguous text of one reply. Its deltas carried the same `message_id`."""

    message_id: MessageId
    reply_id: ReplyId
    text: LongText
    """May be empty: reasoning before a tool use."""
    reasoning: Reasoning | None = None
    phase: Literal["commentary", "final"] | None = None
    complete: bool = True
    """False: the stream was cut or interrupted here."""
    duration_ms: int | None = None


class ToolUse(FromEngine, frozen=True, kw_only=True, tag="tool.use"):
    """The model's request to use a tool. Exactly one `tool.result` follows by the end of the turn."""

    call_id: CallId
    name: str
    kind: ToolKind
    title: str
    """One line for people: `edit src/a.py`, `$ pytest -q`."""
    input: JsonObject
    arguments: LongText = ""
    """The argument text exactly as received; empty when the engine got no text."""
    provider_call_id: str | None = None
    reply_id: ReplyId | None = None
    paths: tuple[str, ...] = ()
    preview: tuple[FileChange, ...] = ()
    """What it would change, as far as the engine can tell before it runs."""


class ToolResult(FromEngine, frozen=True, kw_only=True, tag="tool.result"):
    """How a tool use ended. Exactly one for every `tool.use`, also after a crash."""

    call_id: CallId
    status: Literal["ok", "error", "denied", "interrupted", "unknown"]
    content: tuple[Content, ...] = ()
    changes: tuple[FileChange, ...] = ()
    duration_ms: int | None = None


class ToolDetached(FromEngine, frozen=True, kw_only=True, tag="tool.detached"):
    """The engine itself lists this use as still running; its result is owed until the session closes."""

    call_id: CallId


class PlanEntry(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    status: Literal["pending", "in_progress", "completed"]


class PlanUpdated(FromEngine, frozen=True, kw_only=True, tag="plan.updated"):
    """The whole plan as it is now."""

    entries: tuple[PlanEntry, ...]


class UsageUpdated(FromEngine, frozen=True, kw_only=True, tag="usage.updated"):
    """An increment; totals are sums. None is *unknown*, never nothing: it makes the total unknown too."""

    scope: Literal["request", "turn"]
    input_tokens: int | None = None
    """All of the prompt, cached part included."""
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    """All of the reply, reasoning included."""
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    context_tokens: int | None = None
    """Gauge: how full the context is after this request."""
    context_window: int | None = None


class HistoryChanged(FromEngine, frozen=True, kw_only=True, tag="history.changed"):
    """The engine shortened its own context. Core answers with `history.replaced`."""

    reason: Literal["compaction"]
    summary: str = ""
    tokens_before: int | None = None
    tokens_after: int | None = None


class StepHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything a prompt is made of besides the transcript."""

    model: str
    dialect: str
    """How events become provider messages: `chat_completions`."""
    renderer: int
    """Version of the code that renders; another version may render other bytes from the same events."""
    system: str
    tools: tuple[JsonObject, ...] = ()
    options: JsonObject = {}
    """Further fields of the request body, as sent."""


class StepStarted(FromEngine, frozen=True, kw_only=True, tag="step.started"):
    """One model call. With its header and the events up to `history_seq` its exact request can be built again."""

    step: int
    """Counts within the turn, from 1."""
    history_seq: int | None = None
    """The prompt was made of the events up to this one; None: the engine does not know."""
    request_sha256: str | None = None
    """Of the request's body; None: the engine does not see it."""
    header: StepHeader | None = None
    """None: the same as the last one recorded."""


class NativeUpdated(FromEngine, frozen=True, kw_only=True, tag="native.updated"):
    """Where the engine's own store holds this session.

    The id at first sight; `turn_ref` once a turn, after the engine reported the turn's end.
    """

    native_id: str
    turn_ref: str | None = None


# --- transient ----------------------------------------------------------------------------------------------------


class MessageDelta(FromEngine, frozen=True, kw_only=True, tag="message.delta"):
    message_id: MessageId
    text: str


class MessageReset(FromEngine, frozen=True, kw_only=True, tag="message.reset"):
    """The streamed text of this message is void: it will not become durable as it was shown."""

    message_id: MessageId
    reason: str


class ReasoningDelta(FromEngine, frozen=True, kw_only=True, tag="reasoning.delta"):
    message_id: MessageId
    text: str


class ToolOutput(FromEngine, frozen=True, kw_only=True, tag="tool.output"):
    """What a running tool prints, as it prints it. The `tool.result` has the whole."""

    call_id: CallId
    text: str


class SessionStateChanged(Body, frozen=True, kw_only=True, tag="session.state"):
    state: Literal["idle", "running", "awaiting_permission", "closed"]
    queued: int = 0
    held: bool = False
    """True: the queue does not drain until a person sends or resumes."""
    read_only: str = ""
    """Why nothing can be recorded at the moment; empty when all is well."""


class OpenMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was streamed so far of a message that is not yet durable."""

    message_id: MessageId
    text: str = ""
    reasoning: str = ""
    parent_call_id: CallId | None = None


class RunningTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of what a running tool printed so far."""

    call_id: CallId
    tail: str
    cut: bool = False
    """True: it printed more before."""


class LiveState(Body, frozen=True, kw_only=True, tag="live.state"):
    """The present of a session, for a view that has caught up with its durable events.

    Made for that view alone and never kept: it stands for every transient event the view did not get, so what it
    shows of open messages and running tools is replaced by this.
    """

    seq: int
    """The last durable event; 0: there is none. What came with it is in here."""
    state: SessionStateChanged
    messages: tuple[OpenMessage, ...] = ()
    """In the order they began."""
    tools: tuple[RunningTool, ...] = ()
    queue: tuple[MessageQueued, ...] = ()
    requests: tuple[PermissionRequested, ...] = ()
    """Permission requests nobody has decided."""
    questions: tuple[QuestionAsked, ...] = ()


class Unknown(Body, frozen=True, kw_only=True, tag="unknown"):
    """A body this version cannot read, kept whole. `reason` tells an unknown tag from a known one misshapen."""

    tag: str
    data: JsonObject
    reason: Literal["unknown_tag", "wrong_shape"]


DurableEngineBody = (
    MessageAssistant
    | ToolUse
    | ToolResult
    | ToolDetached
    | PlanUpdated
    | UsageUpdated
    | HistoryChanged
    | StepStarted
    | NativeUpdated
    | Notice
)
TransientEngineBody = MessageDelta | MessageReset | ReasoningDelta | ToolOutput
EngineBody = DurableEngineBody | TransientEngineBody

DurableBody = (
    SessionCreated
    | SessionChanged
    | SessionClosed
    | MessageQueued
    | MessageWithdrawn
    | MessageUser
    | TurnStarted
    | TurnCompleted
    | TurnFailed
    | PermissionRequested
    | PermissionDecided
    | QuestionAsked
    | QuestionAnswered
    | HistoryReplaced
    | DurableEngineBody
)
TransientBody = TransientEngineBody | SessionStateChanged | LiveState
AnyBody = DurableBody | TransientBody

TRANSIENT: tuple[type[Body], ...] = get_args(TransientBody)
"""For `isinstance`: everything else is durable."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A durable fact. One line of a transcript is exactly this, and the same bytes travel to views."""

    session_id: SessionId
    seq: int
    """From 1, without gaps."""
    at_ms: int
    """Wall clock, milliseconds since 1970. Never used to measure a duration."""
    turn_id: TurnId | None
    body: DurableBody | Unknown


class Passing(msgspec.Struct, frozen=True, kw_only=True):
    """A transient fact: an event without a place in the record."""

    session_id: SessionId
    at_ms: int
    turn_id: TurnId | None
    body: TransientBody | Unknown


AnyEvent = Event | Passing


def tag_of(body: Body) -> str:
    """The body's name on the wire, the original one of an `Unknown`."""
    if isinstance(body, Unknown):
        return body.tag
    tag: Any = type(body).__struct_config__.tag
    return str(tag)
