"""A turn's messages as the CLI takes them.

Rule: it is told what the person sent, whole: long texts and pictures are fetched from the session's blobs. What cannot
be fetched is said in words.
"""

import base64
import logging
from collections.abc import Iterable

from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.content import Content, Image, SpilledText, Text, content_text, plain
from enginehouse_protocol.engine import History
from enginehouse_protocol.errors import FileUnusable
from enginehouse_protocol.events import MessageUser
from enginehouse_protocol.permissions import JsonObject

_EMPTY = "(an empty message)"
"""The API refuses a message without content."""


async def blocks_of(messages: Iterable[MessageUser], history: History, log: logging.Logger) -> list[JsonObject]:
    """Content blocks of one user message."""
    blocks: list[JsonObject] = []
    for message in messages:
        for part in message.content:
            try:
                blocks.append(await _block(part, history))
            except FileUnusable as error:
                log.warning("part of a message is told in words only: %s", error)
                blocks.append(text_block(content_text((part,))))
    return [block for block in blocks if block.get("text") != ""] or [text_block(_EMPTY)]


async def _block(part: Content, history: History) -> JsonObject:
    match part:
        case Text(text=text):
            return text_block(text)
        case SpilledText(sha256=sha256):
            return text_block((await history.blob(sha256)).decode(errors="replace") or plain(part))
        case Image(media_type=media_type):
            data = part.data if part.data is not None else await history.blob(part.sha256)
            source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
            return {"type": "image", "source": source}


def text_block(text: str) -> JsonObject:
    return {"type": "text", "text": well_formed(text)}
