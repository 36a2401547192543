"""What a tool's result says: how it ended, what the model reads.

Rule: the CLI calls everything an error that is no success. Which of them is a denial and which an interrupt is decided
here, from what we answered, from the CLI's mark, and only then from its stock sentences.
"""

import base64
from typing import Any, Literal, cast

from enginehouse_protocol.content import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES, Content, Image, Text
from enginehouse_protocol.image_headers import image_header
from enginehouse_protocol.permissions import Decision, Deny, Expired, JsonObject

Status = Literal["ok", "error", "denied", "interrupted", "unknown"]
_ABORTED = "user-rejected"
"""How the CLI marks a use that an interrupt ended, or kept from running."""
_REFUSED = "permission-rule"
_STOCK = ("The user doesn't want to proceed with this tool use.", "[Request interrupted by user")
"""How results begin that the CLI makes when a use is interrupted; older ones carry no mark."""


def is_running(structured: object) -> bool:
    """Whether a first result only says that the work was begun."""
    if not isinstance(structured, dict):
        return False
    data = cast(JsonObject, structured)
    return bool(data.get("backgroundTaskId")) or data.get("isAsync") is True or data.get("status") == "async_launched"


def status_of(
    text: str, *, is_error: bool, decision: Decision | None, refused: bool, mark: str, interrupting: bool
) -> Status:
    """`refused`: the CLI said no by itself. `mark` is its own word for why a use did not run."""
    if not is_error:
        return "ok"
    if isinstance(decision, Deny) or (isinstance(decision, Expired) and not interrupting):
        return "denied"
    if mark == _ABORTED or text.startswith(_STOCK):
        return "interrupted"
    if refused or mark == _REFUSED:
        return "denied"
    return "interrupted" if interrupting else "error"


def content_of(content: Any) -> tuple[Content, ...]:
    """What the model reads as the result. What is no text and no image a record can hold is named in words."""
    if isinstance(content, str):
        return (Text(text=content),) if content else ()
    if not isinstance(content, list):
        return ()
    parts: list[Content] = []
    images_bytes = images = 0
    for each in cast(list[Any], content):
        block = cast(JsonObject, each) if isinstance(each, dict) else {"type": "text", "text": str(each)}
        text: Any = block.get("text")
        if isinstance(text, str):
            parts.append(Text(text=text))
            continue
        image = _image(block)
        size_bytes = len(image.data or b"") if image is not None else 0
        if image is None or images == MAX_IMAGES or images_bytes + size_bytes > MAX_IMAGES_BYTES:
            parts.append(Text(text=f"[{block.get('type') or 'something unknown'}]"))
            continue
        images, images_bytes = images + 1, images_bytes + size_bytes
        parts.append(image)
    return tuple(parts)


def _image(block: JsonObject) -> Image | None:
    """An image handed in by value. Its kind is what its bytes say: core refuses one that says something else."""
    source: Any = block.get("source")
    encoded: Any = cast(JsonObject, source).get("data") if isinstance(source, dict) else None
    if block.get("type") != "image" or not isinstance(encoded, str):
        return None
    try:
        data = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    header = image_header(data)
    return None if header is None or len(data) > MAX_IMAGE_BYTES else Image(media_type=header.media_type, data=data)
