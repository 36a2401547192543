"""Pieces of a streamed answer as servers write them, for the tests that break them.

Rule: text in, text out. What is wrong with a stream is written by the test itself.
"""

import json
from typing import Any

DONE = "data: [DONE]\n\n"


def event(**fields: Any) -> str:
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n"


def chunk(finish: str | None = None, usage: Any = None, **delta: Any) -> str:
    fields: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return event(**(fields if usage is None else fields | {"usage": usage}))


def fragment(
    arguments: Any = "", *, index: Any = None, id: str | None = None, name: str | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "function", "function": {"arguments": arguments}}
    if index is not None:
        found["index"] = index
    if id is not None:
        found["id"] = id
    if name is not None:
        found["function"]["name"] = name
    return found


def document(content: str | None, finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    """A whole completion, as a server answers that takes no notice of `stream`."""
    said = {"role": "assistant", "content": content, **message}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": said, "finish_reason": finish}]}
