"""The verbs of the hub, asked over whatever connection there is.

Rule: every verb is safe to repeat, so what a lost connection left open is asked again. What would make something new
gets its id here first, by which the hub recognises the repetition.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from enginehouse_hosts.client.link import Dial, Link
from enginehouse_hosts.client.remote_view import RemoteView
from enginehouse_protocol.errors import ConnectionLost, EnginehouseError, SessionNotFound
from enginehouse_protocol.hub import (
    AnswerPermission,
    AnswerQuestion,
    Attach,
    CreateSession,
    EditQueued,
    EventsAfter,
    EventsPage,
    ListSessions,
    Nothing,
    PendingQuestions,
    PendingRequests,
    QueuedMessage,
    QueueState,
    Receipt,
    ResumeQueue,
    SendMessage,
    SessionInfo,
    SessionList,
    SessionRef,
    SetSession,
    View,
    WithdrawQueued,
)
from enginehouse_protocol.ids import new_message_id, new_session_id
from enginehouse_protocol.methods import PROTOCOL_VERSION, HostInfo, Initialize, call
from enginehouse_protocol.rpc.errors_on_the_wire import coded

CALL_S = 30.0
"""For an ordinary call, reaching the hub again included."""
STOP_S = 15.0
"""The hub returns to idle within two seconds; a person who stops something does not wait half a minute to hear so."""
START_S = 90.0
"""For what may have to start an engine first."""

ResultT = TypeVar("ResultT", bound=msgspec.Struct)


class RemoteHub:
    """A `HubApi`; use as an async context manager. Entering connects, and raises what prevents that.

    Every method may also raise ConnectionLost (the hub ended on purpose), ServiceUnavailable (it died too often) and
    what reaching it again raised; once one of these was raised it stays so. An error of code `deadline`: no answer.
    """

    def __init__(self, dial: Dial, host: HostInfo, *, can_answer: bool = False, hint: str = "") -> None:
        """`can_answer`: a person can be asked here. `hint` says where to look when the hub keeps dying."""
        self._link = Link(dial, Initialize(protocol_version=PROTOCOL_VERSION, host=host, can_answer=can_answer), hint)
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            await self._tasks.start(self._link.keep)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # an error of the body is none of the tasks'

    # --- sessions -------------------------------------------------------------------------------------------------

    async def sessions_create(self, params: CreateSession) -> SessionInfo:
        if params.session_id is None:
            params = msgspec.structs.replace(params, session_id=new_session_id())
        return await self._ask("sessions.create", params, SessionInfo, START_S)

    async def sessions_list(self, params: ListSessions) -> SessionList:
        return await self._ask("sessions.list", params, SessionList, CALL_S)

    async def sessions_events(self, params: EventsAfter) -> EventsPage:
        return await self._ask("sessions.events", params, EventsPage, CALL_S)

    async def sessions_send(self, params: SendMessage) -> Receipt:
        if params.message_id is None:
            params = msgspec.structs.replace(params, message_id=new_message_id())
        return await self._ask("sessions.send", params, Receipt, START_S)

    async def sessions_interrupt(self, params: SessionRef) -> Nothing:
        return await self._ask("sessions.interrupt", params, Nothing, STOP_S)

    async def sessions_set(self, params: SetSession) -> SessionInfo:
        return await self._ask("sessions.set", params, SessionInfo, START_S)

    async def sessions_close(self, params: SessionRef) -> Nothing:
        return await self._ask("sessions.close", params, Nothing, STOP_S)

    async def sessions_delete(self, params: SessionRef) -> Nothing:
        return await self._ask("sessions.delete", params, Nothing, CALL_S, done_before=(SessionNotFound, Nothing()))

    @asynccontextmanager
    async def sessions_attach(self, params: Attach) -> AsyncGenerator[View]:
        await self._link.line(for_view=True)  # raises what makes every further word useless
        view = RemoteView(self._link, params)
        try:
            await self._tasks.start(view.keep)
            yield view
        finally:
            await view.leave()

    # --- queue, permissions, questions ----------------------------------------------------------------------------

    async def queue_list(self, params: SessionRef) -> QueueState:
        return await self._ask("queue.list", params, QueueState, CALL_S)

    async def queue_edit(self, params: EditQueued) -> Receipt:
        return await self._ask("queue.edit", params, Receipt, CALL_S)

    async def queue_withdraw(self, params: WithdrawQueued) -> QueuedMessage:
        return await self._ask("queue.withdraw", params, QueuedMessage, CALL_S)

    async def queue_resume(self, params: ResumeQueue) -> Nothing:
        return await self._ask("queue.resume", params, Nothing, START_S)

    async def permissions_pending(self, _: Nothing, /) -> PendingRequests:
        return await self._ask("permissions.pending", _, PendingRequests, CALL_S)

    async def permissions_answer(self, params: AnswerPermission) -> Nothing:
        return await self._ask("permissions.answer", params, Nothing, CALL_S)

    async def questions_pending(self, _: Nothing, /) -> PendingQuestions:
        return await self._ask("questions.pending", _, PendingQuestions, CALL_S)

    async def questions_answer(self, params: AnswerQuestion) -> Nothing:
        return await self._ask("questions.answer", params, Nothing, CALL_S)

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        name: str,
        params: msgspec.Struct,
        result: type[ResultT],
        deadline_s: float,
        done_before: tuple[type[EnginehouseError], ResultT] | None = None,
    ) -> ResultT:
        """`done_before`: the error by which a repetition shows that the first time did it, and the result then."""
        repeated = False
        with anyio.move_on_after(deadline_s):
            while True:
                line = await self._link.line()
                try:
                    return await call(line.peer, name, params, result, deadline_s=None)
                except EnginehouseError as error:
                    if isinstance(error, ConnectionLost) and line.lost:
                        repeated = True
                    elif repeated and done_before is not None and isinstance(error, done_before[0]):
                        return done_before[1]
                    else:
                        raise
        raise coded("deadline", f"no answer to {name} within {deadline_s:g} s")
