"""What a server says that went wrong, found in whatever shape it says it.

Rule: the provider's own words are kept. Nothing here judges them; `provider_errors` does.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from enginehouse_protocol.permissions import JsonObject

_MAX_CHARS = 2000


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An error a server reported inside an answer that began as a success."""

    message: str
    code: str = ""
    http_status: int | None = None


def fault_in(found: JsonObject) -> Fault | None:
    error: Any = found.get("error")
    if error is None and "error" in (found.get("object"), found.get("type")):
        error = found
    return fault_of(error) if error else None


def fault_of(error: object) -> Fault:
    """An error in whatever shape a server gives it."""
    if not isinstance(error, dict):
        return Fault(message=str(error))
    fields = cast(JsonObject, error)
    code = fields.get("code")
    if isinstance(nested := fields.get("error"), dict) and "message" not in fields:
        return fault_of(nested)
    words = next((fields[key] for key in ("message", "detail", "error", "msg") if isinstance(fields.get(key), str)), "")
    if isinstance(raw := inner(fields, "metadata").get("raw"), str):  # a broker's own words, then its provider's
        words = f"{words}: {raw}"
    status = int(code) if isinstance(code, str) and code.isascii() and code.isdecimal() and len(code) == 3 else code
    return Fault(
        message=words or json.dumps(fields, ensure_ascii=False),
        code=str(code if code is not None else fields.get("type") or ""),
        http_status=status if isinstance(status, int) and 400 <= status < 600 else None,
    )


_NOT_READ = re.compile(r"(?is)<(script|style|head)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")
_TITLE = re.compile(r"(?is)<title[^>]*>(.*?)</title")


def readable(body: bytes) -> str:
    """The beginning of a body in one line, a page without its tags, short enough to be read."""
    text = body[: 16 * _MAX_CHARS].decode("utf-8", "replace").replace("\0", "\ufffd")
    if text.lstrip()[:1] == "<":
        title = _TITLE.search(text)
        text = f"{title[1] if title else ''} {_NOT_READ.sub(' ', text)}"
    return " ".join(text.split())[:_MAX_CHARS]


def inner(fields: JsonObject, key: str) -> JsonObject:
    found: Any = fields.get(key)
    return cast(JsonObject, found) if isinstance(found, dict) else {}
