"""A conversation as text: the answer on stdout, everything about it on stderr.

Rule: whatever comes is shown or left out, never a reason to stop; and a pipe gets the answer of our own turn alone:
what the assistant said last, once the turn is complete.
"""

from collections.abc import Iterable, Iterator

from enginehouse_hosts.terminal.card import preview_of
from enginehouse_hosts.terminal.plain_text import folded, neutral, one_line
from enginehouse_hosts.terminal.streams import Piece, Streams
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_hosts.terminal.usage import UsageTotals
from enginehouse_protocol.content import FileChange, content_text, plain
from enginehouse_protocol.events import (
    AnyBody,
    AnyEvent,
    HistoryReplaced,
    LiveState,
    MessageAssistant,
    MessageDelta,
    MessageQueued,
    MessageReset,
    MessageUser,
    MessageWithdrawn,
    Notice,
    PermissionDecided,
    PermissionRequested,
    PlanUpdated,
    QuestionAnswered,
    QuestionAsked,
    SessionChanged,
    SessionClosed,
    SessionCreated,
    ToolDetached,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
    Unknown,
    UsageUpdated,
)
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import CallId, MessageId
from enginehouse_protocol.permissions import Allow
from enginehouse_protocol.settings import SessionSettings

_MARKS = {"pending": "☐", "in_progress": "◐", "completed": "☑"}
_STOPS = {
    "interrupted": "interrupted",
    "max_steps": "stopped: it reached its limit of steps (--max-steps)",
    "max_tokens": "stopped: the model reached the longest reply it may give",
    "refused": "the model refused to go on",
    "budget": "stopped: the budget is used up",
}
_WHOLE = 100_000


def why_stopped(body: TurnCompleted) -> str:
    """Why a turn ended that did not come to its end; empty for one that did."""
    if body.stop == "end":
        return ""
    return _STOPS.get(body.stop, body.stop) + (f" ({one_line(body.detail)})" if body.detail else "")


