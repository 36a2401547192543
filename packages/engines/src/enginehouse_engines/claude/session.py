"""One session with Claude: turns in, what the translator says out, and a new life of the CLI when one has ended.

Rules: the reader feeds the translator and never waits; one task tells core what was said, in order. Whatever happens to
the process, the turn ends with what the translator makes of it, and the next turn resumes. An interrupt that the CLI
does not carry out in time ends the process instead: the person was promised two seconds.
"""

import logging
from collections import deque
from typing import Final
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from enginehouse_engines.claude.client import Client, live
from enginehouse_engines.claude.invocation import TOOLS_OFF, Start, settings_that_beat_ours
from enginehouse_engines.claude.options import options_of
from enginehouse_engines.claude.outbox import Outbox
from enginehouse_engines.claude.permissions import Permissions
from enginehouse_engines.claude.prompts import blocks_of, text_block
from enginehouse_engines.claude.saying import (
    Emit,
    ModeChanged,
    NativeId,
    NotUnderstood,
    ToolsOffered,
    TurnEnded,
    WantsTurn,
)
from enginehouse_engines.claude.settings import Settings
from enginehouse_engines.claude.translator import Translator
from enginehouse_protocol.engine import Applied, EngineHome, Fresh, Opening, Resume, Turn, TurnEnd
from enginehouse_protocol.errors import (
    EngineError,
    EngineExited,
    MalformedData,
    NativeSessionLost,
    TranscriptUnavailable,
)
from enginehouse_protocol.events import EngineBody, NativeUpdated, Notice, ToolResult, ToolUse, UsageUpdated
from enginehouse_protocol.ids import CallId, TurnId
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.settings import SessionSettings

_WRITE_S: Final = 0.3
_STOP_S: Final = 1.1
"""What an interrupt may take before the process is ended; core waits 1.5 s."""
_CLOSE_S: Final = 3.0
_TELL_S: Final = 1.0
_BEGAN_AGAIN: Final = (
    "Claude ended before it had saved this conversation. It is told again what you had said; what it had answered is "
    "lost to it."
)


class _Run:
    """One `run`, from its call to its end."""

    def __init__(self, turn_id: TurnId) -> None:
        self.turn_id = turn_id
        self.prompt: str | None = None
        """Uuid of our prompt; empty: the CLI began this turn; None: nothing was written yet."""
        self.stopping = False
        self.starting = anyio.CancelScope()
        self.heard = False
        """Whether the CLI has said anything of this turn."""
        self.outcome: TurnEnd | EngineError | TranscriptUnavailable | None = None
        self.ended = anyio.Event()

    def end(self, outcome: TurnEnd | EngineError | TranscriptUnavailable) -> None:
        if not self.ended.is_set():
            self.outcome = outcome
            self.ended.set()


