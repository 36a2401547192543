"""What the views of one session are told besides its events, and who of them can answer.

Rule: it changes nothing about the session. A state is told when it is another than views know; the present is put
together from what is visible, so it never shows what is not on disk.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Literal, Protocol

import anyio
from anyio.abc import TaskGroup

from enginehouse_core.masking import Masker
from enginehouse_core.sessions.queue import MessageQueue
from enginehouse_core.sessions.record import RecordView, SessionRecord
from enginehouse_core.transcript.log import SessionLog
from enginehouse_protocol.errors import TranscriptUnavailable
from enginehouse_protocol.events import LiveState, SessionStateChanged
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import TurnId

State = Literal["idle", "running", "awaiting_permission", "closed"]
RETURNING_S = 10.0
"""How long whoever could answer may be away before nobody is there."""


class Shown(Protocol):
    """What is shown of a session."""

    @property
    def record(self) -> SessionRecord: ...

    @property
    def queue(self) -> MessageQueue: ...

    @property
    def masker(self) -> Masker: ...

    @property
    def state(self) -> State: ...

    @property
    def running_turn(self) -> TurnId | None: ...

    @property
    def wants_turn(self) -> bool: ...


class Showing:
    def __init__(
        self, session: Shown, tasks: TaskGroup, nobody_left: Callable[[], None], *, returning_s: float = RETURNING_S
    ) -> None:
        """`nobody_left` is called when for `returning_s` nobody has been attached who can answer."""
        self._session = session
        self._tasks = tasks
        self._nobody_left = nobody_left
        self._returning_s = returning_s
        self._answering = 0
        self._attachments = 0
        self._returning = 0
        self._over = anyio.Event()
        self._told: SessionStateChanged | None = None
        self._live: tuple[SessionLog, int, Delivery] | None = None

    @property
    def can_answer(self) -> bool:
        """Whether somebody is attached who can, or was a moment ago: a host that lost its connection comes back."""
        return self._answering > 0 or self._returning > 0

    @asynccontextmanager
    async def attach(self, after: int, *, can_answer: bool) -> AsyncGenerator[RecordView]:
        self._answering += can_answer
        self._attachments += can_answer
        try:
            yield RecordView(self._session.record, after, self)
        finally:
            self._answering -= can_answer
            if can_answer and not self._answering:
                self._returning += 1
                self._tasks.start_soon(self._wait_for_return, self._attachments)

    async def _wait_for_return(self, attachments: int) -> None:
        with anyio.move_on_after(self._returning_s):
            await self._over.wait()
        self._returning -= 1
        if attachments == self._attachments and not self._over.is_set():
            self._nobody_left()

    def end(self) -> None:
        """The session is given up; nobody is waited for any more."""
        self._over.set()

    # --- what views are told --------------------------------------------------------------------------------------

    def tell(self) -> None:
        """The session's state, when it is another than views know."""
        told = self._state("")
        if told == self._told or self._session.record.failure:
            return
        self._told = told
        # Carries nothing a secret could be in and needs no disk: straight to the log.
        log = self._session.record.log
        try:
            log.put(log.stamp(told, self._session.running_turn))
        except TranscriptUnavailable:
            self._told = None

    def tell_again(self) -> None:
        """To a record that was opened anew."""
        self._told = None
        self.tell()

    def live(self) -> Delivery:
        """A `live.state`. Views at one place share it."""
        log, fold = self._session.record.log, self._session.record.fold
        if self._live is None or self._live[:2] != (log, log.visible):
            whole = LiveState(
                seq=log.on_disk_seq,
                state=self._state(""),
                queue=tuple(fold.queue.values()),
                requests=tuple(fold.requests.values()),
                questions=tuple(fold.questions.values()),
            )
            self._live = log, log.visible, log.stamp(log.passing.as_of(whole), fold.open_turn)
        return self._live[2]

    def read_only(self, why: str) -> Delivery:
        """A `session.state` that says why nothing can be recorded."""
        return self._session.record.log.stamp(self._state(self._session.masker.text(why)), self._session.running_turn)

    def _state(self, read_only: str) -> SessionStateChanged:
        session = self._session
        waiting = len(session.queue)  # views hear of it behind the events that made it so
        return SessionStateChanged(
            state=session.state,
            queued=waiting,
            held=session.queue.held and (waiting > 0 or session.wants_turn),
            read_only=read_only,
        )
