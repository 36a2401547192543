"""What every host may ask of the hub, as one Protocol. `Hub` in process satisfies it.

Rule: a method is `noun_verb` here and `noun.verb` on the wire; its only parameter and its result are structs. Every
method may raise `EnginehouseError`; the notable ones are named.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.content import Content
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.events import AnyEvent, Event, QuestionAsked
from enginehouse_protocol.ids import EngineName, MessageId, QuestionId, SessionId
from enginehouse_protocol.permissions import Answer, PendingRequest
from enginehouse_protocol.settings import SessionSettings


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What a host resolved where the person sits. The hub never reads a person's variables itself.

    Held in memory for one session only. The repr shows names, never values.
    """

    environment: dict[str, str] = {}
    """For the session's tools: PATH, VIRTUAL_ENV, proxies, LANG and the like."""
    secrets: dict[str, str] = {}
    """Name → value of everything that must never be written down."""
    key: str | None = None
    """Which of `secrets` is the provider's key."""
    provider: Provider | None = None

    def __repr__(self) -> str:
        return f"Launch(environment={sorted(self.environment)}, secrets={sorted(self.secrets)}, key={self.key!r})"


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a method that only does."""


class SessionRef(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId


class CreateSession(msgspec.Struct, frozen=True, kw_only=True):
    engine: EngineName
    directory: str
    """Absolute; becomes the first root."""
    settings: SessionSettings
    launch: Launch
    session_id: SessionId | None = None
    """Made by the host, so that asking again after a lost connection makes no second session."""
    host: str = ""
    """For the record. Over a connection this is what the host called itself when it connected, whatever stands here."""


SessionStatus = Literal["idle", "running", "awaiting_permission", "closed", "interrupted", "damaged"]
"""`interrupted`: it was running when its hub ended, and opening it repairs that. `damaged`: it cannot be read."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One session as a list shows it: folded from its transcript, a cache at most."""

    id: SessionId
    title: str
    directory: str
    engine: EngineName
    state: SessionStatus
    settings: SessionSettings
    created_at_ms: int
    updated_at_ms: int
    turns: int
    last_seq: int
    queued: int = 0
    branch: str | None = None
    moved_here: bool = False
    """True: its directory is gone and the one asked about looks like the same project."""


class ListSessions(msgspec.Struct, frozen=True, kw_only=True):
    directory: str | None = None
    """Absolute; None: all of the profile."""


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    sessions: tuple[SessionInfo, ...]
    """Newest first."""