class ClaudeSession:
    """`begin` and `leave` stand around everything else; one task calls both."""

    def __init__(self, opening: Opening, home: EngineHome, tasks: TaskGroup) -> None:
        """`tasks`: the session's own; it is cancelled after `leave`."""
        self._opening = opening
        self._home = home
        self._tasks = tasks
        self._log: logging.Logger = home.log
        self._port = opening.port
        self._translator = Translator(cwd=opening.roots[0].path)
        if isinstance(opening.start, Resume):
            self._translator.native_id = opening.start.native_id
        self._outbox = Outbox()
        self._permissions = Permissions(
            opening.port, self._translator, self._outbox, self._recorded, self._is_stopping, home.log
        )
        self._settings = Settings(opening.settings)
        self._is_stored = isinstance(opening.start, Resume)
        """Whether the CLI's own store has this session for certain: not before a first turn has ended."""
        self._untold: dict[TurnId, list[JsonObject]] = {}
        """Prompts of turns that the store may not have."""
        self._client: Client | None = None
        self._over = anyio.Event()
        self._run: _Run | None = None
        self._held = False
        """The CLI speaks by itself and waits for a turn to say it in."""
        self._resumed = anyio.Event()
        self._interrupted: deque[TurnId] = deque(maxlen=16)
        self._uses: dict[CallId, ToolUse] = {}
        """Uses that are recorded and have no result."""
        self._recorded_more = anyio.Event()
        self._silent = False
        """Nothing can be recorded: what is said of this life goes nowhere."""
        self._unheard = False
        """The session is left while the CLI waited for a turn that will not come: only what is owed is said."""

    # --- its life -------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Raises `EngineError`; `NativeSessionLost` before anything is said."""
        await self._living()
        self._tasks.start_soon(self._tell)
        access = self._opening.access
        warning = await anyio.to_thread.run_sync(
            settings_that_beat_ours, access, options_of(access.provider), self._home
        )
        if warning:
            await self._port.emit(Notice(level="warning", code="claude.other_key", text=warning))

    async def leave(self) -> None:
        """End the process, and say what is still owed. Bounded."""
        with anyio.move_on_after(_CLOSE_S, shield=True):
            if self._client is not None:
                if self._translator.in_turn:
                    self._client.cli.kill()
                self._client.leave()
                await self._over.wait()
        self._outbox.put(self._translator.closing())
        if self._held:
            self._unheard = True
            self._resumed.set()
        with anyio.move_on_after(_TELL_S, shield=True):
            await self._outbox.emptied()

    async def _living(self) -> Client:
        """The connected CLI; a new life that resumes where the last one ended, if there is none."""
        if self._client is None:
            try:
                self._client = await self._life()
            except NativeSessionLost:
                if self._is_stored:
                    raise
                self._translator.native_id = ""
                self._client = await self._life()
                await self._port.emit(Notice(level="warning", code="claude.began_again", text=_BEGAN_AGAIN))
            self._settings.offered(self._client.offers)
        return self._client

    async def _life(self) -> Client:
        start = Start(
            access=self._opening.access,
            settings=self._settings.current,
            directory=self._opening.roots[0].path,
            more_directories=tuple(root.path for root in self._opening.roots[1:]),
            instructions=self._opening.instructions,
            resume=self._translator.native_id,
        )
        self._over = over = anyio.Event()
        early: list[bytes] | None = []
        """What it says before it is connected counts only if it then is."""

        def heard(frame: bytes) -> None:
            if early is None:
                self._heard(frame)
            else:
                early.append(frame)

        def on_end(why: str) -> None:
            self._client = None
            self._outbox.put(self._translator.died(why))
            over.set()

        client: Client = await self._tasks.start(live, start, self._home, self._permissions, heard, on_end)
        for frame in early:
            self._heard(frame)
        early = None
        if over.is_set():
            raise EngineExited("claude ended as soon as it was connected")
        return client

    def _heard(self, frame: bytes) -> None:
        said = self._translator.feed(frame)
        if self._run is not None and any(isinstance(each, Emit) for each in said):
            self._run.heard = True
        self._outbox.put(said)

    # --- the contract ---------------------------------------------------------------------------------------------

    async def run(self, turn: Turn) -> TurnEnd:
        run = await self._once(turn)
        if run.prompt and isinstance(run.outcome, EngineExited) and not run.heard:
            # It had ended, unnoticed so far, and nothing of this turn has happened: a new life takes it.
            self._log.info("claude ended before this turn began; it begins again")
            run = await self._once(turn)
        if isinstance(run.outcome, TurnEnd):
            return run.outcome
        assert run.outcome is not None
        raise run.outcome

    async def _once(self, turn: Turn) -> _Run:
        run = self._run = _Run(turn.id)
        try:
            if turn.id in self._interrupted or not await self._begun(run, turn):
                run.end(TurnEnd(stop="interrupted" if turn.id in self._interrupted else "end"))
            self._resumed.set()
            await run.ended.wait()
        except anyio.get_cancelled_exc_class():
            # Core leaves the session after this; what the turn used is to have its results before.
            with anyio.move_on_after(_TELL_S, shield=True):
                if run.prompt is not None and self._client is not None:
                    self._client.cli.kill()
                    await run.ended.wait()
            raise
        finally:
            if self._run is run:
                self._run = None
        return run

    async def interrupt(self, turn_id: TurnId) -> None:
        self._interrupted.append(turn_id)
        run = self._run
        if run is None or run.turn_id != turn_id or run.stopping:
            return
        run.stopping = True
        run.starting.cancel()
        if run.prompt is None:
            return
        self._outbox.drop()
        self._outbox.put(self._translator.interrupted())
        client = self._client
        if client is not None:
            with anyio.move_on_after(_WRITE_S):
                try:
                    await client.stream.tell("interrupt")
                except EngineExited:
                    return  # its end ends the turn
        self._tasks.start_soon(self._end_if_late, run)

    async def apply(self, change: SessionSettings) -> Applied:
        return await self._settings.apply(change, None if self._client is None else self._client.stream)

    # --- a turn ---------------------------------------------------------------------------------------------------

    async def _begun(self, run: _Run, turn: Turn) -> bool:
        """Whether there is anything to wait for."""
        if not turn.messages:
            if not self._held:
                return False  # it was said inside an earlier turn
            run.prompt = ""
            self._outbox.put(self._translator.begin_turn(turn.id, ""))
            return True
        prompt = await blocks_of(turn.messages, self._opening.history, self._log)
        client: Client | None = None
        with run.starting:
            client = await self._living()
        if client is None or run.stopping:
            return False
        earlier = self._told_before(turn.id)
        self._untold[turn.id] = prompt
        run.prompt = str(uuid4())
        self._silent = False
        self._outbox.put(self._translator.begin_turn(turn.id, run.prompt))
        try:
            await client.stream.send(
                {
                    "type": "user",
                    "uuid": run.prompt,
                    "message": {"role": "user", "content": [*earlier, *prompt]},
                    "parent_tool_use_id": None,
                    "session_id": self._translator.native_id,
                    "client_composed": True,  # a slash or an @ in it is text
                }
            )
        except EngineExited:
            self._log.info("claude ended before it could be told something; its end ends the turn")
        return True

    def _told_before(self, turn_id: TurnId) -> list[JsonObject]:
        """What a CLI that knows nothing yet is to know first."""
        if self._translator.native_id:
            return []
        start = self._opening.start
        recap = [text_block(start.recap)] if isinstance(start, Fresh) and start.recap else []
        return recap + [block for turn, blocks in self._untold.items() if turn != turn_id for block in blocks]

    async def _end_if_late(self, run: _Run) -> None:
        with anyio.move_on_after(_STOP_S):
            await run.ended.wait()
        if not run.ended.is_set() and self._client is not None:
            self._log.warning("claude did not stop in time; its process is ended and the next turn resumes")
            self._client.cli.kill()

    def _is_stopping(self) -> bool:
        return self._run is not None and self._run.stopping

    # --- telling core ---------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        """For as long as the session lives: do what the translator said, in order."""
        while True:
            said = await self._outbox.take()
            match said:
                case Emit(body=body):
                    await self._emit(body)
                case WantsTurn(origin=origin):
                    await self._wait_for_a_turn(origin)
                case TurnEnded():
                    self._ended(said)
                case NativeId() | ModeChanged():
                    self._log.debug("claude: %s", said)
                case ToolsOffered(tools=tools):
                    if unwanted := sorted(set(tools) & set(TOOLS_OFF)):
                        self._log.error("claude offers tools that were switched off: %s", ", ".join(unwanted))
                case NotUnderstood(what=what):
                    self._log.info("claude said something new: %s", what)

    async def _emit(self, body: EngineBody) -> None:
        if self._silent or (self._unheard and not self._is_owed(body)):
            return
        try:
            await self._port.emit(body)
        except TranscriptUnavailable as error:
            self._cannot_record(error)
            return
        except MalformedData as error:
            self._log.error("what claude said cannot be recorded: %s", error)
            return
        if isinstance(body, ToolUse):
            self._uses[body.call_id] = body
            recorded, self._recorded_more = self._recorded_more, anyio.Event()
            recorded.set()
        elif isinstance(body, ToolResult):
            self._uses.pop(body.call_id, None)
        elif isinstance(body, NativeUpdated) and body.turn_ref is not None:
            self._is_stored = True
            self._untold.clear()

    def _is_owed(self, body: EngineBody) -> bool:
        return isinstance(body, UsageUpdated) or (isinstance(body, ToolResult) and body.call_id in self._uses)

    async def _recorded(self, call_id: CallId) -> ToolUse:
        while call_id not in self._uses:
            await self._recorded_more.wait()
        return self._uses[call_id]

    def _cannot_record(self, error: TranscriptUnavailable) -> None:
        """Nothing more may run: the process ends, and what it says of that is heard by nobody."""
        self._silent = True
        if self._client is not None:
            self._client.cli.kill()
        if self._run is not None:
            self._run.end(error)

    async def _wait_for_a_turn(self, origin: str) -> None:
        if self._run is not None and not self._run.ended.is_set():
            return
        self._held = True
        self._resumed = anyio.Event()
        self._port.request_turn(origin)
        try:
            await self._resumed.wait()
        finally:
            self._held = False

    def _ended(self, said: TurnEnded) -> None:
        run = self._run
        if run is None or (said.prompt_uuid or "") != run.prompt:
            return
        self._run = None
        run.end(said.end)
