"""A provider's refusals in our words: one stable code each, the provider's own sentence, the address, what to check.

Rule: the key never appears in a message, also where the provider repeats it.
"""

import email.utils
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any, cast

import msgspec

from enginehouse_engines.openai_compatible.faults import Fault, fault_of, readable
from enginehouse_protocol.engine import Secret
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.permissions import JsonObject

_MAX_WORDS = 600
_BAD_REQUEST = ("provider.bad_request", "the server refused the request")
_SERVER = ("provider.server_error", "this is the server's fault; try again")
_OVERLOADED = ("provider.overloaded", "try again later")
_LIMITED = ("provider.rate_limited", "wait and try again")
_KEY = ("provider.unauthorized", "check the API key for this address")
_QUOTA = ("provider.quota", "check the account's balance")
_TOO_MUCH = ("provider.context_exceeded", "the conversation is longer than the model can read")
_FILTERED = ("provider.content_filter", "the provider's filter refused this conversation")
IMAGES_REFUSED = "provider.images_refused"
_NO_IMAGES = (IMAGES_REFUSED, "choose a model that takes images")
_BY_STATUS = {
    400: _BAD_REQUEST,
    401: _KEY,
    402: _QUOTA,
    403: ("provider.forbidden", "check what this API key may use"),
    404: ("provider.not_found", "check the model's name and the base URL (many end in /v1)"),
    407: ("provider.proxy", "check HTTPS_PROXY"),
    408: ("provider.timeout", "try again"),
    409: ("provider.conflict", "try again"),
    413: ("provider.too_large", "the conversation is too large for this server"),
    422: _BAD_REQUEST,
    425: ("provider.conflict", "try again"),
    429: _LIMITED,
    503: _OVERLOADED,
    529: _OVERLOADED,
}
_BY_CODE = {
    "context_length_exceeded": _TOO_MUCH,
    "exceed_context_size_error": _TOO_MUCH,
    "insufficient_quota": _QUOTA,
    "exceeded_current_quota_error": _QUOTA,
    "billing_error": _QUOTA,
    "invalid_api_key": _KEY,
    "model_not_found": ("provider.not_found", "check the model's name"),
    "rate_limit_exceeded": _LIMITED,
    "content_filter": _FILTERED,
    "content_policy_violation": _FILTERED,
}
"""Codes that say more than a status does."""
_BY_KIND = {
    "server_error": _SERVER,
    "internal_error": _SERVER,
    "internal_server_error": _SERVER,
    "internalservererror": _SERVER,
    "api_error": _SERVER,
    "overloaded_error": _OVERLOADED,
    "engine_overloaded_error": _OVERLOADED,
    "service_unavailable": _OVERLOADED,
    "unavailable": _OVERLOADED,
    "rate_limit_error": _LIMITED,
    "rate_limit_reached_error": _LIMITED,
    "too_many_requests": _LIMITED,
    "timeout": ("provider.timeout", "try again"),
    "timeout_error": ("provider.timeout", "try again"),
    "authentication_error": _KEY,
    "permission_error": ("provider.forbidden", "check what this API key may use"),
    "invalid_request_error": _BAD_REQUEST,
    "badrequesterror": _BAD_REQUEST,
    "not_found_error": ("provider.not_found", "check the model's name"),
}
"""For an error inside a success, which has no status: what kind its provider says it is."""
_TOO_LONG = re.compile(
    r"(?i)context (length|window|size)|maximum context|exceeds? the (model|available) context|prompt is too long"
    r"|input is too long|too many (input )?tokens"
)
_TAKES_NO_IMAGES = re.compile(
    r"(?i)image input|support(ed by|s|ing)? images?\b|image_url is only supported|mmproj|no image support"
)
"""Some say so with the status of a fault of their own, which would be tried again."""
_HOPELESS_STATUS = frozenset({501, 505})


class ProviderError(EngineError):
    """What a provider did wrong. `retries`: how often the request may be sent again for it; None: as for its code."""

    retries: int | None = None

    def after(self, retries: int) -> "ProviderError":
        """The same, said by somebody who tried in vain."""
        times = "once" if retries == 1 else f"{retries} times"
        return ProviderError(
            f"{self} (tried again {times})",
            code=self.code,
            http_status=self.http_status,
            retry_after_s=self.retry_after_s,
        )


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
        retries: int | None = None,
    ) -> ProviderError:
        sentence = f"{self._address}: {self._clean(words)}"
        error = ProviderError(
            f"{sentence}; {advice}" if advice else sentence,
            code=code,
            http_status=http_status,
            retry_after_s=retry_after_s,
        )
        error.retries = retries
        return error

    def of_status(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """An answer with a status that is no success."""
        fault = _fault_in_body(body)
        if 300 <= status < 400:
            where = headers.get("location", "another address")
            return self.make(
                "provider.redirected", f"redirects to {where}", advice="use that as the base URL", http_status=status
            )
        code, advice = self._judge(status, fault)
        words = f"HTTP {status}: {fault.message}" if fault.message else f"HTTP {status} without an explanation"
        wait_s = retry_after_s(headers, self._clock())
        never = status in _HOPELESS_STATUS or headers.get("x-should-retry") == "false"
        return self.make(
            code,
            words,
            advice=f"it asks to wait {shown_s(wait_s)}" if wait_s else advice,
            http_status=status,
            retry_after_s=wait_s,
            retries=0 if never else None,
        )

    def of_fault(self, fault: Fault) -> ProviderError:
        """An error inside an answer that began as a success."""
        code, advice = self._judge(fault.http_status, fault)
        return self.make(code, fault.message, advice=advice, http_status=fault.http_status)

    def _judge(self, status: int | None, fault: Fault) -> tuple[str, str]:
        kind = fault.code.lower()
        if kind in _BY_CODE:
            return _BY_CODE[kind]
        if status in (None, 400, 413, 422) and _TOO_LONG.search(fault.message):
            return _TOO_MUCH
        if status in (None, 400, 404, 415, 422, 500, 501) and _TAKES_NO_IMAGES.search(fault.message):
            return _NO_IMAGES
        if status is None:
            return _BY_KIND.get(kind, ("provider.error", "what the server said is all that is known"))
        return _BY_STATUS.get(status) or (_SERVER if status >= 500 else _BAD_REQUEST)

    def _clean(self, words: str) -> str:
        words = " ".join(words.split())
        if self._hidden:
            words = words.replace(self._hidden, f"«secret:{self._secret_name}»")
        return words if len(words) <= _MAX_WORDS else f"{words[:_MAX_WORDS]}…"


def shown_s(seconds: float) -> str:
    """A wait as people read it."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


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
    if at.tzinfo is None:  # `-0000`: the date names no zone, HTTP's is always the same
        at = at.replace(tzinfo=UTC)
    return max(0.0, at.timestamp() - now_s)


def _fault_in_body(body: bytes) -> Fault:
    """The explanation in an error's body: JSON in one of the usual shapes, else the text itself."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Fault(message=readable(body))
    if isinstance(found, list) and found:
        found = cast(list[Any], found)[0]
    if isinstance(found, dict):
        fields = cast(JsonObject, found)
        return fault_of(fields["error"] if fields.get("error") else fields)
    return Fault(message="" if found is None else str(found))
