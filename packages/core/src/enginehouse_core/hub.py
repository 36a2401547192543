"""The hub in process: all sessions of one profile, the engines they run on, one lock.

Rule: it knows no vendor and no host. Engines come as factories, hosts come as callers of `HubApi`, which this class
satisfies.
"""

import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from weakref import WeakSet

import anyio
import anyio.to_thread
import msgspec

from enginehouse_core.hooks import Hooks
from enginehouse_core.keeper import command_kept
from enginehouse_core.log import close_log, configure_log
from enginehouse_core.masking import Masker
from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.policy import Judgement
from enginehouse_core.permissions.rulebook import Rulebook
from enginehouse_core.profile.folders import Folders, make_private
from enginehouse_core.profile.lock import ProfileLock
from enginehouse_core.profile.settings import read_settings
from enginehouse_core.sessions.archive import Archive, info_of
from enginehouse_core.sessions.engine_room import EngineFactory, EngineRoom
from enginehouse_core.sessions.interrupt import INTERRUPT_S
from enginehouse_core.sessions.open_sessions import KEPT_S, KEPT_WITH_ENGINE_S, OpenSessions
from enginehouse_core.sessions.outcomes import outcome_of
from enginehouse_core.sessions.project import created_in, now_and_before
from enginehouse_core.sessions.queue import Wishes
from enginehouse_core.sessions.record import SessionRecord
from enginehouse_core.sessions.seat import EngineSeat
from enginehouse_core.sessions.session import Session
from enginehouse_core.sessions.supplies import Supplied, Supplies
from enginehouse_core.transcript.load import load
from enginehouse_core.transcript.page import PAGE_EVENTS, page_after
from enginehouse_core.workspace import process_tree
from enginehouse_core.workspace.leftovers import end_leftovers
from enginehouse_core.workspace.local import LocalWorkspace
from enginehouse_core.workspace.runner import ProcessRunner
from enginehouse_protocol.engine import Access, EngineHome
from enginehouse_protocol.errors import (
    AlreadyDecided,
    FileUnusable,
    RequestNotFound,
    SessionMoved,
    SessionNotFound,
    UsageError,
)
from enginehouse_protocol.events import SessionChanged, ToolUse
from enginehouse_protocol.hookspecs import SessionFacts
from enginehouse_protocol.hub import (
    AnswerPermission,
    AnswerQuestion,
    Attach,
    CreateSession,
    Delivery,
    EditQueued,
    EventsAfter,
    EventsPage,
    Launch,
    ListSessions,
    Nothing,
    PendingQuestion,
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
from enginehouse_protocol.ids import EngineName, QuestionId, RequestId, SessionId, is_id, new_session_id
from enginehouse_protocol.workspace import Workspace

IdT = TypeVar("IdT", bound=str)
SWITCH_INTERVAL_S = 0.0005
"""How long one thread may keep the interpreter. With Python's 5 ms a busy loop starves the thread that syncs."""


class Hub:
    """Use as an async context manager. Entering takes the profile's lock; `ProfileLocked` names who has it."""

    def __init__(
        self,
        *,
        folders: Folders,
        factories: Mapping[EngineName, EngineFactory],
        what: str,
        plugins: Sequence[object] = (),
        kept_s: float = KEPT_S,
        kept_with_engine_s: float = KEPT_WITH_ENGINE_S,
    ) -> None:
        """`what` is what others are told that holds the profile: `enginehouse run`.

        `kept_s`: how long a session stays in memory when nobody uses it, the second while its engine is open.
        """
        self._folders = folders
        self._what = what
        self._hooks = Hooks(plugins)
        self._archive = Archive(folders.transcripts)
        self._rulebook = Rulebook(folders.permissions)
        self._person_home = os.path.realpath(os.path.expanduser("~"))
        self._supplies = Supplies(self._learned)
        self._records = WeakSet[SessionRecord]()
        """All that are open, those of sessions that are just being opened too."""
        self._room = EngineRoom(factories, self._home)
        self._sessions = OpenSessions(self._open, kept_s=kept_s, kept_with_engine_s=kept_with_engine_s)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self._folders.create)
        async with AsyncExitStack() as stack:
            stack.enter_context(await anyio.to_thread.run_sync(ProfileLock.acquire, self._folders.profile, self._what))
            stack.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            configure_log(self._folders.log, self._supplies.masker)
            stack.push_async_callback(anyio.to_thread.run_sync, close_log)
            await anyio.to_thread.run_sync(self._folders.create_run)
            await anyio.to_thread.run_sync(make_private, self._commands)
            await anyio.to_thread.run_sync(end_leftovers, self._commands)
            self._settings = await anyio.to_thread.run_sync(read_settings, self._folders)
            await stack.enter_async_context(self._room)
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(self._sessions.forget_unused)
            stack.push_async_callback(self._stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _stop(self) -> None:
        """Interrupt what runs, write what is queued, give up the files. Bounded by each session's own deadlines."""
        with anyio.CancelScope(shield=True):
            await self._sessions.stop_all()

    @property
    def busy(self) -> bool:
        """Whether ending this process now would cut anything off."""
        return not all(session.at_rest for session in self._sessions)

    # --- sessions -------------------------------------------------------------------------------------------------

    async def sessions_create(self, params: CreateSession) -> SessionInfo:
        directory = await anyio.to_thread.run_sync(os.path.realpath, params.directory)
        if not await anyio.to_thread.run_sync(os.path.isdir, directory):
            raise FileUnusable(params.directory, "no such directory")
        await self._room.engine(params.engine)
        session_id = _made_by_host(params.session_id) or new_session_id()
        begin = partial(self._create, session_id, params, directory)
        async with self._sessions.use(session_id, begin) as session:
            if (session.record.fold.engine, session.record.fold.directory) != (params.engine, directory):
                raise UsageError(f"there is another session {session_id} already; leave the id out, or make a new one")
            # Asked for again, it is perhaps another hub, which does not know what the session works with.
            await session.take(self._supplied(session, params.host, params.launch))
            return self._info(session)

    async def _create(self, session_id: SessionId, params: CreateSession, directory: str) -> Session:
        """A new session; or one whose creation was cut off, or that was created already."""
        folder, scratch = self._archive.folder(session_id), self._scratch(session_id)
        known = await anyio.to_thread.run_sync(self._archive.is_there, session_id)
        self._supplies.give(session_id, params.host, params.launch)  # nothing is recorded before its secrets are known
        try:
            await anyio.to_thread.run_sync(make_private, scratch)
            make = SessionRecord.open if known else SessionRecord.create
            record = await make(session_id, folder, scratch, self._supplies.masker, self._tasks)
            session = self._begin(record)  # from here on somebody owns the record, whatever becomes of this call
            if record.fold.created is None:
                await self._record_creation(session, params, directory)
        except BaseException:
            if not known:
                self._supplies.forget(session_id)
            raise
        return session

    async def _record_creation(self, session: Session, params: CreateSession, directory: str) -> None:
        try:
            created = await anyio.to_thread.run_sync(created_in, directory, params)
            await session.record.put_durably(created)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await session.stop()
            raise

    async def sessions_list(self, params: ListSessions) -> SessionList:
        listed = await anyio.to_thread.run_sync(self._archive.list, params.directory)
        live = {session.session_id: session for session in self._sessions}
        sessions = tuple(self._info(live[info.id]) if info.id in live else info for info in listed.sessions)
        return SessionList(sessions=sessions)

    async def sessions_events(self, params: EventsAfter) -> EventsPage:
        page: Sequence[Delivery]
        live = self._sessions.get(params.session_id)
        if live is not None:
            page, last_seq = await live.record.log.durable_after(params.after), live.record.log.on_disk_seq
        else:  # reading opens nothing for writing
            folder = self._archive.folder(params.session_id)
            page, last_seq = await anyio.to_thread.run_sync(_stored_page, folder, params.session_id, params.after)
        return EventsPage(lines=tuple(msgspec.Raw(delivery.line) for delivery in page), last_seq=last_seq)

    async def sessions_send(self, params: SendMessage) -> Receipt:
        async with self._sessions.use(params.session_id) as session:
            await self._check_directory(session, params.directory)
            await self._room.check_takes(session.record.fold.engine, params.content)
            supplied = self._supplied(session, params.host, params.launch)
            wishes = Wishes(max_steps=params.max_steps, unattended=params.unattended)
            return await session.send(params.content, supplied, wishes, _made_by_host(params.message_id))

    async def sessions_interrupt(self, params: SessionRef) -> Nothing:
        session = self._sessions.get(params.session_id)
        if session is not None:
            await session.interrupt()
        elif not await anyio.to_thread.run_sync(self._archive.folder(params.session_id).exists):
            raise SessionNotFound(params.session_id)
        return Nothing()

    async def sessions_set(self, params: SetSession) -> SessionInfo:
        async with self._sessions.use(params.session_id) as session:
            await session.change(params.title, params.settings)
            return self._info(session)

    async def sessions_close(self, params: SessionRef) -> Nothing:
        async with self._sessions.use(params.session_id) as session:
            await session.close()
        async with self._sessions.forgotten(params.session_id):
            self._supplies.forget(params.session_id)
        return Nothing()

    async def sessions_delete(self, params: SessionRef) -> Nothing:
        async with self._sessions.forgotten(params.session_id):
            await anyio.to_thread.run_sync(self._archive.delete, params.session_id)
            await anyio.to_thread.run_sync(partial(shutil.rmtree, ignore_errors=True), self._scratch(params.session_id))
            self._supplies.forget(params.session_id)
        return Nothing()

    @asynccontextmanager
    async def sessions_attach(self, params: Attach) -> AsyncGenerator[View]:
        async with (
            self._sessions.use(params.session_id) as session,
            session.showing.attach(params.after, can_answer=params.can_answer) as view,
        ):
            yield view

    # --- queue, permissions, questions ----------------------------------------------------------------------------

    async def queue_list(self, params: SessionRef) -> QueueState:
        async with self._sessions.use(params.session_id) as session:
            return session.queue.state()

    async def queue_edit(self, params: EditQueued) -> Receipt:
        async with self._sessions.use(params.session_id) as session:
            await self._room.check_takes(session.record.fold.engine, params.content)
            return await session.edit_queued(params.message_id, params.content)

    async def queue_withdraw(self, params: WithdrawQueued) -> QueuedMessage:
        async with self._sessions.use(params.session_id) as session:
            return await session.withdraw_queued(params.message_id)

    async def queue_resume(self, params: ResumeQueue) -> Nothing:
        async with self._sessions.use(params.session_id) as session:
            await session.resume_queue(self._supplied(session, params.host, params.launch))
        return Nothing()

    async def permissions_pending(self, _: Nothing, /) -> PendingRequests:
        pending = [request for session in self._sessions for request in session.flow.pending]
        return PendingRequests(requests=tuple(sorted(pending, key=lambda request: request.request_id)))

    async def permissions_answer(self, params: AnswerPermission) -> Nothing:
        async with self._sessions.use(params.session_id) as session:
            try:
                await session.flow.answer(params.answer, params.host)
            except RequestNotFound as error:
                raise await self._settled_before(session, params.answer.request_id, error) from None
        return Nothing()

    async def questions_pending(self, _: Nothing, /) -> PendingQuestions:
        pending = [
            PendingQuestion(session_id=session.session_id, question=question)
            for session in self._sessions
            for question in session.questions.pending
        ]
        return PendingQuestions(questions=tuple(sorted(pending, key=lambda asked: asked.question.question_id)))

    async def questions_answer(self, params: AnswerQuestion) -> Nothing:
        async with self._sessions.use(params.session_id) as session:
            try:
                await session.questions.answer(params.question_id, params.answers, params.host)
            except RequestNotFound as error:
                raise await self._settled_before(session, params.question_id, error) from None
        return Nothing()

    async def _settled_before(
        self, session: Session, asked: RequestId | QuestionId, error: RequestNotFound
    ) -> AlreadyDecided | RequestNotFound:
        """What to tell somebody whose answer comes long after: the record knows what became of the request."""
        outcome = await outcome_of(asked, session.record.log)
        return AlreadyDecided(f"this is settled already: {outcome}") if outcome else error

    # --- inside ---------------------------------------------------------------------------------------------------

    async def _open(self, session_id: SessionId) -> Session:
        folder, scratch = self._archive.folder(session_id), self._scratch(session_id)
        await anyio.to_thread.run_sync(make_private, scratch)
        record = await SessionRecord.open(session_id, folder, scratch, self._supplies.masker, self._tasks)
        if record.fold.created is None and record.last_seq <= 1:  # cut off before it began; at most that is recorded
            record.log.close()
            await record.log.wait_closed()
            raise SessionNotFound(session_id)
        return self._begin(record)

    def _begin(self, record: SessionRecord) -> Session:
        record.intake.masker = self._supplies.masker  # it may have learned while the record was being opened
        self._records.add(record)
        seat = EngineSeat(self._room, self._tasks, partial(self._workspace, record))
        session = Session(
            record,
            seat,
            self._hooks,
            self._tasks,
            judge=partial(self._judge, record),
            store_rule=partial(self._store_rule, record),
            before_turn=self._before_turn,
            end_commands=partial(_end_commands, record.session_id),
            expires_after_s=self._settings.permissions.expires_after_s,
            max_steps=self._settings.turns.max_steps,
        )
        seat.access = self._supplies.of(record.session_id) or seat.access
        self._tasks.start_soon(session.drive)
        return session

    def _info(self, session: Session) -> SessionInfo:
        return info_of(session.session_id, session.record.fold, state=session.state)

    async def _check_directory(self, session: Session, confirmed: str | None) -> None:
        """A session works where it was made; a person may say that its project has moved.

        Raises:
            SessionMoved: its directory is gone and nobody said where it is now.
            UsageError: its directory is still where it was.
            FileUnusable: the one it was said to be in is not there.
        """
        recorded = session.record.fold.directory
        root, there = await anyio.to_thread.run_sync(now_and_before, confirmed or recorded, recorded)
        if confirmed is None or root.path == recorded:
            if not there:
                raise SessionMoved(session.session_id, recorded)
            return
        if there:
            raise UsageError(
                f"session {session.session_id} works in {recorded}, which is still there; go on from there"
            )
        if not root.identity:
            raise FileUnusable(confirmed, "no such directory")
        await session.record.put_durably(SessionChanged(roots=(root, *session.record.fold.roots[1:])))
        session.seat.stale = True

    def _supplied(self, session: Session, host: str, launch: Launch | None) -> Supplied | None:
        created = session.record.fold.created
        owner = created.host if created else ""
        return self._supplies.renew(session.session_id, session.seat.access, owner, host, launch)

    def _learned(self, masker: Masker) -> None:
        configure_log(self._folders.log, masker)
        for record in self._records:
            record.intake.masker = masker

    def _judge(self, record: SessionRecord, use: ToolUse, facts: SessionFacts) -> Judgement:
        places = Places(
            roots=tuple(root.path for root in record.fold.roots),
            home=self._person_home,
            profile=os.path.realpath(self._folders.profile),
            scratch=str(self._scratch(record.session_id)),
        )
        return self._rulebook.judge(use, mode=facts.mode, places=places)

    async def _before_turn(self) -> str:
        """Take over what a person changed in the profile by hand; returns what they should know about it."""
        await anyio.to_thread.run_sync(self._rulebook.refresh, abandon_on_cancel=True)
        problem = self._rulebook.problem
        return f"your permission rules cannot be read, so everything is asked: {problem}" if problem else ""

    async def _store_rule(self, record: SessionRecord, rule: str) -> None:
        await anyio.to_thread.run_sync(self._rulebook.allow, rule, record.fold.directory)
        for session in self._sessions:
            session.flow.rejudge()

    def _workspace(self, record: SessionRecord, access: Access) -> AbstractAsyncContextManager[Workspace]:
        runner = ProcessRunner(record.session_id, access.environment, self._commands)
        return LocalWorkspace(
            record.fold.roots,
            runner,
            scratch=str(self._scratch(record.session_id)),
            protected=(str(self._folders.profile),),
            masked=self._supplies.masked,
        )

    @property
    def _commands(self) -> Path:
        """Where running commands are noted, for the case that hub and keeper both die."""
        return self._folders.run / "processes"

    def _scratch(self, session_id: SessionId) -> Path:
        return self._folders.data / "scratch" / session_id

    def _home(self, name: EngineName) -> EngineHome:
        log = logging.getLogger(f"enginehouse_engines.{name}")
        return EngineHome(state=self._folders.engine(name), kept=command_kept, log=log)


def _made_by_host(given: IdT | None) -> IdT | None:
    """An id from outside, fit to become a path. Raises: UsageError."""
    if given is not None and not is_id(given):
        raise UsageError(f"{given[:100]!r} is no id as Enginehouse makes them; leave it out, or make one in that shape")
    return given


def _stored_page(folder: Path, session_id: SessionId, after: int) -> tuple[list[Delivery], int]:
    loaded = load(folder, session_id)
    page = page_after(folder, session_id, after, loaded.index.after(after, PAGE_EVENTS))
    return page, loaded.fold.last_seq


async def _end_commands(session_id: SessionId) -> None:
    """End whatever still runs with this session's marker, also what left its group. Bounded."""

    def find() -> list[process_tree.Process]:
        return process_tree.of_session(session_id)

    end = partial(process_tree.end, find, grace_s=0.3, limit_s=INTERRUPT_S - 0.2)
    await anyio.to_thread.run_sync(end, abandon_on_cancel=True)
