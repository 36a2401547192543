"""What messages and tool results are made of.

Rule: a record stays under 1 MiB. What is longer is a *spill*: head and tail stay in the event, the whole is a blob of
the session, and the agent reads it under the name `SpilledText.blob_name` in its scratch folder.
"""

from typing import Literal

import msgspec


class Text(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class SpilledText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="spilled"):
    """Text too long for a record. `head` and `tail` are cut on character boundaries and do not overlap."""

    head: str
    tail: str
    size_bytes: int
    """Of the whole, as UTF-8."""
    sha256: str
    """Of the whole, as UTF-8; also the blob's name."""

    @property
    def blob_name(self) -> str:
        return f"{self.sha256}.txt"


Content = Text | SpilledText
LongText = str | SpilledText
"""A single text that is nearly always short."""


class FileChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tool did, or would do, to one file."""

    path: str
    change: Literal["created", "modified", "deleted"]
    diff: str = ""
    """Unified, without file headers. Empty when the file is binary."""
    cut: bool = False
    """True when `diff` is only its beginning."""


def plain(text: LongText) -> str:
    """The text, or what a record kept of it, with the gap said."""
    if isinstance(text, str):
        return text
    missing = text.size_bytes - len(text.head.encode()) - len(text.tail.encode())
    return f"{text.head}\n[… {missing} bytes not shown …]\n{text.tail}"


def content_text(content: tuple[Content, ...]) -> str:
    """All of it as one text, for people and for engines that take nothing else."""
    return "\n".join(part.text if isinstance(part, Text) else plain(part) for part in content)
