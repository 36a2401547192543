"""Turns a session's events into the messages of a Chat Completions request. Pure: no clock, no disk, no other state.

Rule: a request is a function of the events up to its `history_seq`, of the blobs they name and of the recorded header,
nothing else; and what
one request sent, the next begins with, byte for byte. Only a changed header or `history.replaced` breaks the chain.

How that holds: the events are cut into spans, one a request. `step.started` closes a span: what it rendered to is
sealed and never rendered again, so nothing that comes later, such as a late result, can reach back into it.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from enginehouse_engines.openai_compatible.dialects import DIALECT, REASONING_FIELDS, sends_images, sends_reasoning
from enginehouse_engines.openai_compatible.guard import EMPTY_REPLY
from enginehouse_engines.openai_compatible.rendered_images import ImagesAs, images_of
from enginehouse_protocol.content import Content, Image, LongText, SpilledText, Text
from enginehouse_protocol.events import (
    DurableBody,
    Event,
    FromEngine,
    HistoryReplaced,
    MessageAssistant,
    MessageUser,
    Notice,
    StepHeader,
    StepStarted,
    ToolResult,
    ToolUse,
    Unknown,
)
from enginehouse_protocol.ids import CallId, ReplyId
from enginehouse_protocol.permissions import JsonObject

RENDERER = 1
"""Raise it with every change that renders other bytes from the same events."""

_NO_RESULT = "[There is no result: it was lost before it was recorded. Check before you repeat it.]"
_WITHOUT_WORDS = {
    "ok": "[no output]",
    "error": "[It failed and did not say why.]",
    "denied": "[It was not allowed, so it did not run.]",
    "interrupted": "[It was interrupted before it finished.]",
    "unknown": "[It is not known whether this ran or how it ended. Check before you repeat it.]",
}
_NO_ANSWER = "[no answer came]"
_SHOWN_BY_TOOLS = "[The images that the tool results above name, in their order]"
_NO_NAME_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_encoder = msgspec.json.Encoder()
_NOTHING_SAID = _encoder.encode({"role": "assistant", "content": _NO_ANSWER})


@dataclass(kw_only=True)
class _Reply:
    """One answer of the model: its texts and its tool uses."""

    reply_id: ReplyId | None
    texts: list[LongText] = field(default_factory=list[LongText])
    reasoning: dict[str, str] = field(default_factory=dict[str, str])
    """What goes back as a field of its own, by its name."""
    uses: list[ToolUse] = field(default_factory=list[ToolUse])


@dataclass(kw_only=True)
class _Said:
    """Something the model reads as the user's side."""

    text: str
    images: tuple[Image, ...] = ()
    after_nothing: bool = False
    """It is about a reply that did not come, so it does not follow another message at once."""


@dataclass(kw_only=True)
class _Known:
    """What earlier spans leave behind for later ones."""

    provider_ids: set[str] = field(default_factory=set[str])
    names: dict[CallId, str] = field(default_factory=dict[CallId, str])
    """Every tool use so far, with its tool."""
    answered: set[CallId] = field(default_factory=set[CallId])
    """Those whose real result was rendered."""
    last: Literal["", "user", "assistant", "tool"] = ""
    """Whose the last message is."""


