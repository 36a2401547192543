"""What became of one message: read from the events alone, until it is over.

Rule: a message is over when the record says so, or when it can be proved that nothing will come of it by itself. How
this process ends is another thing: a person may leave before.
"""

from dataclasses import dataclass, field

import anyio

from enginehouse_hosts.terminal.exit_codes import COMPLETED, FAILED, INTERRUPTED, MISUSED, UNANSWERED
from enginehouse_protocol.errors import EngineUnavailable, SettingRefused, UsageError
from enginehouse_protocol.events import (
    AnyEvent,
    Event,
    LiveState,
    MessageWithdrawn,
    PermissionDecided,
    QuestionAnswered,
    SessionStateChanged,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.hub import QueueState
from enginehouse_protocol.ids import MessageId, SessionId, TurnId
from enginehouse_protocol.permissions import Expired

_NOT_CONFIGURED = frozenset(
    (
        *(EngineUnavailable.code, SettingRefused.code, UsageError.code),
        *("engine.model_needed", "engine.options_invalid"),
        *("provider.bad_address", "provider.bad_key", "provider.unauthorized", "provider.not_found"),
    )
)


@dataclass(kw_only=True)
class Outcome:
    """Feed it every event with `note`."""

    session_id: SessionId
    message_id: MessageId
    asked_here: bool
    """Whether somebody at this terminal could have been asked."""
    seq: int = 0
    """Everything durable up to here was noted."""
    on_its_way: bool = False
    """It was sent, or is being sent."""
    receipt: anyio.Event = field(default_factory=anyio.Event)
    sent_seq: int | None = None
    """What the receipt said; None before there is one."""
    read_only: str = ""
    """Why nothing can be recorded, as far as is known. Of our message that says something once the view has come to
    it: a receipt may overtake what was true before the message was taken."""
    turn_id: TurnId | None = None
    over: bool = False
    """The message has had its turn, or will have none."""
    waits: bool = False
    """It stays in a held queue, for whoever lets it go on."""
    lost: bool = False
    """The hub cannot be reached any more."""
    held: bool = False
    """As far as is known: whether the queue is held."""
    interrupted: bool = False
    """Whether the person at this terminal said stop."""
    unanswered: bool = False
    exit_code: int | None = None
    problem: str = ""

    def note(self, event: AnyEvent) -> None:
        if isinstance(event, Event):
            self.seq = max(self.seq, event.seq)
            self.read_only = ""  # else there would be no such event
        if self.over:
            return
        match event.body:
            case TurnStarted(message_ids=ids) if self.message_id in ids:
                self.turn_id = event.turn_id
            case MessageWithdrawn(message_id=self.message_id, by="person") if self.interrupted:
                self._ends(INTERRUPTED)
            case MessageWithdrawn(message_id=self.message_id, by=by, reason=reason):
                self._ends(FAILED, f"the message was withdrawn by {by}" + (f": {reason}" if reason else ""))
            case SessionStateChanged():
                self._state(event.body)
            case LiveState():
                self._live(event.body)
            case _ if self.turn_id is None or event.turn_id != self.turn_id:
                pass
            case PermissionDecided(decision=Expired(), by="expiry", request_id=None):
                self.unanswered = True
            case QuestionAnswered(answers=None) if not self.asked_here:
                self.unanswered = True
            case TurnCompleted(stop="end"):
                self._ends(UNANSWERED if self.unanswered else COMPLETED)
            case TurnCompleted(stop=stop):  # at a limit: what was asked for is not done
                self._ends(INTERRUPTED if stop == "interrupted" else FAILED)
            case TurnFailed(code=code):
                self._ends(MISUSED if code in _NOT_CONFIGURED else FAILED)
            case _:
                pass

    def sent(self, seq: int) -> None:
        """The receipt is here."""
        self.sent_seq = seq
        self._check_record()
        self.receipt.set()

    def may_be_held(self) -> bool:
        """Whether it is time to ask the hub: an event about the queue may be older than our message."""
        return self.held and self.sent_seq is not None and self.turn_id is None and not self.over

    def found(self, queue: QueueState) -> None:
        """What the hub says of the queue."""
        if not self.over and queue.held and any(each.message_id == self.message_id for each in queue.messages):
            self.waits = True
            self._ends(
                FAILED,
                "the hub ended before this message began, or somebody interrupted what ran before it; it waits: "
                f"`enginehouse sessions queue resume {self.session_id}`",
            )

    def lost_hub(self, why: str) -> None:
        if not self.over:
            self.lost = True
            self.exit_code = FAILED
            self.problem = (
                f"the hub is gone: {why}; what is recorded is kept, and "
                f"`enginehouse run --session {self.session_id}` goes on"
            )

    def _state(self, state: SessionStateChanged) -> None:
        self.held, self.read_only = state.held, state.read_only
        self._check_record()

    def _check_record(self) -> None:
        if self.read_only and self.sent_seq is not None and self.seq >= self.sent_seq and not self.over:
            self._ends(FAILED, f"the record cannot be written, so the turn is not finished: {self.read_only}")

    def _live(self, live: LiveState) -> None:
        """Everything durable up to `live.seq` was noted before, so what is not known by now did not happen."""
        self.seq = max(self.seq, live.seq)
        self._state(live.state)
        if self.over or self.sent_seq is None or live.seq < self.sent_seq:
            return
        queued = any(each.message_id == self.message_id for each in live.queue)
        if not queued and live.state.state in ("idle", "closed"):
            began = "began and has no end" if self.turn_id is not None else "neither waits nor began"
            self._ends(FAILED, f"the session is {live.state.state}, and in its record this message {began}")

    def _ends(self, exit_code: int, problem: str = "") -> None:
        self.over = True
        if self.exit_code is None:
            self.exit_code, self.problem = exit_code, problem
