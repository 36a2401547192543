"""Options of a command, however they are spelled: clustered, cut short, after operands, with or without `=`.

Rule: a word that may turn into an option while the command runs is reported, never guessed at.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from enginehouse_core.permissions.shell_words import Word, plain


@dataclass
class Options:
    """`flags` as `-x` and `--long`; `values` of those that take one; `operands` in order."""

    flags: list[str] = field(default_factory=list[str])
    values: list[tuple[str, Word]] = field(default_factory=list[tuple[str, Word]])
    operands: list[Word] = field(default_factory=list[Word])
    unsure: bool = False
    """A word may become options, or several words, while the command runs."""
    globbed: bool = False
    """A pattern may become a file name that is an option. Such a name holds no `/`, so it reaches nothing outside."""

    @property
    def doubtful(self) -> bool:
        return self.unsure or self.globbed

    def has(self, *names: str) -> bool:
        """Whether one of `names` was given; a long one also when it was cut short."""
        longs = [name for name in names if name.startswith("--")]
        return any(
            flag in names or (flag.startswith("--") and len(flag) > 2 and any(long.startswith(flag) for long in longs))
            for flag in self.flags
        )

    def given(self, *names: str) -> list[Word]:
        return [
            value
            for name, value in self.values
            if name in names
            or (len(name) > 3 and name.startswith("--") and any(full.startswith(name) for full in names))
        ]


def read_options(
    words: Iterable[Word], valued: Iterable[str] = (), *, stop_at_operand: bool = False, numeric: bool = False
) -> Options:
    """Sort `words` (without the program) into options and operands.

    `valued` are options that take a value. With `stop_at_operand` everything from the first operand on is an operand
    (wrappers). `numeric`: `-20` is one option, not a cluster.
    """
    taking = frozenset(valued)
    found = Options()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        text = word.text
        if text is None:
            may_be_option = not word.known and not word.prefix.strip("-")
            found.unsure = (
                found.unsure or word.splits or (may_be_option and not word.prefix) or (word.prefix.startswith("-"))
            )
            found.operands.append(word)
            if stop_at_operand:
                found.operands += rest
                break
            continue
        found.unsure = found.unsure or word.splits
        found.globbed = found.globbed or (word.glob and text[:1] in "*?[")
        if text == "--":
            found.operands += rest
            break
        if not text.startswith("-") or text == "-":
            found.operands.append(word)
            if stop_at_operand:
                found.operands += rest
                break
            continue
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            found.flags.append(name)
            if equals:
                found.values.append((name, plain(value)))
            elif _takes(name, taking) and rest:
                found.values.append((name, rest.pop(0)))
            continue
        if numeric and text[1:].isdigit():
            found.flags.append(text)
            continue
        for position, letter in enumerate(text[1:], start=1):
            name = "-" + letter
            found.flags.append(name)
            if name in taking:
                attached = text[position + 1 :]
                if attached:
                    found.values.append((name, plain(attached)))
                elif rest:
                    found.values.append((name, rest.pop(0)))
                break
    return found


def _takes(name: str, taking: frozenset[str]) -> bool:
    return name in taking or (len(name) > 3 and any(full.startswith(name) for full in taking if full.startswith("--")))