class Conversation:
    """The fold of a session's events into provider messages. Feed it every event once, in order.

    All of it is in one dialect, the header's of the request to be made: another one needs another fold.
    """

    def __init__(
        self,
        replaced: Iterable[tuple[int, HistoryReplaced]] = (),
        *,
        dialect: str = DIALECT,
        images: Mapping[str, bytes] | None = None,
    ) -> None:
        """`images`: the bytes of those that the events name, by sha256. It is looked into when a span is rendered: by
        `messages`, and by the `feed` that closes it. One that is missing then is told as lost."""
        self.dialect = dialect
        self.header: StepHeader | None = None
        """The last one recorded."""
        self.seq = 0
        """Of the last event folded."""
        self._replaced = sorted(replaced, key=lambda found: found[0])
        self._shown: set[int] = set()
        self._sealed: list[bytes] = []
        self._known = _Known()
        self._images = {} if images is None else images
        self._form = ImagesAs(shown=sends_images(dialect), data=self._images)
        self._open: list[tuple[int, DurableBody]] = []

    def feed(self, events: Iterable[Event]) -> bool:
        """Fold these. False: one of them replaced history that is already folded; make a `started_over`."""
        whole = True
        for event in events:
            self.seq = event.seq
            body = event.body
            if isinstance(body, HistoryReplaced) and (event.seq, body) not in self._replaced:
                self._replaced.append((event.seq, body))
                whole = False
            if isinstance(body, Unknown) or (isinstance(body, FromEngine) and body.parent_call_id is not None):
                continue  # a native subagent's own conversation is not this one
            if isinstance(body, StepStarted) and body.header is not None:
                self.header = body.header
            if (summary := self._replacement(event.seq)) is not None:
                if summary[0] not in self._shown:
                    self._shown.add(summary[0])
                    self._open.append((event.seq, summary[1]))
            elif isinstance(body, StepStarted):
                self._seal(event.seq if body.history_seq is None else body.history_seq)
            elif not isinstance(body, HistoryReplaced):
                self._open.append((event.seq, body))
        return whole

    def started_over(self, dialect: str | None = None) -> "Conversation":
        """An empty fold that knows every replacement seen so far. Feed it all events from the first."""
        return Conversation(self._replaced, dialect=dialect or self.dialect, images=self._images)

    @property
    def unsealed_images(self) -> set[str]:
        """The blobs a request made now needs, and the `feed` after it."""
        return set().union(*(images_of(body) for _, body in self._open))

    def messages(self, system: str) -> list[bytes]:
        """All messages of a request made now, each encoded once and for ever."""
        rendered, _ = _span([body for _, body in self._open], self._known, self.dialect, self._form)
        return [_encoder.encode({"role": "system", "content": system}), *self._sealed, *rendered]

    def _seal(self, history_seq: int) -> None:
        span = [body for seq, body in self._open if seq <= history_seq]
        self._open = [(seq, body) for seq, body in self._open if seq > history_seq]
        rendered, self._known = _span(span, self._known, self.dialect, self._form)
        self._sealed += rendered

    def _replacement(self, seq: int) -> tuple[int, HistoryReplaced] | None:
        """The latest replacement that covers this event: a later one may cover an earlier summary."""
        for found in reversed(self._replaced):
            if found[1].first_seq <= seq <= found[1].last_seq:
                return found
        return None


def _span(bodies: list[DurableBody], known: _Known, dialect: str, images: ImagesAs) -> tuple[list[bytes], _Known]:
    """The messages of one span, and what later spans have to know."""
    known = _Known(
        provider_ids=set(known.provider_ids),
        names=dict(known.names),
        answered=set(known.answered),
        last=known.last,
    )
    results: dict[CallId, ToolResult] = {}
    here: set[CallId] = set()
    for body in bodies:
        if isinstance(body, ToolResult):
            results.setdefault(body.call_id, body)
        elif isinstance(body, ToolUse) and body.call_id not in known.names:
            here.add(body.call_id)
    messages: list[bytes] = []
    said: list[_Said] = []
    for item in _items(bodies, here, known, images):
        if isinstance(item, _Said):
            if item.after_nothing:
                _flush(said, messages, known, images)
                if known.last in ("user", "tool"):
                    messages.append(_NOTHING_SAID)
                    known.last = "assistant"
            said.append(item)
            continue
        _flush(said, messages, known, images)
        if replied := _reply_messages(item, results, known, dialect, images):
            messages += replied
            known.last = "tool" if item.uses else "assistant"
        came = [results[use.call_id].content for use in item.uses if use.call_id in results]
        if shown := tuple(image for content in came for image in images.shown_of(content)):
            said.append(_Said(text=_SHOWN_BY_TOOLS, images=shown))
    _flush(said, messages, known, images)
    return messages, known


def _items(bodies: list[DurableBody], here: set[CallId], known: _Known, images: ImagesAs) -> list[_Reply | _Said]:
    """Replies and user texts in the order in which each began."""
    items: list[_Reply | _Said] = []
    replies: dict[ReplyId, _Reply] = {}

    def reply(reply_id: ReplyId | None) -> _Reply:
        if reply_id is not None and reply_id in replies:
            return replies[reply_id]
        last = items[-1] if items else None
        if reply_id is None and isinstance(last, _Reply) and last.reply_id is None:
            return last
        found = _Reply(reply_id=reply_id)
        items.append(found)
        if reply_id is not None:
            replies[reply_id] = found
        return found

    for body in bodies:
        match body:
            case MessageUser():
                items.append(_Said(text=_text_of(body.content, images), images=images.shown_of(body.content)))
            case MessageAssistant():
                _add(reply(body.reply_id), body)
            case ToolUse() if body.call_id not in known.names:
                known.names[body.call_id] = body.name
                reply(body.reply_id).uses.append(body)
            case ToolResult() if body.call_id not in here and body.call_id not in known.answered:
                known.answered.add(body.call_id)
                late = _late(body, known.names.get(body.call_id), images)
                items.append(_Said(text=late, images=images.shown_of(body.content)))
            case Notice(code=code, text=text) if code == EMPTY_REPLY:
                items.append(_Said(text=f"[{text}]", after_nothing=True))
            case HistoryReplaced(summary=summary) if summary:
                items.append(_Said(text=f"[Summary of the conversation up to here]\n{summary}"))
            case _:
                pass
    return items


