"""Asking the person at this terminal: permission requests and the model's questions, one at a time.

Rule: a request is withdrawn the moment it is decided elsewhere or expires, and whatever cannot be understood is asked
again, never taken for a yes. The end of input is nobody's answer: the person has left, and `serve` returns. Nothing is
asked before the view has caught up: what is old may be decided long since.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from enginehouse_hosts.terminal.card import card_of, input_of, use_of
from enginehouse_hosts.terminal.editing import NotEdited, edited_in_editor, edited_inline, editor_of
from enginehouse_hosts.terminal.plain_text import folded, one_line
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_hosts.terminal.styles import StyleName, Styles
from enginehouse_protocol.errors import AlreadyDecided, EnginehouseError, RequestNotFound
from enginehouse_protocol.events import (
    AnyEvent,
    LiveState,
    PermissionDecided,
    PermissionRequested,
    QuestionAnswered,
    QuestionAsked,
    ToolUse,
    TurnCompleted,
    TurnFailed,
)
from enginehouse_protocol.hub import AnswerPermission, AnswerQuestion, HubApi, Nothing
from enginehouse_protocol.ids import CallId, SessionId
from enginehouse_protocol.permissions import Allow, Answer, Deny, JsonObject

HOST = "terminal"
_USES_KEPT = 256
_LONGEST_RULE = 1_200
_PUT_AWAY_S = 1.0


class PersonLeft(Exception):
    """The terminal's input has ended."""


@dataclass
class _Open:
    """One thing to ask, and the scope that ends the asking."""

    body: PermissionRequested | QuestionAsked
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: bool = False
    put_away: anyio.Event = field(default_factory=anyio.Event)
    """Nothing about it is on its way to the screen any more."""


