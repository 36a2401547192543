"""What a shell command is made of once it is taken apart: simple commands and their redirections.

Rule: only what is certain is filled in; a folder nobody knows is None, a word nobody knows has no values.
"""

from dataclasses import dataclass, field

from enginehouse_core.permissions.shell_words import Word


@dataclass(frozen=True)
class Redirect:
    operator: str
    target: Word | None
    """None for a here-document and where it only closes or copies a descriptor."""
    text: str | None = None
    """What a here-document or here-string certainly feeds."""

    @property
    def writes(self) -> bool:
        return self.target is not None and ">" in self.operator

    @property
    def reads(self) -> bool:
        return self.target is not None and "<" in self.operator and "<<" not in self.operator


@dataclass
class Simple:
    """One simple command. `words` is empty for redirections of a group and for assignments alone."""

    words: tuple[Word, ...] = ()
    assignments: tuple[tuple[str, Word | None], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    cwds: tuple[str, ...] | None = ()
    """Every folder it may run in; None when nobody knows."""
    fed_by: list["Simple"] = field(default_factory=list["Simple"])
    """Commands whose output it may read."""
    made_of: list["Simple"] = field(default_factory=list["Simple"])
    """Commands whose output is in its words."""
    exports: bool = False
    shown: str = ""


def either(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if one is None or other is None:
        return None
    both = tuple(dict.fromkeys((*one, *other)))
    return both if len(both) <= 8 else None


def behind_builtin(words: tuple[Word, ...]) -> tuple[Word, ...]:
    while len(words) > 1 and words[0].text in ("command", "builtin") and not (words[1].text or "-").startswith("-"):
        words = words[1:]
    return words


def named(simple: Simple) -> str | None:
    words = behind_builtin(simple.words)
    return words[0].text if words else None
