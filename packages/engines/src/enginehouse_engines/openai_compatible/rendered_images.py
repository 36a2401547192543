"""Images in a request: as the bytes they are, or in words for a model that takes none.

Rule: pure, like all rendering. A message without an image is the plain text it always was.

A tool message holds text only: that is all most servers take there. So a result names its images, and a user message
right after the results shows them.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from enginehouse_protocol.content import Content, Image, image_text
from enginehouse_protocol.events import DurableBody, Event, FromEngine, MessageUser, ToolResult, Unknown
from enginehouse_protocol.permissions import JsonObject

_NOT_SHOWN = "it cannot be shown to you"
_LOST = "it is lost"


@dataclass(frozen=True)
class ImagesAs:
    """How the images of one conversation are rendered."""

    shown: bool
    """False: in words."""
    data: Mapping[str, bytes]
    """By sha256."""

    def words_for(self, image: Image) -> str:
        """What stands where the image stood, whether it is shown below or not."""
        words = image_text(image)
        if self.shown and image.sha256 in self.data:
            return words
        return f"{words.removesuffix(']')}; {_LOST if self.shown else _NOT_SHOWN}]"

    def shown_of(self, content: Iterable[Content]) -> tuple[Image, ...]:
        if not self.shown:
            return ()
        return tuple(part for part in content if isinstance(part, Image) and part.sha256 in self.data)

    def parts(self, said: Sequence[tuple[str, tuple[Image, ...]]]) -> str | list[JsonObject]:
        """One user message of several texts, each followed by its images."""
        if not any(images for _, images in said):
            return "\n\n".join(text for text, _ in said)
        parts: list[JsonObject] = []
        waiting: list[str] = []
        for text, images in said:
            waiting.append(text)
            if images:
                parts.append(_text(waiting))
                parts += (self._part(image) for image in images)
                waiting = []
        return [*parts, _text(waiting)] if waiting else parts

    def _part(self, image: Image) -> JsonObject:
        data = base64.b64encode(self.data[image.sha256]).decode()
        return {"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{data}"}}


def _text(texts: list[str]) -> JsonObject:
    return {"type": "text", "text": "\n\n".join(texts)}


def images_of(body: DurableBody | Unknown) -> set[str]:
    """The blobs that rendering this needs."""
    if not isinstance(body, MessageUser | ToolResult):
        return set()
    if isinstance(body, FromEngine) and body.parent_call_id is not None:
        return set()  # a native subagent's own conversation is not this one
    return {part.sha256 for part in body.content if isinstance(part, Image)}


def images_in(events: Iterable[Event]) -> set[str]:
    return set().union(*(images_of(event.body) for event in events))