def _add(reply: _Reply, message: MessageAssistant) -> None:
    reply.texts.append(message.text)
    thought = message.reasoning
    if thought is None or not thought.text or thought.opaque is None:
        return
    if (name := thought.opaque.get("field")) in REASONING_FIELDS:
        reply.reasoning[name] = reply.reasoning.get(name, "") + _long(thought.text)


def _reply_messages(
    reply: _Reply, results: dict[CallId, ToolResult], known: _Known, dialect: str, images: ImagesAs
) -> list[bytes]:
    """The assistant's message, then one tool message for every call, in the order of the calls."""
    text = "\n\n".join(_long(text) for text in reply.texts if text)
    sends = sends_reasoning(dialect)
    reasoning = reply.reasoning if sends == "always" or (sends == "with_calls" and reply.uses) else {}
    if not reply.uses:
        return [_encoder.encode({"role": "assistant", "content": text, **reasoning})] if text else []
    calls: list[JsonObject] = []
    answers: list[bytes] = []
    for use in reply.uses:
        call_id = _provider_id(use, known)
        function = {"name": _name(use.name), "arguments": _arguments(use)}
        calls.append({"id": call_id, "type": "function", "function": function})
        result = results.get(use.call_id)
        if result is not None:
            known.answered.add(use.call_id)
        content = _NO_RESULT if result is None else _result_text(result, images)
        answers.append(_encoder.encode({"role": "tool", "tool_call_id": call_id, "content": content}))
    assistant = {"role": "assistant", "content": text or None, **reasoning, "tool_calls": calls}
    return [_encoder.encode(assistant), *answers]


def _provider_id(use: ToolUse, known: _Known) -> str:
    """The provider's own id where it is the only one of its kind, else ours: servers pair by it."""
    own = str(use.call_id)
    candidates = itertools.chain(
        [use.provider_call_id or own, own], (f"{own}_{number}" for number in itertools.count(2))
    )
    chosen = next(candidate for candidate in candidates if candidate not in known.provider_ids)
    known.provider_ids.add(chosen)
    return chosen


def _name(name: str) -> str:
    """A model may call what does not exist, under a name no server takes back."""
    return _NO_NAME_CHARACTER.sub("_", name)[:64] or "unnamed"


def _arguments(use: ToolUse) -> str:
    """As the model wrote them, when they are a JSON object. Servers that read them again refuse every request with
    others in it, so what is none is wrapped into one."""
    if isinstance(use.arguments, SpilledText):
        return _encoder.encode({"shortened": _long(use.arguments)}).decode()
    if not use.arguments.strip():
        return _encoder.encode(use.input).decode()
    return use.arguments if _is_object(use.arguments) else _encoder.encode({"not_json": use.arguments}).decode()


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False


def _result_text(result: ToolResult, images: ImagesAs) -> str:
    return _text_of(result.content, images) or _WITHOUT_WORDS[result.status]


def _late(result: ToolResult, name: str | None, images: ImagesAs) -> str:
    about = f"the earlier {name} call" if name else "a tool call that is no longer in this conversation"
    return f"[Result of {about}, which arrived late]\n{_result_text(result, images)}"


def _text_of(content: tuple[Content, ...], images: ImagesAs) -> str:
    return "\n".join(_part_text(part, images) for part in content)


def _part_text(part: Content, images: ImagesAs) -> str:
    match part:
        case Text(text=text):
            return text
        case SpilledText():
            return _long(part)
        case Image():
            return images.words_for(part)


def _long(text: LongText) -> str:
    """A spill as head and tail; the system text says where the scratch folder is."""
    if isinstance(text, str):
        return text
    missing = text.size_bytes - len(text.head.encode()) - len(text.tail.encode())
    note = f"[… {missing} bytes not shown here; the whole text is the file {text.blob_name} in your scratch folder …]"
    return f"{text.head}\n{note}\n{text.tail}"


def _flush(said: list[_Said], messages: list[bytes], known: _Known, images: ImagesAs) -> None:
    """Adjacent user texts become one message: many servers refuse two in a row. Where the first of two was sent already
    and got no answer, that is said between them."""
    if not said:
        return
    if known.last == "user":
        messages.append(_NOTHING_SAID)
    content = images.parts([(each.text, each.images) for each in said])
    messages.append(_encoder.encode({"role": "user", "content": content}))
    said.clear()
    known.last = "user"


def request_body(header: StepHeader, messages: list[bytes]) -> bytes:
    """The bytes of one request. Everything that stays the same comes before the messages."""
    fields = {"model": header.model, **header.options}
    if header.tools:
        fields["tools"] = header.tools
    return _encoder.encode(fields)[:-1] + b',"messages":[' + b",".join(messages) + b"]}"
