"""What the agent behind a host does, as data.

Rule: it is about one agent and says nothing of engines or wires: a driver turns it into the script of a model server,
or of a scripted engine.
"""

from dataclasses import dataclass

from enginehouse_protocol.conformance.harness import RunCommand, WriteFile

__all__ = ["HOSTILE", "AskPerson", "Hold", "Reply", "RunCommand", "Use", "WriteFile", "said", "used"]

HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b2J\x1b[8m\r\b\u202e"
    "<script>document.title='owned'</script><img src=x onerror=owned()>"
)
"""Clears the screen, sets the title, hides and reverses what follows: on a terminal or in a browser that obeys."""


@dataclass(frozen=True)
class Hold:
    """Nothing more comes until the test opens the gate of this name. Stands after the first piece of a text."""

    gate: str


@dataclass(frozen=True)
class AskPerson:
    """The model asks the person: one of the options, or their own words."""

    text: str
    options: tuple[str, ...] = ()


Use = RunCommand | WriteFile | AskPerson


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One model call's answer: text in pieces, then tool uses. A turn ends with the first reply without uses."""

    pieces: tuple[str | Hold, ...] = ()
    uses: tuple[Use, ...] = ()
    breaks: bool = False
    """The provider is lost after the pieces; the engine takes them back (`message.reset`) and asks again, and the next
    reply is what comes then."""


def said(*pieces: str | Hold) -> Reply:
    """A reply of nothing but text."""
    return Reply(pieces=pieces)


def used(*uses: Use) -> Reply:
    """A reply of nothing but tool uses."""
    return Reply(uses=uses)
