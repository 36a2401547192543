"""What messages and tool results are made of.

Rule: a record stays under 1 MiB. What is longer is a *spill*: head and tail stay in the event, the whole is a blob of
the session, and the agent reads it under the name `SpilledText.blob_name` in its scratch folder. An image is always a
blob, however small.
"""

from typing import Literal

import msgspec

from enginehouse_protocol.image_headers import ImageType

MAX_IMAGE_BYTES = 20_000_000
MAX_IMAGES = 20
"""In one message or tool result."""
MAX_IMAGES_BYTES = 40_000_000
"""Of all that are handed in at once: as base64 they must fit into one line of a connection."""


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


class Image(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="image", omit_defaults=True):
    """A picture. A record has it by reference: `sha256` names the session's blob that holds its bytes.

    It is handed in, by a host in a message or by an engine in a tool result, as `data`, in JSON base64. Core checks it,
    stores the blob and records the reference; `data` is never recorded. One the session has already may also be
    handed in by its `sha256`, as it stands in the record.
    """

    media_type: ImageType
    """What its first bytes say it is; core refuses one that is not."""
    sha256: str = ""
    """Of its bytes; also the blob's name. Empty on the way in."""
    size_bytes: int = 0
    width: int | None = None
    height: int | None = None
    """Pixels, when the header says so."""
    name: str = ""
    """For people and models: the file it came from, without its folder."""
    data: bytes | None = None
    """Only on the way in."""

    def __post_init__(self) -> None:
        if bool(self.sha256) == (self.data is not None):
            raise ValueError("an image has either `sha256`, of a blob, or `data`")


Content = Text | SpilledText | Image
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


def image_text(image: Image) -> str:
    """`[image: plan.png, 1200×800, 48 kB]`. On one line, whatever its name is."""
    name = image.name if image.name.isprintable() else msgspec.json.encode(image.name).decode()
    size = f"{image.width}×{image.height}" if image.width and image.height else ""
    size_bytes = image.size_bytes if image.data is None else len(image.data)
    kind = image.media_type.removeprefix("image/").upper()
    return f"[image: {', '.join(part for part in (name or kind, size, _weight(size_bytes)) if part)}]"


def _weight(size_bytes: int) -> str:
    if size_bytes < 1_000:
        return f"{size_bytes} bytes"
    return f"{size_bytes / 1_000:.0f} kB" if size_bytes < 999_500 else f"{size_bytes / 1_000_000:.1f} MB"


def content_text(content: tuple[Content, ...]) -> str:
    """All of it as one text, for people and for engines that take nothing else."""
    return "\n".join(_in_words(part) for part in content)


def _in_words(part: Content) -> str:
    match part:
        case Text(text=text):
            return text
        case Image():
            return image_text(part)
        case SpilledText():
            return plain(part)
