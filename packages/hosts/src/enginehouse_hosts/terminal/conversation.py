"""One message to an agent, from sending it to the end of its turn; `enginehouse run` is this.

Rule: the view is attached before the message is sent, so nothing is missed; and it is followed until the turn of *this*
message has ended, whatever else the queue held before it.

What it returns is the process's exit code, one of `exit_codes`, or 128 + n when signal n ended it.
"""

import math
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import anyio
import msgspec
from anyio.abc import TaskStatus

from enginehouse_hosts.terminal.asking import HOST, Asker
from enginehouse_hosts.terminal.exit_codes import INTERRUPTED, LEFT, UNANSWERED
from enginehouse_hosts.terminal.hang_up import HangUp
from enginehouse_hosts.terminal.headline import YOLO, headline
from enginehouse_hosts.terminal.outcome import Outcome
from enginehouse_hosts.terminal.plain_text import exact
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.content import Content, Image, Text
from enginehouse_protocol.errors import (
    ConnectionLost,
    EnginehouseError,
    LocalSocketError,
    MessageNotQueued,
    TranscriptUnavailable,
)
from enginehouse_protocol.hub import (
    Attach,
    CreateSession,
    Delivery,
    EventsAfter,
    HubApi,
    Launch,
    SendMessage,
    SessionInfo,
    SessionRef,
    SetSession,
    View,
    WithdrawQueued,
)
from enginehouse_protocol.ids import MessageId, new_message_id
from enginehouse_protocol.settings import SessionSettings

HUB_GONE = (ConnectionLost, LocalSocketError)
"""What a hub in another process may add to what a hub raises: it is not there any more."""
_SAME_PRESS_S = 0.2
"""An interrupt of the whole process group comes twice, once of them through the keeper."""
_SETTLE_S = 5.0
"""How long the end of an interrupted turn may take to be seen; the hub itself is bounded by two seconds."""
_LOOK_AGAIN_S = 0.05
_LEAVE_S = 2.5
"""How long leaving may take: what was asked for is interrupted or taken back."""


