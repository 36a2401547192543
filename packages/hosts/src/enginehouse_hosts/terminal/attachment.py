"""Looking at a session that goes on without us; `enginehouse sessions attach` is this.

Rule: whoever looks changes nothing. Ctrl-C detaches at once and interrupts nobody; what is asked of a person may be
answered here, and the first answer counts, wherever it comes from.
"""

import signal
from collections.abc import Awaitable, Callable, Mapping

import anyio
from anyio.abc import TaskStatus

from enginehouse_hosts.terminal.asking import Asker
from enginehouse_hosts.terminal.conversation import HUB_GONE, Presenter
from enginehouse_hosts.terminal.exit_codes import COMPLETED, FAILED, LEFT
from enginehouse_hosts.terminal.hang_up import HangUp
from enginehouse_hosts.terminal.headline import headline
from enginehouse_hosts.terminal.plain_text import exact
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_hosts.terminal.styles import StyleName, Styles
from enginehouse_protocol.events import AnyEvent, LiveState, SessionClosed, SessionStateChanged, TurnStarted
from enginehouse_protocol.hub import Attach, EventsAfter, HubApi, SessionInfo, View

_MOST_TURNS = 30
_MOST_EVENTS = 200


class Attachment:
    """One view of one session, until somebody detaches it or nothing more can come."""

    def __init__(
        self, hub: HubApi, streams: Streams, presenter: Presenter, *, styles: Styles, environment: Mapping[str, str]
    ) -> None:
        self._hub = hub
        self._streams = streams
        self._presenter = presenter
        self._style = styles
        self._environment = environment
        self._exit_code: int | None = None
        self._over = False
        """Nothing more can come."""
        self._told = ""  # what was said last about the state of the session

    async def watch(self, info: SessionInfo, after: int | None, *, for_person: bool) -> int:
        """Show what came after `after` (None: as much as a person wants to read), then what comes; returns the exit
        code. `for_person`: somebody reads it, who may be asked.

        Raises:
            EnginehouseError: the session cannot be attached to.
            AnswerGone: nobody reads stdout any more.
        """
        if after is None:
            after = await self._recent(info)
        can_answer = for_person and self._streams.can_ask
        if for_person:
            await self._introduce(info, after)
        with HangUp() as hang_up:
            attach = Attach(session_id=info.id, after=after, can_answer=can_answer)
            async with self._hub.sessions_attach(attach) as view, anyio.create_task_group() as tasks:
                await tasks.start(self._watch_signals, tasks.cancel_scope)
                tasks.start_soon(self._leave_after, hang_up.wait, LEFT, tasks.cancel_scope)
                asker = None
                if can_answer:
                    asker = Asker(self._hub, info.id, self._streams, styles=self._style, environment=self._environment)
                    tasks.start_soon(self._leave_after, asker.serve, COMPLETED, tasks.cancel_scope)
                await self._follow(view, asker, info, for_person=for_person)
                tasks.cancel_scope.cancel()
            hang_up.left = self._exit_code == LEFT
        if for_person and self._exit_code == COMPLETED and not self._over:
            await self._say("faint", "detached; the session goes on")
        return COMPLETED if self._exit_code is None else self._exit_code

    async def _recent(self, info: SessionInfo) -> int:
        """Where the last turns begin, or the last events of a turn that has had many."""
        window = max(0, info.last_seq - _MOST_EVENTS)
        page = await self._hub.sessions_events(EventsAfter(session_id=info.id, after=window))
        turns = [event.seq for event in page.events if isinstance(event.body, TurnStarted)]
        if not turns or (not window and len(turns) <= _MOST_TURNS):
            return window
        begin = turns[-_MOST_TURNS:][0] - 1
        return begin if begin - window <= _MOST_EVENTS // 2 or len(turns) > _MOST_TURNS else window

    async def _introduce(self, info: SessionInfo, after: int) -> None:
        await self._presenter.begin(headline(info, info.settings, None, None))
        if info.state != "closed":
            await self._say(
                "faint",
                f"Ctrl-C detaches, the session goes on; `enginehouse sessions interrupt {info.id}` stops its turn",
            )
        if after:
            earlier = f"{after} earlier events are" if after > 1 else "1 earlier event is"
            await self._say("faint", f"({earlier} not shown here; `enginehouse sessions show {info.id}` shows all)")

    async def _follow(self, view: View, asker: Asker | None, info: SessionInfo, *, for_person: bool) -> None:
        why = ""
        try:
            async for batch in view.batches():
                if asker is not None:
                    for delivery in batch:
                        asker.note(delivery.event)
                    await asker.put_away()
                await self._presenter.show(batch)
                if for_person:
                    for delivery in batch:
                        await self._tell_state(delivery.event, info)
                if any(_closes(delivery.event) for delivery in batch):
                    break
            else:
                why = "the hub ended, or the session was deleted"
        except HUB_GONE as gone:
            why = f"the hub is gone: {gone}; `enginehouse sessions attach {info.id}` comes back"
        self._over = True
        if self._exit_code is None:
            self._exit_code = FAILED if why else COMPLETED
            if why:
                await self._say("bad", exact(why))

    async def _tell_state(self, event: AnyEvent, info: SessionInfo) -> None:
        """What a person can do something about, once."""
        match event.body:
            case LiveState(state=state) | (SessionStateChanged() as state):
                pass
            case _:
                return
        said = ""
        if state.read_only:
            said = f"the record cannot be written, so nothing goes on: {state.read_only}"
        elif state.held:
            said = f"the queue is held; `enginehouse sessions queue resume {info.id}` lets it go on"
        if said and said != self._told:
            await self._say("doubtful", exact(said))
        self._told = said

    async def _leave_after(
        self, person_left: Callable[[], Awaitable[None]], code: int, whole: anyio.CancelScope
    ) -> None:
        await person_left()
        self._exit_code = code if self._exit_code is None else self._exit_code
        whole.cancel()

    async def _watch_signals(
        self, whole: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                self._exit_code = COMPLETED if number == signal.SIGINT else 128 + number
                whole.cancel()

    async def _say(self, style: StyleName, text: str) -> None:
        await self._streams.say(self._style(style, text))


def _closes(event: AnyEvent) -> bool:
    match event.body:
        case (
            SessionClosed() | SessionStateChanged(state="closed") | LiveState(state=SessionStateChanged(state="closed"))
        ):
            return True
        case _:
            return False
