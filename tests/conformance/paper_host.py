"""The smallest host there can be: a view folded into text, answers given by calling the hub. No process, no screen.

Rule: it keeps every rule of the host suite by itself, so that a host broken in one place shows that the suite sees it;
each method that a broken one overrides is one thing a host does. It is also the example to write a driver by.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from conformance.history import recorded, remembered, session_of
from enginehouse_core.hub import Hub
from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.conformance.hosts import Ability, AskPerson, Hold, Reply, RunCommand, WriteFile
from enginehouse_protocol.content import Text, content_text, plain
from enginehouse_protocol.errors import AlreadyDecided, RequestNotFound
from enginehouse_protocol.events import (
    AnyEvent,
    Event,
    LiveState,
    MessageAssistant,
    MessageDelta,
    MessageReset,
    MessageUser,
    PermissionDecided,
    PermissionRequested,
    QuestionAnswered,
    QuestionAsked,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.hub import (
    AnswerPermission,
    AnswerQuestion,
    Attach,
    CreateSession,
    Launch,
    SendMessage,
    SessionRef,
    SetSession,
    WithdrawQueued,
)
from enginehouse_protocol.ids import CallId, EngineName, MessageId, SessionId, new_message_id
from enginehouse_protocol.permissions import Allow, Answer, Deny
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import AskPerson as AskStep
from enginehouse_protocol.testing import Emit, Gate, Say, ScriptedEngine, Step, Together, UseTool

SCRIPTED = EngineName("scripted")
_RESULT_CHARS = 2_000


class PaperWindow:
    """A view of the session; `follow` fills it until it is cancelled."""

    def __init__(self, driver: "PaperDriver", session_id: SessionId) -> None:
        self.driver = driver
        self.session_id = session_id
        self.lines: dict[str, str] = {}
        """What stands in it, in order; keyed, so that it can be replaced or erased."""
        self.open: set[MessageId] = set()
        self.uses: dict[CallId, ToolUse] = {}
        self.cards: dict[str, PermissionRequested] = {}
        self.questions: dict[str, QuestionAsked] = {}
        self.mine: set[str] = set()
        self.outcome = self.trouble = ""
        self.seq = 0
        self.left = anyio.CancelScope()
        self._last: PermissionRequested | None = None

    async def follow(self) -> None:
        with self.left:
            while True:
                hub = await self.driver.hub()
                async with hub.sessions_attach(
                    Attach(session_id=self.session_id, after=self.seq, can_answer=True)
                ) as view:
                    async for batch in view.batches():
                        for delivery in batch:
                            await self.note(delivery.event)
                await self.lost()

    async def lost(self) -> None:
        """The hub is gone."""
        self.trouble = "the hub is gone"
        await self.driver.hub_is_back()

    # --- what happens becomes text ------------------------------------------------------------------------------------

    async def note(self, event: AnyEvent) -> None:
        if isinstance(event, Event):
            self.seq = event.seq
        match event.body:
            case MessageUser() as body:
                self.puts(body.message_id, f"> {content_text(body.content)}")
            case MessageDelta() as body:
                self.delta(body.message_id, body.text)
            case MessageReset() as body:
                self.reset(body.message_id)
            case MessageAssistant() as body:
                self.open.discard(body.message_id)
                self.puts(body.message_id, plain(body.text))
            case ToolUse() as body:
                self.uses[body.call_id] = body
                self.puts(body.call_id, f"* {body.title}")
            case ToolResult() as body:
                self.puts(f"{body.call_id} result", content_text(body.content)[-_RESULT_CHARS:])
            case PermissionRequested() as body:
                await self.asked(body)
            case PermissionDecided(request_id=str() as request_id) as body:
                self.decided(request_id, f"decided by {body.by} {body.host or ''}")
            case QuestionAsked() as body:
                self.questions[body.question_id] = body
            case QuestionAnswered() as body:
                self.questions.pop(body.question_id, None)
            case LiveState() as body:
                await self.live(body)
            case TurnStarted():
                self.trouble = ""
            case TurnCompleted(stop=stop) if stop != "end":
                self.trouble = stop
            case TurnFailed() as body:
                self.trouble = body.message
            case _:
                pass

    def puts(self, key: str, text: str) -> None:
        self.lines[key] = self.safe(text)

    def safe(self, text: str) -> str:
        return "".join(each if each in "\n\t" or unicodedata.category(each)[0] != "C" else "\ufffd" for each in text)

    def delta(self, message_id: MessageId, text: str) -> None:
        self.open.add(message_id)
        self.lines[message_id] = self.lines.get(message_id, "") + self.safe(text)

    def reset(self, message_id: MessageId) -> None:
        self.open.discard(message_id)
        self.lines.pop(message_id, None)

    async def asked(self, body: PermissionRequested) -> None:
        self.cards[body.request_id] = self._last = body

    def decided(self, request_id: str, outcome: str) -> None:
        if self.cards.pop(request_id, None) is not None and request_id not in self.mine:
            self.outcome = outcome

    async def live(self, body: LiveState) -> None:
        for message_id in list(self.open):
            self.reset(message_id)
        for each in body.messages:
            self.delta(each.message_id, each.text)
        for request_id in self.cards.keys() - {each.request_id for each in body.requests}:
            self.decided(request_id, "decided meanwhile")
        for request in body.requests:
            await self.asked(request)
        self.questions = {each.question_id: each for each in body.questions}

    # --- eyes ---------------------------------------------------------------------------------------------------------

    async def read(self) -> str:
        return "\n".join(self.lines.values())

    async def scrolled_back(self) -> str:
        return await self.read()

    async def stands(self, text: str) -> bool:
        return text in await self.read()

    async def stopped(self) -> str:
        return self.trouble

    async def obeyed(self) -> Sequence[str]:
        return [each for each in await self.read() if each not in "\n\t" and unicodedata.category(each)[0] == "C"]

    async def card(self) -> str | None:
        return self.drawn(self.current()) if self.cards else None

    def current(self) -> PermissionRequested:
        return next(iter(self.cards.values()))

    def drawn(self, request: PermissionRequested) -> str:
        given = request.input or self.uses[request.call_id].input
        return self.safe("\n".join([request.title, *(f"{name}: {value}" for name, value in given.items())]))

    async def became_of_card(self) -> str:
        return self.outcome

    async def question(self) -> str | None:
        for question in self.questions.values():
            return "\n".join([question.text, *(option.label for option in question.options)])
        return None

    # --- hands --------------------------------------------------------------------------------------------------------

    async def allow(self, instead: str | None = None) -> None:
        await self.answer(self.current(), Allow(input=None if instead is None else {"command": instead}))

    async def deny(self, reason: str) -> None:
        await self.answer(self.current(), Deny(reason=reason))

    async def allow_too_late(self) -> None:
        if self._last is not None:
            await self.answer(self._last, Allow())

    async def answer(self, request: PermissionRequested, decision: Allow | Deny) -> None:
        self.mine.add(request.request_id)
        self.cards.pop(request.request_id, None)
        answer = Answer(request_id=request.request_id, digest=request.input_digest, decision=decision)
        hub = await self.driver.hub()
        try:
            await hub.permissions_answer(
                AnswerPermission(session_id=self.session_id, answer=answer, host=self.driver.signs_as)
            )
        except (AlreadyDecided, RequestNotFound) as late:
            self.outcome = str(late)

    async def reply(self, answer: str) -> None:
        [question_id] = [each.question_id for each in self.questions.values()]
        reply = AnswerQuestion(
            session_id=self.session_id, question_id=question_id, answers=(answer,), host=self.driver.signs_as
        )
        await (await self.driver.hub()).questions_answer(reply)

    async def interrupt(self) -> None:
        await (await self.driver.hub()).sessions_interrupt(SessionRef(session_id=self.session_id))

    async def leave(self) -> None:
        self.left.cancel()


class PaperDriver:
    """`tasks` runs the hub and fills the windows. `window_type` is what a broken host changes."""

    host = "paper"

    def __init__(self, folder: Path, tasks: TaskGroup, *, slowness: float = 1.0) -> None:
        self.cannot: Mapping[Ability, str] = {}
        self.slowness = slowness
        self.signs_as = self.begins_as = self.host
        self.window_type = PaperWindow
        self.profile = folder / "profile"
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        self._tasks = tasks
        self._replies: list[Reply] = []
        self._gates: dict[str, Gate] = {}
        self._engine = ScriptedEngine()
        self._window: PaperWindow | None = None
        self._serving: Hub | None = None
        self._served = False
        self._up = anyio.Event()
        self._stop = anyio.Event()

    # --- the agent ----------------------------------------------------------------------------------------------------

    def plays(self, *replies: Reply) -> None:
        self._replies = list(replies)

    def opens(self, gate: str) -> None:
        self._gate(gate).open()

    def _gate(self, name: str) -> Gate:
        return self._gates.setdefault(name, Gate())

    async def prompt(self) -> str:
        return "\n".join(self._engine.known)

    async def remember(self, turns: Sequence[tuple[str, str]]) -> None:
        await remembered(self.profile, self.project, turns, host=self.host, engine=SCRIPTED)

    async def record(self) -> Sequence[Event]:
        return await anyio.to_thread.run_sync(recorded, self.profile)

    def _turn(self, _turn: object) -> list[Step]:
        steps: list[Step] = []
        while True:
            reply = self._replies.pop(0)
            steps += self._steps(reply)
            if not (reply.uses or reply.breaks):
                return steps

    def _steps(self, reply: Reply) -> list[Step]:
        steps: list[Step] = []
        texts = tuple(piece for piece in reply.pieces if isinstance(piece, str))
        hold = next((self._gate(piece.gate) for piece in reply.pieces if isinstance(piece, Hold)), None)
        if reply.breaks:
            message_id = new_message_id()
            return [
                Emit(MessageDelta(message_id=message_id, text="".join(texts))),
                Emit(MessageReset(message_id=message_id, reason="the provider was lost")),
            ]
        if texts:
            steps.append(Say("".join(texts), pieces=texts, hold=hold))
        uses: list[UseTool] = []
        for use in reply.uses:
            match use:
                case RunCommand(command):
                    title = f"$ {command.splitlines()[0]}"
                    uses.append(UseTool("bash", {"command": command}, kind="execute", title=title))
                case WriteFile(path, content):
                    uses.append(UseTool("write", {"path": path, "content": content}, kind="edit"))
                case AskPerson(text, options):
                    steps.append(AskStep(text, options))
        return [*steps, Together(*uses)] if uses else steps

    # --- the hub ------------------------------------------------------------------------------------------------------

    async def hub(self) -> Hub:
        if not self._served:
            self._served = True
            self._tasks.start_soon(self._serve)
        while self._serving is None:
            await self._up.wait()
        return self._serving

    async def hub_is_back(self) -> None:
        await self.hub()

    async def _serve(self) -> None:
        while True:
            self._engine = ScriptedEngine(self._turn, name=SCRIPTED)
            self.profile.mkdir(mode=0o700, exist_ok=True)
            factories = {SCRIPTED: lambda _home: self._engine}
            async with Hub(folders=Folders(self.profile), factories=factories, what="a test") as self._serving:
                self._up.set()
                await self._stop.wait()
                self._up, self._serving = anyio.Event(), None

    async def kill_hub(self) -> None:
        """Ended rather than killed: it shares our process."""
        self._stop.set()
        self._stop = anyio.Event()
        await self._up.wait()

    # --- the host -----------------------------------------------------------------------------------------------------

    async def say(self, text: str, *, unasked: bool = False) -> PaperWindow:
        hub, settings = await self.hub(), SessionSettings(mode="yolo") if unasked else SessionSettings()
        if (session_id := session_of(self.profile)) is None:
            created = await hub.sessions_create(
                CreateSession(
                    engine=SCRIPTED,
                    directory=str(self.project),
                    settings=settings,
                    launch=_launch(),
                    host=self.begins_as,
                )
            )
            session_id = created.id
        elif unasked:
            await hub.sessions_set(SetSession(session_id=session_id, settings=settings))
        if self._window is None or self._window.left.cancel_called:
            self._window = await self.look()
        await self.send(text)
        return self._window

    async def look(self) -> PaperWindow:
        window = self.window_type(self, self._there())
        self._tasks.start_soon(window.follow)
        return window

    def _there(self) -> SessionId:
        session_id = session_of(self.profile)
        assert session_id is not None, "there is no session yet"
        return session_id

    async def send(self, text: str) -> None:
        sending = SendMessage(session_id=self._there(), content=(Text(text=text),), launch=_launch(), host=self.host)
        await (await self.hub()).sessions_send(sending)

    async def take_back(self) -> str:
        hub, session_id = await self.hub(), self._there()
        [waits] = (await hub.queue_list(SessionRef(session_id=session_id))).messages
        taken = await hub.queue_withdraw(WithdrawQueued(session_id=session_id, message_id=waits.message_id))
        return content_text(taken.content)


def _launch() -> Launch:
    return Launch(environment={"PATH": "/usr/local/bin:/usr/bin:/bin"})
