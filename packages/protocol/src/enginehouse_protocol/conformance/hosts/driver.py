"""What the author of a host implements for the suite: a person's eyes and hands in that host.

Rule: everything here is what a person sees or does. Nothing waits: the suite looks again until its deadline, so a
method says how things are now, or does one thing and returns.

A driver is made anew for each test and owns everything below it: a fresh profile, a project folder, an agent that plays
what it is told, windows. It has at most one session.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from enginehouse_protocol.conformance.hosts.stage import Reply
from enginehouse_protocol.events import Event

Ability = Literal["edited_input", "questions", "second_window", "send", "withdraw", "hub_death"]
"""What not every host has.

`edited_input`: changing what will run before allowing it. `questions`: answering the model's questions.
`second_window`: another live view of a session that is open already. `send`: sending a message to a busy session, or
without staying. `withdraw`: taking a message back that has not begun. `hub_death`: the hub is another process, which
can be killed.
"""


class Window(Protocol):
    """One view of the session, in which somebody sits. It can be read after it was left, too."""

    async def read(self) -> str:
        """All that stands in it, oldest first, as text; what is further up than one can see counts.

        What the host erased is not in it, and neither are control characters the host itself uses.
        """
        ...

    async def scrolled_back(self) -> str:
        """The whole conversation, in the way this window itself offers: scrolling, loading what is older, or a command
        it names. Where it offers none, the same as `read`."""
        ...

    async def stands(self, text: str) -> bool:
        """Whether `text` can be read as something the assistant said: not erased, not marked as taken back."""
        ...

    async def stopped(self) -> str:
        """What it says about the last turn not having come to its end: interrupted, failed, the hub gone. Empty when it
        says nothing of the kind."""
        ...

    async def obeyed(self) -> Sequence[str]:
        """What content of the model or a tool made the window *do*: escape sequences that reached a terminal, markup a
        browser ran, a title that changed. Empty when it was only shown."""
        ...

    # --- permission requests and questions ---

    async def card(self) -> str | None:
        """The permission request that can be answered here now: all that its card says, unfolded. None: there is none.

        Where several are open at once, the one the next answer is for.
        """
        ...

    async def became_of_card(self) -> str:
        """What it says became of the last card that was open in it and was not answered in it. Empty: nothing."""
        ...

    async def allow(self, instead: str | None = None) -> None:
        """Allow what the card asks; with `instead` (ability `edited_input`) this command and not the one it names."""
        ...

    async def deny(self, reason: str) -> None: ...

    async def allow_too_late(self) -> None:
        """Do what allows a card, although none is open any more: press the key, click where the button was."""
        ...

    async def question(self) -> str | None:
        """The model's question that can be answered here now, with its options. None: there is none."""
        ...

    async def reply(self, answer: str) -> None:
        """Answer the question: the label of an option, or other words."""
        ...

    # --- the turn and the window ---

    async def interrupt(self) -> None:
        """Stop the turn, in the way this window offers."""
        ...

    async def leave(self) -> None:
        """Close the window as a person does."""
        ...


class HostDriver(Protocol):
    """Made by the fixture `driver`."""

    host: str
    """What the host calls itself (`initialize`); the record must name it."""
    cannot: Mapping[Ability, str]
    """What this host does not have, and why. Tests that need it skip, saying so."""
    project: Path
    """The session's directory."""
    slowness: float
    """What the suite's deadlines are multiplied by: 1 where a window is a process, more where it is a whole browser."""

    # --- the agent ---

    def plays(self, *replies: Reply) -> None:
        """What the model answers from now on, one reply a model call, instead of what was left over."""
        ...

    def opens(self, gate: str) -> None:
        """The agent goes on that waits, or will wait, at this `Hold`."""
        ...

    async def prompt(self) -> str:
        """All that the model was given in its last call, as text with JSON escapes undone."""
        ...

    async def remember(self, turns: Sequence[tuple[str, str]]) -> None:
        """Let there be a session with this history, questions and answers, idle and seen by nobody. The quickest way
        will do; it need not go through the host."""
        ...

    async def record(self) -> Sequence[Event]:
        """The session's transcript as it is on disk now; empty before there is one."""
        ...

    # --- the host ---

    async def say(self, text: str, *, unasked: bool = False) -> Window:
        """Send a message, from where a person usually does, and stay: the window in which its turn is seen, which may
        be the one there was. The first message begins the session. `unasked`: nothing its turn does needs permission.
        """
        ...

    async def look(self) -> Window:
        """Open a new window on the session, or come back to it."""
        ...

    async def send(self, text: str) -> None:
        """Send a message without a window to see its turn in (ability `send`). Returns once there is a receipt."""
        ...

    async def take_back(self) -> str:
        """Withdraw the only message that waits (ability `withdraw`); the text, as the person gets it back."""
        ...

    async def kill_hub(self) -> None:
        """Kill the hub without warning (ability `hub_death`); returns when it is dead."""
        ...