class Printer:
    """Turns events into pieces. `show` writes those of a live conversation; `told` is all of it for a recorded one.

    What `recorded` says holds until a `live.state` comes.
    """

    def __init__(self, streams: Streams, *, styles: Styles, recorded: bool = False) -> None:
        self._streams = streams
        self._style = styles
        self._recorded = recorded
        self._live = streams.answer_is_terminal and not recorded
        self._uses: dict[CallId, ToolUse] = {}
        self._named: CallId | None = None  # whose title was shown last: what follows is understood to be about it
        self._shown: dict[MessageId, str] = {}  # what was streamed of messages that are not yet durable
        self._said: list[str] = []  # since the last tool use; in a pipe the end of the turn makes it the answer
        self._answered = False  # whether anything was said since the last tool use
        self._mine: MessageId | None = None
        self._on_a_card: dict[CallId, tuple[FileChange, ...]] = {}  # the changes a person saw when they were asked
        self._plan: tuple[str, ...] = ()
        self._ours = recorded
        self._usage = UsageTotals()

    async def begin(self, headline: str, mine: MessageId | None = None) -> None:
        """Before the first batch: what the conversation is held with, and which message the answer is to."""
        self._mine = mine
        await self._streams.say(self._style("faint", headline))

    async def show(self, batch: tuple[Delivery, ...]) -> None:
        await self._streams.write(piece for delivery in batch for piece in self.told(delivery.event))

    async def end(self) -> None:
        """After the last batch: what the whole has cost."""
        if summary := self.usage():
            await self._streams.say(self._style("faint", summary))

    def usage(self) -> str:
        """One line; empty when nothing was reported."""
        return self._usage.summary()

    def told(self, event: AnyEvent) -> Iterator[Piece]:
        match event.body:
            case MessageDelta(parent_call_id=None):
                yield from self._delta(event.body)
            case MessageReset(parent_call_id=None):
                yield from self._reset(event.body)
            case MessageAssistant():
                yield from self._message(event.body)
            case LiveState():
                yield from self._present(event.body)
            case TurnStarted(message_ids=message_ids):
                self._ours = self._recorded or self._mine in message_ids
                self._answered = False
            case TurnCompleted() as body:
                yield from self._answer(complete=body.stop != "interrupted")
                if why := why_stopped(body):
                    yield self._line(self._style("doubtful", why))
                elif self._ours and not self._answered and not self._recorded:
                    yield self._line(self._style("doubtful", "the model ended its turn without an answer"))
            case TurnFailed():
                yield from self._answer(complete=False)
                text = f"the turn failed: {_whole(event.body.message)} ({one_line(event.body.code)})"
                yield from self._lines(self._style("bad", line) for line in text.split("\n"))
            case _:
                yield from self._lines(self._about(event.body))

    # --- what the assistant says --------------------------------------------------------------------------------------

    def _delta(self, body: MessageDelta) -> Iterator[Piece]:
        if self._live:
            another = bool(self._shown) and body.message_id not in self._shown
            self._shown[body.message_id] = self._shown.get(body.message_id, "") + body.text
            yield Piece("answer", ("\n" if another else "") + neutral(body.text))

    def _reset(self, body: MessageReset) -> Iterator[Piece]:
        if self._shown.pop(body.message_id, ""):
            yield self._line(self._style("faint", f"(the reply broke off, it begins again: {one_line(body.reason)})"))

    def _present(self, live: LiveState) -> Iterator[Piece]:
        """Open messages as far as they were not shown."""
        self._recorded, self._live = False, self._streams.answer_is_terminal
        if not self._live:
            return
        texts = {each.message_id: each.text for each in live.messages if each.parent_call_id is None}
        for message_id in self._shown.keys() - texts.keys():
            if self._shown.pop(message_id):
                yield self._line(self._style("faint", "(the reply broke off here)"))
        for message_id, text in texts.items():
            if not text.startswith(self._shown.get(message_id, "")):
                yield from self._reset(MessageReset(message_id=message_id, reason="this is all of it so far"))
            if rest := text[len(self._shown.get(message_id, "")) :]:
                yield from self._delta(MessageDelta(message_id=message_id, text=rest))

    def _message(self, body: MessageAssistant) -> Iterator[Piece]:
        text = plain(body.text)
        if body.parent_call_id is not None:
            yield from self._lines(self._style("faint", f"  {line}") for line in folded(text))
            return
        if text.strip():
            self._answered = True
        if self._live or self._recorded:
            shown = self._shown.pop(body.message_id, "")
            if text.startswith(shown):
                rest = text[len(shown) :]
                if text:
                    yield Piece("answer", neutral(rest) + ("" if text.endswith("\n") else "\n"))
            else:
                yield self._line(self._style("faint", "(what was shown is not what was kept; this is)"))
                yield Piece("answer", neutral(text).rstrip("\n") + "\n")
        elif body.phase == "commentary" or not self._ours:
            yield from self._lines(_whole(text).split("\n") if text else ())
        elif text:
            self._said.append(text)
        if not body.complete and text:
            yield self._line(self._style("faint", "(cut off here)"))

    def _answer(self, *, complete: bool) -> Iterator[Piece]:
        """The end of a turn: what was said since the last tool use is the answer of a turn that came to its end."""
        said, self._said = "\n\n".join(self._said), []
        self._shown.clear()
        if said and complete:
            yield Piece("answer", said if said.endswith("\n") else f"{said}\n")
        elif said:
            yield from self._lines(_whole(said).split("\n"))

    # --- what is said about it ----------------------------------------------------------------------------------------

    def _about(self, body: AnyBody | Unknown) -> Iterator[str]:
        style = self._style
        match body:
            case SessionCreated(engine=engine, roots=roots, settings=settings) if self._recorded:
                where = one_line(roots[0].path) if roots else "no folder"
                yield style("faint", " · ".join((f"session on {one_line(engine)}", *_set(settings), where)))
            case SessionChanged():
                yield from self._changed(body)
            case SessionClosed():
                yield style("faint", "the session is closed")
            case MessageUser(source=source):
                if source in ("human", "queue"):
                    if self._recorded or body.message_id != self._mine:
                        lines = folded(content_text(body.content), head=20, tail=10)
                        yield from (style("title", f"> {line}") for line in lines)
                else:
                    yield style("faint", f"(added by {source}: {one_line(content_text(body.content), 100)})")
            case MessageQueued(message_id=message_id, source="queue"):
                if not self._recorded and message_id != self._mine:
                    yield style("faint", f"(queued: {one_line(content_text(body.content), 100)})")
            case MessageWithdrawn(by=by, reason=reason):
                because = f": {one_line(reason)}" if reason else ""
                yield style("doubtful", f"a queued message was withdrawn by {by}{because}")
            case ToolUse():
                yield from self._commentary()
                self._answered = self._answered and body.parent_call_id is not None
                self._uses[body.call_id] = body
                self._named = body.call_id
                yield f"{_indent(body)}{style('title', '● ' + one_line(body.title or body.name))}"
            case ToolResult():
                yield from self._result(body)
            case ToolDetached(call_id=call_id):
                use = self._uses.get(call_id)
                yield style("faint", f"goes on in the background: {one_line(use.title) if use else call_id}")
            case PermissionDecided(by="person", decision=decision):
                if isinstance(decision, Allow):
                    yield style("good", "  ✓ allowed" + (", as edited" if decision.input is not None else ""))
            case PermissionRequested(call_id=call_id) if self._streams.can_ask and not self._recorded:
                self._on_a_card[call_id] = preview_of(body, self._uses.get(call_id))
            case PlanUpdated():
                yield from self._plan_now(body)
            case UsageUpdated():
                self._usage.add(body)
            case QuestionAsked():
                yield from self._commentary()
                if self._recorded or not self._streams.can_ask:
                    yield from (style("ask", f"? {line}") for line in folded(body.text, head=40, tail=10))
            case QuestionAnswered(answers=answers):
                said = "nobody answered" if answers is None else " / ".join(one_line(each) for each in answers)
                yield style("faint", f"  → {said}")
            case HistoryReplaced(first_seq=first, last_seq=last):
                yield style("faint", f"(the model now sees a summary of events {first} to {last})")
            case Notice(level=level, text=text):
                name = {"info": "faint", "warning": "doubtful"}.get(level, "bad")
                yield from (style(name, line) for line in folded(text))  # type: ignore[arg-type]
            case Unknown(tag=tag):
                yield style("faint", f"(an event this version does not know: {one_line(tag, 60)})")
            case _:
                pass  # what a person need not see: steps, native ids, requests (they are asked), live output

    def _commentary(self) -> Iterator[str]:
        """What was said before a tool use was not the answer."""
        said, self._said = self._said, []
        for text in said:
            yield from _whole(text).split("\n")

    def _result(self, body: ToolResult) -> Iterator[str]:
        use, style, indent = self._uses.pop(body.call_id, None), self._style, _indent(body)
        kind = use.kind if use else "other"
        lines = folded(content_text(body.content))
        if use is not None and body.call_id != self._named:
            self._named = body.call_id
            yield f"{indent}{style('faint', '● ' + one_line(use.title or use.name))}"
        match body.status:
            case "ok" if body.changes and self._on_a_card.pop(body.call_id, ()) == body.changes:
                yield f"{indent}  {style('faint', 'done')}"
            case "ok" if body.changes:
                for change in body.changes:
                    yield from (f"{indent}  {line}" for line in style.diff(change))
            case "ok" if kind in ("read", "search"):
                text = content_text(body.content)
                count = text.count("\n") + (not text.endswith("\n")) if text else 0
                said = [f"{count} lines"] if count > 1 else lines or ["(nothing)"]  # one line may say: nothing found
                yield from (f"{indent}  {style('faint', line)}" for line in said)
            case "ok":
                yield from (f"{indent}  {style('faint', line)}" for line in lines or ["(no output)"])
            case "error":
                yield from (f"{indent}  {style('bad', '✗ ') if n == 0 else '  '}{line}" for n, line in enumerate(lines))
            case status:
                yield f"{indent}  {style('doubtful', f'✗ {status}')}"
                yield from (f"{indent}    {style('faint', line)}" for line in lines)

    def _plan_now(self, body: PlanUpdated) -> Iterator[str]:
        """All of it when its words are new, else how far it is."""
        texts = tuple(entry.text for entry in body.entries)
        known, self._plan = texts == self._plan, texts
        done = sum(entry.status == "completed" for entry in body.entries)
        yield self._style("title", "plan") + f" ({done} of {len(texts)} done)"
        for entry in body.entries:
            if not known or entry.status == "in_progress":
                yield f"  {_MARKS.get(entry.status, '?')} {one_line(entry.text)}"

    def _changed(self, body: SessionChanged) -> Iterator[str]:
        if body.title is not None:
            yield self._style("faint", f"the session is now called {one_line(body.title)}")
        if body.roots:
            yield self._style("doubtful", f"the session goes on in {one_line(body.roots[0].path)}")
        if body.settings is not None:
            why = "the plan is approved; " if body.reason == "plan_approved" else ""
            yield self._style("faint", f"{why}settings: {', '.join(_set(body.settings)) or 'none'}")

    def _line(self, text: str) -> Piece:
        return Piece("talk", f"{text}\n")

    def _lines(self, lines: Iterable[str]) -> Iterator[Piece]:
        for line in lines:
            yield self._line(line)


def _set(settings: SessionSettings) -> list[str]:
    said = []
    if settings.model:
        said.append(one_line(settings.model))
    if settings.effort:
        said.append(f"effort {one_line(settings.effort)}")
    if settings.mode:
        said.append(f"mode {settings.mode.replace('_', '-')}")
    return said


def _indent(body: ToolUse | ToolResult) -> str:
    return "" if body.parent_call_id is None else "  "


def _whole(text: str) -> str:
    """A text shown in full, unless it is a flood."""
    if len(text) > _WHOLE:
        text = f"{text[: _WHOLE // 2]}\n… {len(text) - _WHOLE} characters not shown …\n{text[-_WHOLE // 2 :]}"
    return neutral(text.rstrip("\n"))
