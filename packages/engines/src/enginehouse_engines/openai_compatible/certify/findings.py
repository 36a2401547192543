"""What a check is and what it may find.

Rule: a check is a pure function of what was heard; it asks nobody anything, so a recorded exchange tests it.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from enginehouse_engines.openai_compatible.certify.exchanges import Exchange, Heard

Outcome = Literal["works", "tolerated", "missing", "broken", "skipped"]
"""`tolerated`: not as the interface says, and an agent gets along. `missing`: not there, and an agent can do without.
`broken`: an agent cannot work with this server."""
Group = Literal["address", "stream", "conversation", "tools", "usage", "errors", "effort", "images"]


class Verdict(msgspec.Struct, frozen=True):
    outcome: Outcome
    about: str = ""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Stable, for programs."""
    group: Group
    title: str
    """What is looked for, as a statement that holds when it works."""
    judge: Callable[[Heard], Verdict]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    group: Group
    title: str
    outcome: Outcome
    about: str = ""


def works(about: str = "") -> Verdict:
    return Verdict("works", about)


def tolerated(about: str) -> Verdict:
    return Verdict("tolerated", about)


def missing(about: str) -> Verdict:
    return Verdict("missing", about)


def broken(about: str) -> Verdict:
    return Verdict("broken", about)


def skipped(about: str) -> Verdict:
    return Verdict("skipped", about)


def of(name: str, judge: Callable[[Exchange], Verdict], *, refused_too: bool = False) -> Callable[[Heard], Verdict]:
    """A judge of one exchange. Where it was not made, or, unless `refused_too`, where the server refused it, there is
    nothing to judge."""

    def judged(heard: Heard) -> Verdict:
        found = heard.of(name)
        if found is None:
            return skipped(heard.why_not(name))
        if not found.accepted and not refused_too:
            return skipped("the request was refused")
        return judge(found)

    return judged