class Asker:
    """Feed it every event with `note`; `serve` does the asking until it is cancelled."""

    def __init__(
        self, hub: HubApi, session_id: SessionId, streams: Streams, *, styles: Styles, environment: Mapping[str, str]
    ) -> None:
        self._hub = hub
        self._session_id = session_id
        self._streams = streams
        self._style = styles
        self._environment = environment
        self._uses: dict[CallId, ToolUse] = {}
        self._edited: set[CallId] = set()  # here, by this person
        self._open: dict[str, _Open] = {}
        self._waiting: deque[_Open] = deque()
        self._current: _Open | None = None
        self._came = anyio.Event()
        self._caught_up = False

    def note(self, event: AnyEvent) -> None:
        match event.body:
            case ToolUse(call_id=call_id):
                self._uses[call_id] = event.body
                if len(self._uses) > _USES_KEPT:
                    del self._uses[next(iter(self._uses))]
            case PermissionRequested() | QuestionAsked():
                for asked in self._of_the_same_use(event.body):
                    self._settle(asked)  # its input was edited: the new request stands for it
                self._add(event.body)
            case LiveState():
                self._live(event.body)
            case PermissionDecided(request_id=str() as key) | QuestionAnswered(question_id=key):
                self._settle(key)
            case TurnCompleted() | TurnFailed():
                for key in list(self._open):
                    self._settle(key)
            case _:
                pass

    def _live(self, live: LiveState) -> None:
        present = {_key(body): body for body in (*live.requests, *live.questions)}
        for key in self._open.keys() - present.keys():
            self._settle(key)
        for key, body in present.items():
            if key not in self._open:
                self._add(body)
        self._caught_up = True
        self._came.set()

    def _add(self, body: PermissionRequested | QuestionAsked) -> None:
        self._open[_key(body)] = asked = _Open(body)
        self._waiting.append(asked)
        self._came.set()

    async def serve(self) -> None:
        """Returns when the person has left."""
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            while self._waiting and self._caught_up:
                asked = self._waiting.popleft()
                if asked.settled:
                    continue
                try:
                    await self._ask(asked)
                except PersonLeft:
                    return

    async def put_away(self) -> None:
        """Wait until a question that was withdrawn is said to be: what comes next is about what became of it."""
        if self._current is not None and self._current.settled:
            with anyio.move_on_after(_PUT_AWAY_S):
                await self._current.put_away.wait()

    async def _ask(self, asked: _Open) -> None:
        reply: AnswerPermission | AnswerQuestion | None = None
        self._current = asked
        try:
            with asked.scope:
                reply = await self._reply_to(asked.body)
            if reply is None:
                if not asked.settled:  # nobody knew what it would run: who still lists it is asked about it again
                    self._open.pop(_key(asked.body), None)
                await self._streams.say(self._style("faint", "  (no answer is needed any more)"))
        finally:
            self._current = None
            asked.put_away.set()
        if reply is not None:
            await self._deliver(asked, reply)

    async def _reply_to(self, body: PermissionRequested | QuestionAsked) -> AnswerPermission | AnswerQuestion | None:
        if isinstance(body, PermissionRequested):
            return await self._ask_permission(body)
        return await self._ask_question(body)

    async def _deliver(self, asked: _Open, reply: AnswerPermission | AnswerQuestion) -> None:
        """Outside of the asking: an answer once given is not taken back, whatever comes in meanwhile."""
        try:
            if isinstance(reply, AnswerPermission):
                await self._hub.permissions_answer(reply)
            else:
                await self._hub.questions_answer(reply)
        except (RequestNotFound, AlreadyDecided) as late:
            await self._say("faint", f"  {one_line(str(late))}")
        except EnginehouseError as error:
            await self._say("bad", f"  {one_line(str(error))}")
            if not asked.settled:  # it may not have arrived: whoever still lists it is to be answered again
                self._open.pop(_key(asked.body), None)

    def _of_the_same_use(self, body: PermissionRequested | QuestionAsked) -> list[str]:
        if not isinstance(body, PermissionRequested):
            return []
        return [
            key
            for key, asked in self._open.items()
            if isinstance(asked.body, PermissionRequested) and asked.body.call_id == body.call_id
        ]

    def _settle(self, key: str) -> None:
        if (asked := self._open.pop(key, None)) is not None:
            asked.settled = True
            asked.scope.cancel()
            if asked is self._current:
                self._streams.forget_prompt()

    # --- permission ---------------------------------------------------------------------------------------------------

    async def _ask_permission(self, request: PermissionRequested) -> AnswerPermission | None:
        """None: it was decided before it could be asked. Raises: PersonLeft."""
        use = self._uses.get(request.call_id)
        if use is None and request.input is None:
            if (use := await self._use_of(request)) is None:
                return None
        edited = request.call_id in self._edited
        card = card_of(request, use, self._style, edited=edited)
        await self._streams.say("\n".join(card.lines))
        unread = card.unread
        while True:
            line = await self._streams.ask(_choices(request, cut=card.cut, unread=unread))
            match None if line is None else line.strip().lower():
                case None:
                    raise PersonLeft
                case "v" | "view":
                    whole = card_of(request, use, self._style, edited=edited, whole=True)
                    await self._streams.say("\n".join(whole.lines))
                    unread = False
                case "y" | "yes" | "allow" | "a" | "always" if unread:
                    await self._say("doubtful", "  not all of it was shown; v shows all")
                case "y" | "yes" | "allow":
                    return self._reply(request, Allow())
                case "a" | "always" if request.always_rule is not None:
                    return self._reply(request, Allow(), always=True)
                case "n" | "no" | "deny":
                    reason = await self._streams.ask("  why? (the model reads it; empty is fine) > ")
                    return self._reply(request, Deny(reason=(reason or "").strip() or "the person said no"))
                case "e" | "edit":
                    try:
                        changed = await self._edit(input_of(request, use))
                    except NotEdited as problem:
                        await self._say("doubtful", f"  {one_line(str(problem))}")
                    else:
                        self._edited.add(request.call_id)
                        return self._reply(request, Allow(input=changed))
                case _:
                    pass

    async def _use_of(self, request: PermissionRequested) -> ToolUse | None:
        """What would run, for a view that began after it was announced; None when nobody is to decide it any more."""
        try:
            pending = await self._hub.permissions_pending(Nothing())
        except EnginehouseError as error:
            await self._say("bad", f"  {one_line(str(error))}")
            return None
        return next((use_of(each) for each in pending.requests if each.request_id == request.request_id), None)

    async def _edit(self, tool_input: JsonObject) -> JsonObject:
        """Raises: NotEdited."""
        editor = editor_of(self._environment)
        if editor:
            return await edited_in_editor(tool_input, editor, self._streams)
        return await edited_inline(tool_input, self._streams)

    def _reply(self, request: PermissionRequested, decision: Allow | Deny, *, always: bool = False) -> AnswerPermission:
        answer = Answer(request_id=request.request_id, digest=request.input_digest, decision=decision, always=always)
        return AnswerPermission(session_id=self._session_id, answer=answer, host=HOST)

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _ask_question(self, question: QuestionAsked) -> AnswerQuestion:
        lines = [self._style("ask", f"? {line}") for line in folded(question.text, head=200, tail=50)]
        for number, option in enumerate(question.options, 1):
            about = f" – {one_line(option.description)}" if option.description else ""
            lines.append(f"  {number}. {one_line(option.label)}{about}")
        await self._streams.say("\n".join(lines))
        answers: tuple[str, ...] | None = None
        while answers is None:
            if (line := await self._streams.ask(_prompt_for(question))) is None:
                raise PersonLeft
            answers = understood(question, line)
        return AnswerQuestion(session_id=self._session_id, question_id=question.question_id, answers=answers, host=HOST)

    async def _say(self, style: StyleName, text: str) -> None:
        await self._streams.say(self._style(style, text))


def _key(body: PermissionRequested | QuestionAsked) -> str:
    return body.request_id if isinstance(body, PermissionRequested) else body.question_id


def _choices(request: PermissionRequested, *, cut: bool, unread: bool) -> str:
    choices: list[str] = []
    if not unread:
        choices.append("y: allow once")
        if request.always_rule is not None:
            choices.append(f"a: always in this project, {one_line(request.always_rule, _LONGEST_RULE)}")
    if cut:
        choices.append("v: view all" + (", then allow" if unread else ""))
    return f"  {' · '.join([*choices, 'e: edit', 'n: deny'])} > "


def _prompt_for(question: QuestionAsked) -> str:
    if not question.options:
        return "  answer > "
    numbers = "numbers, with commas" if question.multiple else f"1 to {len(question.options)}"
    return f"  {numbers}{', or your own words' if question.free_text else ''} > "


def understood(question: QuestionAsked, line: str) -> tuple[str, ...] | None:
    """The answers a line means; None when it means nothing here."""
    labels = [option.label for option in question.options]
    parts = [part.strip() for part in line.split(",")] if question.multiple else [line.strip()]
    chosen: list[str] = []
    for part in parts:
        if part.isdecimal() and 1 <= int(part) <= len(labels):
            chosen.append(labels[int(part) - 1])
        elif part in labels:
            chosen.append(part)
        elif part and (question.free_text or not labels):
            return (line.strip(),)
        else:
            return None
    return tuple(chosen) or None
