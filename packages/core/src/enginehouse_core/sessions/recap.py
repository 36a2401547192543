"""What an engine that lost its own memory of a session is told of it: one bounded text, rendered from the record."""

from collections.abc import Iterable

from enginehouse_protocol.content import content_text, plain
from enginehouse_protocol.events import Event, HistoryReplaced, MessageAssistant, MessageUser, ToolResult, ToolUse
from enginehouse_protocol.ids import CallId

RECAP_CHARACTERS = 24_000
_LINE_CHARACTERS = 2_000
_INTRODUCTION = (
    "This conversation was going on before; your own memory of it is lost. What follows is a record of it, shortened: "
    "who said what and which tools were used. Files may have changed since.\n\n"
)


def render_recap(events: Iterable[Event]) -> str:
    """The newest part of the conversation that fits; empty when nothing was said yet."""
    lines: list[tuple[int, str]] = []
    titles: dict[CallId, str] = {}
    for event in events:
        match event.body:
            case MessageUser(source="human" | "queue") as body:
                lines.append((event.seq, f"Person: {_short(content_text(body.content))}"))
            case MessageAssistant() as body if text := plain(body.text).strip():
                lines.append((event.seq, f"You: {_short(text)}"))
            case ToolUse() as body:
                titles[body.call_id] = body.title
            case ToolResult() as body:
                lines.append((event.seq, f"Tool: {_short(titles.get(body.call_id, '?'))} → {body.status}"))
            case HistoryReplaced() as body:
                lines = [line for line in lines if not body.first_seq <= line[0] <= body.last_seq]
                lines.append((event.seq, f"Summary of what came before: {_short(body.summary)}"))
            case _:
                pass
    if not lines:
        return ""
    return _INTRODUCTION + _newest(text for _, text in lines)


def _newest(lines: Iterable[str]) -> str:
    kept: list[str] = []
    room = RECAP_CHARACTERS
    for line in reversed(list(lines)):
        room -= len(line) + 1
        if room < 0:
            kept.append("[earlier parts left out]")
            break
        kept.append(line)
    return "\n".join(reversed(kept))


def _short(text: str) -> str:
    return text if len(text) <= _LINE_CHARACTERS else text[:_LINE_CHARACTERS] + " […]"