class Presenter(Protocol):
    async def begin(self, headline: str, mine: MessageId | None = None) -> None:
        """Before the first batch. `mine`: the message whose answer is wanted."""
        ...

    async def show(self, batch: tuple[Delivery, ...]) -> None: ...

    async def end(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Message:
    """What is sent, and with what."""

    text: str
    images: tuple[Image, ...] = ()
    launch: Launch
    max_steps: int | None = None
    unattended: Literal["wait", "deny"] = "deny"
    """Usually whoever could answer sits here; when they leave, it is interrupted."""
    message_id: MessageId = field(default_factory=new_message_id)

    @property
    def content(self) -> tuple[Content, ...]:
        return (Text(text=self.text), *self.images)


@dataclass(frozen=True, kw_only=True)
class Continued:
    """A session that goes on: what it is, and what of its settings is to change."""

    session: SessionInfo
    change: SessionSettings
    directory: str | None = None
    """Where the project is now, when a person confirmed that it moved."""
    remark: str = ""
    """What the person should know of it before it goes on."""


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
            info = await self._hub.sessions_create(msgspec.structs.replace(start, host=HOST))
            after, directory = 0, None
            settings = start.settings.updated(info.settings)
        else:
            info, after, directory = start.session, start.session.last_seq, start.directory
            settings = info.settings.updated(start.change)
        await self._presenter.begin(
            headline(info, settings, message.launch.provider, directory), mine=message.message_id
        )
        if settings.mode == "yolo":
            await self._streams.say(self._styles("doubtful", YOLO))
        if isinstance(start, Continued) and start.remark:
            await self._streams.say(self._styles("doubtful", exact(start.remark)))
        sending = SendMessage(
            host=HOST,
            session_id=info.id,
            content=message.content,
            launch=message.launch,
            directory=directory,
            max_steps=message.max_steps,
            unattended=message.unattended,
            message_id=message.message_id,
        )
        outcome = Outcome(
            session_id=info.id, message_id=message.message_id, asked_here=self._streams.can_ask, seq=after
        )
        with HangUp() as hang_up:
            try:
                await self._until_over(start, sending, after, outcome, hang_up)
            finally:
                await self._take_back(outcome)
            hang_up.left = outcome.exit_code == LEFT
        await self._presenter.end()
        if outcome.problem:
            await self._streams.say(self._styles("bad", exact(outcome.problem)))
        if outcome.exit_code is None:
            raise TranscriptUnavailable("the hub ended before the turn did; `enginehouse sessions show` tells how far")
        if outcome.exit_code == UNANSWERED:
            await self._streams.say(self._styles("doubtful", "something was denied because nobody could be asked"))
        return outcome.exit_code

    async def _until_over(
        self, start: CreateSession | Continued, sending: SendMessage, after: int, outcome: Outcome, hang_up: HangUp
    ) -> None:
        attach = Attach(session_id=sending.session_id, after=after, can_answer=self._streams.can_ask)
        async with self._hub.sessions_attach(attach) as view, anyio.create_task_group() as tasks:
            await tasks.start(self._watch_signals, outcome, tasks.cancel_scope)
            tasks.start_soon(self._leave_after, hang_up.wait, outcome, tasks.cancel_scope)
            asker = None
            if self._streams.can_ask:
                asker = Asker(
                    self._hub, sending.session_id, self._streams, styles=self._styles, environment=self._environment
                )
                tasks.start_soon(self._leave_after, asker.serve, outcome, tasks.cancel_scope)
            tasks.start_soon(self._follow, view, outcome, asker, tasks.cancel_scope)
            try:
                if isinstance(start, Continued) and start.change != SessionSettings():
                    await self._hub.sessions_set(SetSession(session_id=sending.session_id, settings=start.change))
                await self._send(sending, outcome)
            except HUB_GONE as gone:
                outcome.lost_hub(str(gone))
            if outcome.waits or outcome.lost or (outcome.over and outcome.read_only):
                tasks.cancel_scope.cancel()

    async def _send(self, sending: SendMessage, outcome: Outcome) -> None:
        """A message that was refused is nothing to take back; one whose receipt did not come may be."""
        outcome.on_its_way = True
        try:
            receipt = await self._hub.sessions_send(sending)
        except EnginehouseError as error:
            outcome.on_its_way = isinstance(error, HUB_GONE)
            raise
        outcome.sent(receipt.seq)
        await self._look_at_queue(outcome)

    async def _look_at_queue(self, outcome: Outcome) -> None:
        if outcome.may_be_held():
            outcome.found(await self._hub.queue_list(SessionRef(session_id=outcome.session_id)))

    async def _take_back(self, outcome: Outcome) -> None:
        """Whoever leaves does not want it to go on, nor to begin later. Others' turns are none of our business."""
        if outcome.over or outcome.lost or not outcome.on_its_way:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(_LEAVE_S):
            try:
                await self._end_ours(outcome)
            except EnginehouseError:
                pass  # without a hub nothing goes on

    async def _end_ours(self, outcome: Outcome) -> None:
        """Withdraw the message, or interrupt its turn, or find that it is over. A message that is neither waiting nor
        begun is on its way from one to the other."""
        ahead = outcome
        while True:
            if ahead.turn_id is None and await self._withdrawn(outcome):
                return
            ahead = await self._seen_from_the_record(ahead)
            if ahead.over:
                return
            if ahead.turn_id is not None:
                await self._hub.sessions_interrupt(SessionRef(session_id=outcome.session_id))
                return
            await anyio.sleep(_LOOK_AGAIN_S)

    async def _withdrawn(self, outcome: Outcome) -> bool:
        try:
            await self._hub.queue_withdraw(WithdrawQueued(session_id=outcome.session_id, message_id=outcome.message_id))
        except MessageNotQueued:
            return False
        return True

    async def _seen_from_the_record(self, outcome: Outcome) -> Outcome:
        """What the view has shown may be old: a screen is slower than a session."""
        ahead = replace(outcome)
        while True:
            before = ahead.seq
            page = await self._hub.sessions_events(EventsAfter(session_id=ahead.session_id, after=before))
            for event in page.events:
                ahead.note(event)
            if ahead.over or ahead.seq in (before, page.last_seq):
                return ahead

    async def _leave_after(
        self, person_left: Callable[[], Awaitable[None]], outcome: Outcome, whole: anyio.CancelScope
    ) -> None:
        await person_left()
        if outcome.exit_code is None:
            outcome.exit_code = LEFT
        whole.cancel()

    async def _follow(self, view: View, outcome: Outcome, asker: Asker | None, whole: anyio.CancelScope) -> None:
        try:
            async for batch in view.batches():
                for delivery in batch:
                    outcome.note(delivery.event)
                    if asker is not None:
                        asker.note(delivery.event)
                if asker is not None:
                    await asker.put_away()
                await self._presenter.show(batch)
                await self._look_at_queue(outcome)
                if outcome.over:
                    break
        except HUB_GONE as gone:
            outcome.lost_hub(str(gone))
        whole.cancel()

    async def _watch_signals(
        self, outcome: Outcome, whole: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
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
                        tasks.start_soon(self._interrupt, outcome, whole)
                    else:
                        outcome.exit_code = 128 + number
                        whole.cancel()

    async def _interrupt(self, outcome: Outcome, whole: anyio.CancelScope) -> None:
        """A message that has not begun is taken back, and what runs before it goes on: it may be another person's."""
        with anyio.move_on_after(_SETTLE_S):
            await outcome.receipt.wait()
            try:
                await self._end_ours(outcome)
            except EnginehouseError as error:
                await self._streams.say(self._styles("bad", exact(str(error))))
            await anyio.sleep_forever()  # until its end is seen
        outcome.exit_code = INTERRUPTED
        whole.cancel()
