"""What a person sees of a permission request before they answer.

Rule: the card shows what would run, every character of it, or it is marked as cut and the whole can be called for. A
field is left out only where the title or a complete diff says the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from enginehouse_hosts.terminal.plain_text import exact, folded_exact, is_long, one_line
from enginehouse_hosts.terminal.styles import StyleName, Styles
from enginehouse_protocol.content import FileChange
from enginehouse_protocol.events import PermissionRequested, ToolUse
from enginehouse_protocol.permissions import JsonObject, PendingRequest

_WHOLE_LINES, _WHOLE_CHARACTERS = 200, 20_000
_MOST_FIELDS = 30
_SHORT = 200
_RISK_STYLES: dict[str, StyleName] = {"safe": "good", "write": "doubtful", "dangerous": "bad", "critical": "bad"}


@dataclass(frozen=True)
class Card:
    lines: list[str]
    cut: bool
    """Something was left out for its length."""
    unread: bool
    """What was left out decides: nobody can say yes to it without having called for the whole."""


def input_of(request: PermissionRequested, use: ToolUse | None) -> JsonObject:
    """What would run."""
    if request.input is not None:
        return request.input
    return use.input if use is not None else {}


def preview_of(request: PermissionRequested, use: ToolUse | None) -> tuple[FileChange, ...]:
    """What it would change, as it was known last; that of another input is none."""
    if request.preview or request.input is not None or use is None:
        return request.preview
    return use.preview


def use_of(pending: PendingRequest) -> ToolUse:
    """The use a pending request is about, as far as a card needs it."""
    return ToolUse(
        call_id=pending.call_id, name=pending.kind, kind=pending.kind, title=pending.title, input=pending.input
    )


def card_of(
    request: PermissionRequested, use: ToolUse | None, style: Styles, *, edited: bool = False, whole: bool = False
) -> Card:
    """Always drawable: with an unknown kind, without a title, with a huge input. `whole`: however long it is."""
    title = _title(request, use, edited=edited)
    risk = style(_RISK_STYLES.get(request.risk, "bad"), one_line(request.risk))
    lines = [f"{style('ask', '? ' + title)} [{risk}]"]
    lines += [style("faint", f"  {one_line(reason)}") for reason in request.reasons]
    preview = preview_of(request, use)
    diffs = "\n".join(change.diff for change in preview)
    diffs_whole = whole or not is_long(diffs, lines=_WHOLE_LINES, characters=_WHOLE_CHARACTERS)
    for change in preview:
        lines += [f"  {line}" for line in style.diff(change, whole=diffs_whole)]
    told = preview if diffs_whole and all(change.diff and not change.cut for change in preview) else ()
    fields = {
        name: text
        for name, value in input_of(request, use).items()
        if not _in_title(text := _text(value), title) and not (told and _in_diff(value, text, title, told))
    }
    everything = "\n".join(fields.values())
    fields_whole = whole or not is_long(everything, lines=_WHOLE_LINES, characters=_WHOLE_CHARACTERS)
    lines += _fields(fields, whole=fields_whole)
    return Card(
        lines=lines,
        cut=not (diffs_whole and fields_whole),
        unread=not fields_whole and request.kind != "edit",  # an edit can be looked at, and taken back, afterwards
    )


def _title(request: PermissionRequested, use: ToolUse | None, *, edited: bool) -> str:
    if request.input is not None:  # the title is about the input that was written, and this is another
        name = use.name if use is not None else request.kind
        return one_line(name) + (", as you edited it" if edited else ", with another input than was announced")
    return one_line(request.title or (use.name if use is not None else "")) or "a tool wants to run"


def _in_title(text: str, title: str) -> bool:
    return exact(text) == title or f"$ {exact(text)}" == title


def _in_diff(value: Any, text: str, title: str, changes: tuple[FileChange, ...]) -> bool:
    """Whether a complete diff shows this part of the input. Numbers and switches are never in it."""
    if not isinstance(value, str):
        return isinstance(value, (dict, list))
    if "\n" in text.rstrip("\n") or len(text) > _SHORT:
        return True  # the content, or the text that is looked for
    line = text.rstrip("\n")
    return title.endswith(f" {exact(line)}") or any(line in change.diff or line == change.path for change in changes)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _fields(fields: dict[str, str], *, whole: bool) -> Iterator[str]:
    for number, (name, text) in enumerate(fields.items()):
        if number == _MOST_FIELDS and not whole:
            yield f"  … {len(fields) - _MOST_FIELDS} more fields not shown …"
            return
        shown = exact(text).split("\n") if whole else folded_exact(text, head=15, tail=5) or [""]
        first, *more = shown
        yield f"  {one_line(name, 4 * _SHORT) or '(no name)'}: {first}"
        yield from (f"    {line}" for line in more)