class EventsAfter(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId
    after: int = 0
    """The last seq the caller holds; 0: none."""


class EventsPage(msgspec.Struct, frozen=True, kw_only=True):
    """At most 1,000 events, oldest first; `last_seq` tells whether there are more."""

    lines: tuple[msgspec.Raw, ...]
    """As they are on disk, so that tags this version does not know arrive whole."""
    last_seq: int

    @property
    def events(self) -> tuple[Event, ...]:
        decoded = (decode_recorded(bytes(line)) for line in self.lines)
        return tuple(event for event in decoded if isinstance(event, Event))


class SendMessage(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId
    content: tuple[Content, ...]
    launch: Launch | None = None
    """Needed by the first send after a hub start."""
    directory: str | None = None
    """Absolute. Where the project is now, when the person confirmed that it moved."""
    max_steps: int | None = None
    """Model calls in the turn this message starts; None: what the settings say. Not kept past the hub's end."""
    unattended: Literal["wait", "deny"] = "wait"
    """What happens to a permission request of that turn while nobody is attached who can answer. Not kept either."""
    message_id: MessageId | None = None
    """Made by the host, so that sending again after a lost connection sends nothing twice."""
    host: str = ""
    """As in `CreateSession`."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The message is on disk."""

    message_id: MessageId
    seq: int


class SetSession(msgspec.Struct, frozen=True, kw_only=True):
    """Change what is given. `settings` is laid over what the session has."""

    session_id: SessionId
    title: str | None = None
    settings: SessionSettings | None = None


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    message_id: MessageId
    content: tuple[Content, ...]


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[QueuedMessage, ...]
    held: bool


class EditQueued(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId
    message_id: MessageId
    content: tuple[Content, ...]


class WithdrawQueued(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId
    message_id: MessageId


class ResumeQueue(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId
    launch: Launch | None = None
    """As in `SendMessage`."""
    host: str = ""
    """As in `CreateSession`."""


class AnswerPermission(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId
    answer: Answer
    host: str
    """As in `CreateSession`."""


class PendingRequests(msgspec.Struct, frozen=True, kw_only=True):
    requests: tuple[PendingRequest, ...]


class PendingQuestion(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId
    question: QuestionAsked


class PendingQuestions(msgspec.Struct, frozen=True, kw_only=True):
    questions: tuple[PendingQuestion, ...]


class AnswerQuestion(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId
    question_id: QuestionId
    answers: tuple[str, ...] | None
    host: str
    """As in `CreateSession`."""


class Attach(msgspec.Struct, frozen=True, kw_only=True):
    session_id: SessionId
    after: int = 0
    """The last seq the view holds; 0: none."""
    can_answer: bool = False
    """Whether somebody is there to answer permission requests and questions."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event and its one encoding: the bytes of a durable one are the bytes of its line in the transcript."""

    event: AnyEvent
    line: bytes


class View(Protocol):
    """One attached subscription. It hears of a durable event only once that is on disk."""

    def batches(self) -> AsyncIterator[tuple[Delivery, ...]]:
        """The durable events after `Attach.after`, a `live.state`, then what happens, in order. Ends with the session's
        hub, or when the session is closed.

        A batch is at most 1,000 events and about 1 MiB. A view that falls too far behind to hear everything gets the
        durable events it missed and another `live.state`; so does one that was cut off, attaching again after the last
        seq it holds.

        When the record cannot be written, a `session.state` with `read_only` set says why: what was shown is all
        that happened. It goes on when somebody sends again and there is room.
        """
        ...


class HubApi(Protocol):
    async def sessions_create(self, params: CreateSession) -> SessionInfo:
        """Raises: EngineUnavailable, FileUnusable (no such directory)."""
        ...

    async def sessions_list(self, params: ListSessions) -> SessionList: ...

    async def sessions_events(self, params: EventsAfter) -> EventsPage: ...

    async def sessions_send(self, params: SendMessage) -> Receipt:
        """Make a message durable and run it when its turn comes.

        Raises: SessionNotFound, SessionClosed, SessionMoved, TranscriptUnavailable, MalformedData (an image that is
        none, or too large), UsageError (an image, for an engine that takes none).
        """
        ...

    async def sessions_interrupt(self, params: SessionRef) -> Nothing:
        """Returns once the session is idle; at once when it is."""
        ...

    async def sessions_set(self, params: SetSession) -> SessionInfo:
        """Raises: SettingRefused."""
        ...

    async def sessions_close(self, params: SessionRef) -> Nothing: ...

    async def sessions_delete(self, params: SessionRef) -> Nothing: ...

    async def queue_list(self, params: SessionRef) -> QueueState: ...

    async def queue_edit(self, params: EditQueued) -> Receipt:
        """Raises: MessageNotQueued."""
        ...

    async def queue_withdraw(self, params: WithdrawQueued) -> QueuedMessage:
        """The text comes back. Raises: MessageNotQueued."""
        ...

    async def queue_resume(self, params: ResumeQueue) -> Nothing: ...

    async def permissions_pending(self, _: Nothing, /) -> PendingRequests:
        """Of all sessions, oldest first."""
        ...

    async def permissions_answer(self, params: AnswerPermission) -> Nothing:
        """The first answer counts; a later one hears from AlreadyDecided what became of the request.

        Raises: RequestNotFound, AlreadyDecided, StaleDigest.
        """
        ...

    async def questions_pending(self, _: Nothing, /) -> PendingQuestions:
        """Of all sessions, oldest first."""
        ...

    async def questions_answer(self, params: AnswerQuestion) -> Nothing:
        """Raises: RequestNotFound, AlreadyDecided."""
        ...

    def sessions_attach(self, params: Attach) -> AbstractAsyncContextManager[View]: ...
