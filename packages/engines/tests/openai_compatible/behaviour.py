"""One way in which servers break, as data: what the server does, and what must come of it.

Rule: the right outcome is stated whole. What a case does not mention must not happen: no retry, no call, no error.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from model_server import Answer, ChatRequest, Fault, Verbatim, fault, verbatim

from .chunks import DONE, chunk

Meets = Answer | Callable[[ChatRequest], Answer]
HI = chunk(content="Hi") + chunk("stop")
"""A whole reply, but for `[DONE]`."""


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    meets: tuple[Meets, ...]
    """The answers to the first requests. Every later one is answered "Done."."""
    says: str | None = ""
    """The last text of the turn. Empty: "Hi", or "Done." where it takes more than one request. None: there is none."""
    calls: tuple[tuple[str, str, str], ...] = ()
    """Tool, argument text and status of every call, in order."""
    told: tuple[str, ...] = ()
    """What the model must have read in the turn's last request."""
    asked: int | None = None
    """How many calls a person was asked about; None: all of them."""
    stop: str = "end"
    fails: str = ""
    """Code of the error the turn ends with; empty: it does not."""
    words: tuple[str, ...] = ()
    """In the error, or in the detail of the end."""
    status: int | None = None
    """The HTTP status the error carries."""
    retries: int = 0
    """How often the same bytes are sent again."""
    steps: int = 0
    """Requests that differ; 0: one, and one more where there are calls."""
    resets: int = 0
    """Texts that were shown and taken back."""
    partial: str | None = None
    """A text that is kept and called incomplete."""
    tokens: tuple[int, int] | str | None = "any"
    """Of the turn: prompt and completion, None where they must be unknown."""
    notices: tuple[str, ...] = ()
    """Codes of what a person is told besides retries."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    tolerated: tuple[str, ...] = ("reasoning_content", "reasoning", "thinking")
    """What this server accepts in an assistant message beside the published fields."""

    def __str__(self) -> str:
        return self.name


def stream(*pieces: str, split: int | None = None, **headers: str) -> Verbatim:
    """These events, and nothing of what a well-behaved server would add."""
    return verbatim(*(piece.encode() for piece in pieces), split=split, headers=_named(headers))


def json_body(body: Any, status: int = 200, **headers: str) -> Fault:
    return fault(status, body=msgspec.json.encode(body), headers=_named(headers))


def page(body: str | bytes, status: int = 200, kind: str = "text/html", **headers: str) -> Fault:
    body = body.encode() if isinstance(body, str) else body
    return fault(status, body=body, headers={"content-type": kind, **_named(headers)})


def calling(*fragments: dict[str, Any], finish: str | None = "tool_calls", done: str = DONE) -> Verbatim:
    """A reply of nothing but these pieces of calls, one a chunk."""
    return stream(*(chunk(tool_calls=[each]) for each in fragments), chunk(finish), done)


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
