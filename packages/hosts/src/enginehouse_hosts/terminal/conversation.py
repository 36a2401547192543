"""One message to an agent, from sending it to the end of its turn; `enginehouse run` is this.

Rule: the view is attached before the message is sent, so nothing is missed; and it is followed until the turn of *this*
message has ended, whatever else the queue held before it.

What it returns is the process's exit code, one of `exit_codes`, or 128 + n when signal n ended it.
"""

import math
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from enginehouse_hosts.terminal.asking import Asker
from enginehouse_hosts.terminal.exit_codes import COMPLETED, FAILED, INTERRUPTED, LEFT, MISUSED, UNANSWERED
from enginehouse_hosts.terminal.hang_up import HangUp
from enginehouse_hosts.terminal.headline import YOLO, headline
from enginehouse_hosts.terminal.plain_text import exact
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.content import Text
from enginehouse_protocol.errors import (
    EnginehouseError,
    EngineUnavailable,
    MessageNotQueued,
    SettingRefused,
    TranscriptUnavailable,
    UsageError,
)
from enginehouse_protocol.events import (
    AnyEvent,
    MessageWithdrawn,
    PermissionDecided,
    QuestionAnswered,
    SessionStateChanged,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.hub import (
    Attach,
    CreateSession,
    Delivery,
    HubApi,
    Launch,
    SendMessage,
    SessionInfo,
    SessionRef,
    SetSession,
    View,
    WithdrawQueued,
)
from enginehouse_protocol.ids import MessageId, TurnId
from enginehouse_protocol.permissions import Expired
from enginehouse_protocol.settings import SessionSettings

_NOT_CONFIGURED = frozenset(
    (
        *(EngineUnavailable.code, SettingRefused.code, UsageError.code),
        *("engine.model_needed", "engine.options_invalid"),
        *("provider.bad_address", "provider.bad_key", "provider.unauthorized", "provider.not_found"),
    )
)
_SAME_PRESS_S = 0.2
"""An interrupt of the whole process group comes twice, once of them through the keeper."""
_SETTLE_S = 5.0
"""How long the end of an interrupted turn may take to be seen; the hub itself is bounded by two seconds."""


class Presenter(Protocol):
    async def begin(self, headline: str) -> None: ...

    async def show(self, batch: tuple[Delivery, ...]) -> None: ...

    async def end(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Message:
    """What is sent, and with what."""

    text: str
    launch: Launch
    max_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Continued:
    """A session that goes on: what it is, and what of its settings is to change."""

    session: SessionInfo
    change: SessionSettings
    directory: str | None = None
    """Where the project is now, when a person confirmed that it moved."""
    remark: str = ""
    """What the person should know of it before it goes on."""


@dataclass(kw_only=True)
class Outcome:
    """What became of our message, read from the events alone."""

    asked_here: bool
    """Whether somebody at this terminal could have been asked."""
    message_id: MessageId | None = None
    turn_id: TurnId | None = None
    interrupted: bool = False
    """Whether the person at this terminal said stop."""
    unanswered: bool = False
    exit_code: int | None = None
    problem: str = ""
    _early: list[AnyEvent] | None = None

    def note(self, event: AnyEvent) -> None:
        if self.exit_code is not None:
            return
        if self.message_id is None:  # the receipt is still on its way
            self._early = [*(self._early or []), event]
            return
        match event.body:
            case TurnStarted(message_ids=ids) if self.message_id in ids:
                self.turn_id = event.turn_id
            case MessageWithdrawn(message_id=self.message_id, by="person") if self.interrupted:
                self.exit_code = INTERRUPTED
            case MessageWithdrawn(message_id=self.message_id, by=by, reason=reason):
                self.exit_code = FAILED
                self.problem = f"the message was withdrawn by {by}" + (f": {reason}" if reason else "")
            case SessionStateChanged(read_only=why) if why:
                self.exit_code = FAILED
                self.problem = f"the record cannot be written, so the turn is not finished: {why}"
            case _ if self.turn_id is None or event.turn_id != self.turn_id:
                pass
            case PermissionDecided(decision=Expired(), by="expiry", request_id=None):
                self.unanswered = True
            case QuestionAnswered(answers=None) if not self.asked_here:
                self.unanswered = True
            case TurnCompleted(stop="end"):
                self.exit_code = UNANSWERED if self.unanswered else COMPLETED
            case TurnCompleted(stop=stop):  # at a limit: what was asked for is not done
                self.exit_code = INTERRUPTED if stop == "interrupted" else FAILED
            case TurnFailed(code=code):
                self.exit_code = MISUSED if code in _NOT_CONFIGURED else FAILED
            case _:
                pass

    def sent(self, message_id: MessageId) -> None:
        self.message_id = message_id
        early, self._early = self._early or [], None
        for event in early:
            self.note(event)


class Conversation:
    """Drives one message through any hub."""

    def __init__(
        self, hub: HubApi, streams: Streams, presenter: Presenter, *, styles: Styles, environment: Mapping[str, str]
    ) -> None:
        self._hub = hub
        self._streams = streams
        self._presenter = presenter
        self._styles = styles
        self._environment = environment
        self._interrupted_at = -math.inf
        self._showing = anyio.Lock()
        """Held from hearing a batch until it is shown."""

    async def hold(self, start: CreateSession | Continued, message: Message) -> int:
        """Create or continue a session, send the message, show what happens, return the exit code.

        Raises:
            EnginehouseError: the session or the message was refused, so nothing runs.
            AnswerGone: nobody reads stdout any more; the turn is interrupted by leaving the hub.

        When it returns LEFT, this process hears no hang-up any more: the hub still has to be left in good order, and a
        closed window says the same thing in up to three ways.
        """
        if isinstance(start, CreateSession):
            info, after, directory = await self._hub.sessions_create(start), 0, None
            settings = start.settings.updated(info.settings)
        else:
            info, after, directory = start.session, start.session.last_seq, start.directory
            settings = info.settings.updated(start.change)
        await self._presenter.begin(headline(info, settings, message.launch.provider, directory))
        if settings.mode == "yolo":
            await self._streams.say(self._styles("doubtful", YOLO))
        if isinstance(start, Continued) and start.remark:
            await self._streams.say(self._styles("doubtful", exact(start.remark)))
        sending = SendMessage(
            session_id=info.id,
            content=(Text(text=message.text),),
            launch=message.launch,
            directory=directory,
            max_steps=message.max_steps,
            unattended="deny",  # whoever could answer sits here; when they leave, the hub of this process ends
        )
        outcome = Outcome(asked_here=self._streams.can_ask)
        attach = Attach(session_id=info.id, after=after, can_answer=self._streams.can_ask)
        with HangUp() as hang_up:
            async with self._hub.sessions_attach(attach) as view, anyio.create_task_group() as tasks:
                await tasks.start(self._watch_signals, info, outcome, tasks.cancel_scope)
                tasks.start_soon(self._leave_after, hang_up.wait, outcome, tasks.cancel_scope)
                asker = None
                if self._streams.can_ask:
                    asker = Asker(self._hub, info.id, self._streams, styles=self._styles, environment=self._environment)
                    tasks.start_soon(self._leave_after, asker.serve, outcome, tasks.cancel_scope)
                tasks.start_soon(self._follow, view, outcome, asker, tasks.cancel_scope)
                if isinstance(start, Continued) and start.change != SessionSettings():
                    await self._hub.sessions_set(SetSession(session_id=info.id, settings=start.change))
                outcome.sent((await self._hub.sessions_send(sending)).message_id)
                async with self._showing:
                    if outcome.exit_code is not None:  # all of it happened before the receipt came
                        tasks.cancel_scope.cancel()
            hang_up.left = outcome.exit_code == LEFT
        await self._presenter.end()
        if outcome.problem:
            await self._streams.say(self._styles("bad", exact(outcome.problem)))
        if outcome.exit_code is None:
            raise TranscriptUnavailable("the hub ended before the turn did; `enginehouse sessions show` tells how far")
        if outcome.exit_code == UNANSWERED:
            await self._streams.say(self._styles("doubtful", "something was denied because nobody could be asked"))
        return outcome.exit_code

    async def _leave_after(
        self, person_left: Callable[[], Awaitable[None]], outcome: Outcome, whole: anyio.CancelScope
    ) -> None:
        await person_left()
        if outcome.exit_code is None:
            outcome.exit_code = LEFT
        whole.cancel()

    async def _follow(self, view: View, outcome: Outcome, asker: Asker | None, whole: anyio.CancelScope) -> None:
        async for batch in view.batches():
            async with self._showing:
                for delivery in batch:
                    outcome.note(delivery.event)
                    if asker is not None:
                        asker.note(delivery.event)
                await self._presenter.show(batch)
            if outcome.exit_code is not None:
                break
        whole.cancel()

    async def _watch_signals(
        self,
        info: SessionInfo,
        outcome: Outcome,
        whole: anyio.CancelScope,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Ctrl-C once interrupts the turn, twice leaves. SIGTERM leaves at once."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async with anyio.create_task_group() as tasks:
                async for number in signals:
                    if number == signal.SIGINT and anyio.current_time() - self._interrupted_at < _SAME_PRESS_S:
                        continue
                    if number == signal.SIGINT and self._interrupted_at == -math.inf:
                        self._interrupted_at = anyio.current_time()
                        outcome.interrupted = True
                        await self._streams.say(self._styles("doubtful", "interrupting; Ctrl-C again leaves"))
                        tasks.start_soon(self._interrupt, info, outcome, whole)
                    else:
                        outcome.exit_code = 128 + number
                        whole.cancel()

    async def _interrupt(self, info: SessionInfo, outcome: Outcome, whole: anyio.CancelScope) -> None:
        """A message that has not begun is taken back: whoever interrupts does not want it to run next."""
        try:
            await self._hub.sessions_interrupt(SessionRef(session_id=info.id))
            if outcome.turn_id is None and outcome.message_id is not None:
                await self._hub.queue_withdraw(WithdrawQueued(session_id=info.id, message_id=outcome.message_id))
        except MessageNotQueued:
            pass  # its turn had begun; its end is on the way
        except EnginehouseError as error:
            await self._streams.say(self._styles("bad", exact(str(error))))
        await anyio.sleep(_SETTLE_S)
        outcome.exit_code = INTERRUPTED
        whole.cancel()
