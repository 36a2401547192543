"""A provider's refusals in our words: one stable code each, the provider's own sentence, the address, what to check.

Rule: the key never appears in a message, also where the provider repeats it.
"""

import email.utils
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from enginehouse_engines.openai_compatible.stream import Fault, fault_of
from enginehouse_protocol.engine import Secret
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.permissions import JsonObject

_MAX_WORDS = 600
_BY_STATUS = {
    400: ("provider.bad_request", "the server refused the request"),
    401: ("provider.unauthorized", "check the API key for this address"),
    402: ("provider.quota", "check the account's balance"),
    403: ("provider.forbidden", "check what this API key may use"),
    404: ("provider.not_found", "check the model's name and the base URL (many end in /v1)"),
    408: ("provider.timeout", "try again"),
    413: ("provider.too_large", "the conversation is too large for this server"),
    422: ("provider.bad_request", "the server refused the request"),
    429: ("provider.rate_limited", "wait and try again"),
    503: ("provider.overloaded", "try again later"),
    529: ("provider.overloaded", "try again later"),
}
_BY_CODE = {
    "context_length_exceeded": ("provider.context_exceeded", "the conversation is longer than the model can read"),
    "insufficient_quota": ("provider.quota", "check the account's balance"),
    "invalid_api_key": ("provider.unauthorized", "check the API key for this address"),
    "model_not_found": ("provider.not_found", "check the model's name"),
    "rate_limit_exceeded": ("provider.rate_limited", "wait and try again"),
}


class ProviderErrors:
    """Makes the errors of one provider: it knows the address to name and the key to hide."""

    def __init__(self, address: str, secret: Secret | None, clock: Callable[[], float] = time.time) -> None:
        self._address = address
        self._hidden = secret.reveal().strip() if secret is not None else ""
        self._secret_name = secret.name if secret is not None else ""
        self._clock = clock

    def make(
        self,
        code: str,
        words: str,
        *,
        advice: str = "",
        http_status: int | None = None,
        retry_after_s: float | None = None,
    ) -> EngineError:
        sentence = f"{self._address}: {self._clean(words)}"
        return EngineError(
            f"{sentence}; {advice}" if advice else sentence,
            code=code,
            http_status=http_status,
            retry_after_s=retry_after_s,
        )

    def of_status(self, status: int, headers: Mapping[str, str], body: bytes) -> EngineError:
        """An answer with a status that is no success."""
        fault = _fault_in_body(body)
        if 300 <= status < 400:
            where = headers.get("location", "another address")
            return self.make(
                "provider.redirected", f"redirects to {where}", advice="use that as the base URL", http_status=status
            )
        code, advice = self._judge(status, fault.code)
        words = f"HTTP {status}: {fault.message}" if fault.message else f"HTTP {status} without an explanation"
        return self.make(
            code,
            words,
            advice=advice,
            http_status=status,
            retry_after_s=retry_after_s(headers, self._clock()),
        )

    def of_fault(self, fault: Fault) -> EngineError:
        """An error inside an answer that began as a success."""
        code, advice = self._judge(fault.http_status, fault.code)
        return self.make(code, fault.message, advice=advice, http_status=fault.http_status)

    def _judge(self, status: int | None, provider_code: str) -> tuple[str, str]:
        if provider_code in _BY_CODE:
            return _BY_CODE[provider_code]
        if status in _BY_STATUS:
            return _BY_STATUS[status]
        if status is not None and status >= 500:
            return "provider.server_error", "this is the server's fault; try again"
        if status is not None:
            return "provider.bad_request", "the server refused the request"
        return "provider.error", ""

    def _clean(self, words: str) -> str:
        words = " ".join(words.split())
        if self._hidden:
            words = words.replace(self._hidden, f"«secret:{self._secret_name}»")
        return words if len(words) <= _MAX_WORDS else f"{words[:_MAX_WORDS]}…"


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """How long the server asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * factor
        except (KeyError, ValueError):
            continue
        return seconds if 0 <= seconds < float("inf") else None
    try:
        at = email.utils.parsedate_to_datetime(headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return max(0.0, at.timestamp() - now_s)


def _fault_in_body(body: bytes) -> Fault:
    """The explanation in an error's body: JSON in one of the usual shapes, else the text itself."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Fault(message=body[: 4 * _MAX_WORDS].decode("utf-8", "replace").strip())
    if isinstance(found, list) and found:
        found = cast(list[Any], found)[0]
    if isinstance(found, dict):
        fields = cast(JsonObject, found)
        return fault_of(fields["error"] if fields.get("error") else fields)
    return Fault(message=str(found))
