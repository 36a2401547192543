"""The hub in process: all sessions of one profile, the engines they run on, one lock.

Rule: it knows no vendor and no host. Engines come as factories, hosts come as callers of `HubApi`, which this class
satisfies.
"""

import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

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
from enginehouse_core.sessions.archive import Archive, identity_of, info_of
from enginehouse_core.sessions.engine_room import EngineFactory, EngineRoom
from enginehouse_core.sessions.queue import Wishes
from enginehouse_core.sessions.record import SessionRecord
from enginehouse_core.sessions.seat import EngineSeat
from enginehouse_core.sessions.session import INTERRUPT_S, Session
from enginehouse_core.transcript.load import load
from enginehouse_core.transcript.page import PAGE_EVENTS, page_after
from enginehouse_core.workspace import process_tree
from enginehouse_core.workspace.environment import command_environment
from enginehouse_core.workspace.leftovers import end_leftovers
from enginehouse_core.workspace.local import LocalWorkspace
from enginehouse_core.workspace.runner import ProcessRunner
from enginehouse_protocol.engine import Access, EngineHome, Secret
from enginehouse_protocol.errors import FileUnusable, SessionClosed, SessionMoved, UsageError
from enginehouse_protocol.events import Event, SessionChanged, SessionCreated, ToolUse
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
    PendingRequests,
    QueuedMessage,
    QueueState,
    Receipt,
    SendMessage,
    SessionInfo,
    SessionList,
    SessionRef,
    SetSession,
    View,
    WithdrawQueued,
)
from enginehouse_protocol.ids import EngineName, SessionId, new_session_id
from enginehouse_protocol.workspace import Root, Workspace

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
    ) -> None:
        """`what` is what others are told that holds the profile: `enginehouse run`."""
        self._folders = folders
        self._what = what
        self._hooks = Hooks(plugins)
        self._archive = Archive(folders.transcripts)
        self._rulebook = Rulebook(folders.permissions)
        self._person_home = os.path.realpath(os.path.expanduser("~"))
        self._secrets: dict[str, str] = {}
        self._masker = Masker({})
        self._stopping = False
        self._room = EngineRoom(factories, self._home)
        self._sessions: dict[SessionId, Session] = {}
        self._opening = anyio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self._folders.create)
        async with AsyncExitStack() as stack:
            stack.enter_context(await anyio.to_thread.run_sync(ProfileLock.acquire, self._folders.profile, self._what))
            stack.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            configure_log(self._folders.log, self._masker)
            stack.push_async_callback(anyio.to_thread.run_sync, close_log)
            await anyio.to_thread.run_sync(self._folders.create_run)
            await anyio.to_thread.run_sync(make_private, self._commands)
            await anyio.to_thread.run_sync(end_leftovers, self._commands)
            self._settings = await anyio.to_thread.run_sync(read_settings, self._folders)
            await stack.enter_async_context(self._room)
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.push_async_callback(self._stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _stop(self) -> None:
        """Interrupt what runs, write what is queued, give up the files. Bounded by each session's own deadlines."""
        self._stopping = True
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as stopping:
                for session in self._sessions.values():
                    stopping.start_soon(session.stop)

    # --- sessions -------------------------------------------------------------------------------------------------

    async def sessions_create(self, params: CreateSession) -> SessionInfo:
        directory = await anyio.to_thread.run_sync(os.path.realpath, params.directory)
        if not await anyio.to_thread.run_sync(os.path.isdir, directory):
            raise FileUnusable(params.directory, "no such directory")
        await self._room.engine(params.engine)
        self._learn(params.launch)
        session_id = new_session_id()
        scratch = self._scratch(session_id)
        await anyio.to_thread.run_sync(make_private, scratch)
        folder = self._archive.folder(session_id)
        root = Root(path=directory, identity=await anyio.to_thread.run_sync(identity_of, directory))
        branch = await anyio.to_thread.run_sync(_branch, directory)
        provider = params.launch.provider
        created = SessionCreated(
            engine=params.engine,
            roots=(root,),
            settings=params.settings,
            provider=provider.name if provider else None,
            branch=branch,
        )
        record = await SessionRecord.create(session_id, folder, scratch, self._masker, self._tasks)
        session = self._begin(record)  # from here on somebody owns the record, whatever becomes of this call
        await record.put_durably(created)
        session.seat.access = self._access(params.launch)
        return self._info(session)

    async def sessions_list(self, params: ListSessions) -> SessionList:
        listed = await anyio.to_thread.run_sync(self._archive.list, params.directory)
        live = self._sessions
        sessions = tuple(self._info(live[info.id]) if info.id in live else info for info in listed.sessions)
        return SessionList(sessions=sessions)

    async def sessions_events(self, params: EventsAfter) -> EventsPage:
        live = self._sessions.get(params.session_id)
        if live is not None:
            page, last_seq = await _live_page(live.record, params.after), live.record.log.on_disk_seq
        else:  # reading opens nothing for writing
            folder = self._archive.folder(params.session_id)
            page, last_seq = await anyio.to_thread.run_sync(_stored_page, folder, params.session_id, params.after)
        return EventsPage(lines=tuple(msgspec.Raw(delivery.line) for delivery in page), last_seq=last_seq)

    async def sessions_send(self, params: SendMessage) -> Receipt:
        session = await self._session(params.session_id)
        await self._check_directory(session, params.directory)
        access = None
        if params.launch is not None:
            self._learn(params.launch)
            access = self._access(params.launch)
        wishes = Wishes(max_steps=params.max_steps, unattended=params.unattended)
        return await session.send(params.content, access, wishes)

    async def sessions_interrupt(self, params: SessionRef) -> Nothing:
        if params.session_id in self._sessions:
            await self._sessions[params.session_id].interrupt()
        return Nothing()

    async def sessions_set(self, params: SetSession) -> SessionInfo:
        session = await self._session(params.session_id)
        await session.change(params.title, params.settings)
        return self._info(session)

    async def sessions_close(self, params: SessionRef) -> Nothing:
        session = await self._session(params.session_id)
        await session.close()
        await self._forget(session)
        return Nothing()

    async def sessions_delete(self, params: SessionRef) -> Nothing:
        if params.session_id in self._sessions:
            await self._forget(self._sessions[params.session_id])
        await anyio.to_thread.run_sync(self._archive.delete, params.session_id)
        await anyio.to_thread.run_sync(_remove_tree, self._scratch(params.session_id))
        return Nothing()

    @asynccontextmanager
    async def sessions_attach(self, params: Attach) -> AsyncGenerator[View]:
        session = await self._session(params.session_id)
        async with session.attach(params.after, can_answer=params.can_answer) as view:
            yield view

    # --- queue, permissions, questions ----------------------------------------------------------------------------

    async def queue_list(self, params: SessionRef) -> QueueState:
        return (await self._session(params.session_id)).queue.state()

    async def queue_edit(self, params: EditQueued) -> Receipt:
        session = await self._session(params.session_id)
        return await session.edit_queued(params.message_id, params.content)

    async def queue_withdraw(self, params: WithdrawQueued) -> QueuedMessage:
        return await (await self._session(params.session_id)).withdraw_queued(params.message_id)

    async def queue_resume(self, params: SessionRef) -> Nothing:
        (await self._session(params.session_id)).resume_queue()
        return Nothing()

    async def permissions_pending(self, _: Nothing, /) -> PendingRequests:
        pending = [request for session in self._sessions.values() for request in session.flow.pending]
        return PendingRequests(requests=tuple(sorted(pending, key=lambda request: request.request_id)))

    async def permissions_answer(self, params: AnswerPermission) -> Nothing:
        session = await self._session(params.session_id)
        await session.flow.answer(params.answer, params.host)
        return Nothing()

    async def questions_answer(self, params: AnswerQuestion) -> Nothing:
        session = await self._session(params.session_id)
        session.questions.answer(params.question_id, params.answers, params.host)
        return Nothing()

    # --- inside ---------------------------------------------------------------------------------------------------

    async def _session(self, session_id: SessionId) -> Session:
        """The open session, opened and repaired if need be.

        Raises:
            SessionNotFound, TranscriptUnreadable, TranscriptUnavailable
        """
        async with self._opening:
            session = self._sessions.get(session_id)
            if session is None:
                folder = self._archive.folder(session_id)
                scratch = self._scratch(session_id)
                await anyio.to_thread.run_sync(make_private, scratch)
                record = await SessionRecord.open(session_id, folder, scratch, self._masker, self._tasks)
                session = self._begin(record)
            return session

    def _begin(self, record: SessionRecord) -> Session:
        if self._stopping:
            record.log.close()
            raise SessionClosed("the hub is stopping")
        record.intake.masker = self._masker  # it may have learned while the record was being opened
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
        self._sessions[record.session_id] = session
        self._tasks.start_soon(session.drive)
        return session

    async def _forget(self, session: Session) -> None:
        """A session nobody uses holds no memory and no descriptor."""
        await session.stop()
        await session.stopped.wait()
        self._sessions.pop(session.session_id, None)

    def _info(self, session: Session) -> SessionInfo:
        return info_of(session.session_id, session.record.fold, state=session.state)

    async def _check_directory(self, session: Session, confirmed: str | None) -> None:
        """A session works where it was made; a person may say that its project has moved.

        Raises:
            SessionMoved: its directory is gone and nobody said where it is now.
            UsageError: its directory is still where it was.
        """
        recorded = session.record.fold.directory
        if confirmed is not None:
            confirmed = await anyio.to_thread.run_sync(os.path.realpath, confirmed)
        there = await anyio.to_thread.run_sync(os.path.isdir, recorded)
        if confirmed is None or confirmed == recorded:
            if not there:
                raise SessionMoved(session.session_id, recorded)
            return
        if there:
            raise UsageError(
                f"session {session.session_id} works in {recorded}, which is still there; go on from there"
            )
        root = Root(path=confirmed, identity=identity_of(confirmed))
        await session.record.put_durably(SessionChanged(roots=(root, *session.record.fold.roots[1:])))
        session.seat.stale = True

    def _learn(self, launch: Launch) -> None:
        """What is secret for one session is masked in all: the hub holds it, so it must not be written anywhere."""
        for name, value in launch.secrets.items():
            # A second value under a known name: an engine may still hold the first, so both stay masked.
            while self._secrets.get(name, value) != value:
                name += "'"
            self._secrets[name] = value
        self._masker = Masker(self._secrets)
        configure_log(self._folders.log, self._masker)
        for session in self._sessions.values():
            session.record.intake.masker = self._masker

    def _access(self, launch: Launch) -> Access:
        secret = Secret(launch.key, launch.secrets[launch.key]) if launch.key else None
        return Access(provider=launch.provider, secret=secret, environment=command_environment(launch.environment))

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
        for session in self._sessions.values():
            session.flow.rejudge()

    def _workspace(self, record: SessionRecord, access: Access) -> AbstractAsyncContextManager[Workspace]:
        runner = ProcessRunner(record.session_id, access.environment, self._commands)
        return LocalWorkspace(
            record.fold.roots,
            runner,
            scratch=str(self._scratch(record.session_id)),
            protected=(str(self._folders.profile),),
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


async def _live_page(record: SessionRecord, after: int) -> list[Delivery]:
    if after < record.log.on_disk_seq:
        async with aclosing(record.log.follow(after)) as batches:
            async for batch in batches:
                if page := [delivery for delivery in batch if isinstance(delivery.event, Event)]:
                    return page
    return []


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


def _branch(directory: str) -> str | None:
    """The branch checked out in `directory`, read without running git; None outside a repository or on no branch."""
    try:
        head = (Path(directory) / ".git" / "HEAD").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return head.removeprefix("ref: refs/heads/").strip() if head.startswith("ref: refs/heads/") else None


def _remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
