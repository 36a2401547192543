"""`permissions.toml`: the rules one person set, as text. What a rule means is for `permissions` to say.

Rule: a file that cannot be understood completely is an error, never a shorter list: the entry left out could
be the deny. For the same reason an allow with an unknown key is refused, for that key may have narrowed it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import AwareDatetime, Field, field_validator, model_validator

from enginehouse_core.profile.document import Document, Section, checked, read_document
from enginehouse_core.profile.files import read_toml, update_toml
from enginehouse_protocol.errors import RuleRefused
from enginehouse_protocol.permissions import Verdict

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


@dataclass(frozen=True, kw_only=True)
class WrittenRule:
    """One entry. `project` is the real path of the folder it holds in; None means everywhere."""

    effect: Verdict
    rule: str
    project: str | None = None
    added_at: datetime | None = None

    def same_as(self, other: "WrittenRule") -> bool:
        """Whether both say the same, whenever they were added."""
        return (self.effect, self.rule, self.project) == (other.effect, other.rule, other.project)


class RuleEntry(Section):
    """One permission rule."""

    effect: Verdict = Field(description="What happens to a tool use the rule matches; the strictest match counts.")
    rule: str = Field(min_length=1, description="What it matches, such as execute(git status *) or edit(src/**).")
    project: str | None = Field(default=None, description="The folder it holds in, absolute; without it everywhere.")
    added_at: AwareDatetime | None = None

    @field_validator("project")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not os.path.isabs(value):
            raise ValueError("must be an absolute path")
        return value

    @model_validator(mode="after")
    def _allows_no_more_than_it_says(self) -> "RuleEntry":
        if self.effect == "allow" and self.model_extra:
            key = next(iter(self.model_extra))
            raise ValueError(f"{key}: an unknown key in an allow rule, which it may have been meant to narrow")
        return self

    def as_rule(self) -> WrittenRule:
        return WrittenRule(effect=self.effect, rule=self.rule, project=self.project, added_at=self.added_at)


class PermissionsFile(Document):
    """The permission rules of one person."""

    rule: list[RuleEntry] = Field(default_factory=list[RuleEntry])


def read_rules(path: Path) -> list[WrittenRule]:
    """In the order of the file; none without a file. Raises `ProfileInvalid`. Blocks."""
    document = read_document(path, PermissionsFile)
    return [] if document is None else [entry.as_rule() for entry in document.rule]


def add_rule(path: Path, rule: WrittenRule) -> bool:
    """Append a rule (stamped now unless it has a time); False when it is there already. Blocks.

    The caller has checked that the text is a rule.

    Raises:
        RuleRefused: what TOML, or this file, cannot hold.
        ProfileInvalid, ProfileLocked, ProfileUnwritable: see `update_toml`.
    """
    import tomlkit
    from tomlkit.items import Array, Table

    for text in filter(None, (rule.rule, rule.project)):
        if not text.isprintable():
            raise RuleRefused(f"{text!r} cannot be stored as a rule: it holds characters that cannot be shown")
    if not rule.rule or (rule.project is not None and not os.path.isabs(rule.project)):
        raise RuleRefused(f"{rule.rule!r} for {rule.project!r} cannot be stored: a rule needs text and a whole path")

    def change(document: "TOMLDocument") -> bool:
        known = _entries(path, document)
        if any(rule.same_as(each) for each in known):
            return False
        if "version" not in document and not document.body:
            document.add("version", tomlkit.item(1))
        inline = isinstance(cast(Any, document).get("rule"), Array)
        entry = tomlkit.inline_table() if inline else tomlkit.table()
        entry["effect"] = rule.effect
        entry["rule"] = rule.rule
        if rule.project is not None:
            entry["project"] = rule.project
        entry["added_at"] = rule.added_at or datetime.now(UTC).replace(microsecond=0)
        if isinstance(entry, Table) and not tomlkit.dumps(document).endswith("\n\n"):
            entry.trivia.indent = "\n"  # a blank line above
        if "rule" not in document:
            document.add("rule", tomlkit.aot())
        document["rule"].append(entry)
        return True

    return update_toml(path, change)


def remove_rules(path: Path, unwanted: Callable[[WrittenRule], bool]) -> list[WrittenRule]:
    """Take out every rule `unwanted` says yes to, and return them. Raises like `add_rule`. Blocks."""

    def change(document: "TOMLDocument") -> list[WrittenRule]:
        rules = _entries(path, document)
        places = [place for place, rule in enumerate(rules) if unwanted(rule)]
        for place in reversed(places):
            del document["rule"][place]
        return [rules[place] for place in places]

    return [] if read_toml(path) is None else update_toml(path, change)


def _entries(path: Path, document: "TOMLDocument") -> list[WrittenRule]:
    return [entry.as_rule() for entry in checked(path, document.unwrap(), PermissionsFile).rule]
