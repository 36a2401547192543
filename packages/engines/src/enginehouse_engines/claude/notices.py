"""What a person should know of the CLI's doings that is no message of anybody.

Rule: a sentence of the CLI's own is never a message of the model. It is the failure's text, or one of these.
"""

from typing import Literal

from enginehouse_engines.claude.frames import AssistantFrame, SystemFrame
from enginehouse_engines.claude.stop_reasons import words_of
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.events import Notice
from enginehouse_protocol.ids import CallId
from enginehouse_protocol.permissions import JsonObject

RETRY = "provider.retry"
RATE_LIMIT = "provider.rate_limit"
SAID = "claude.said"
COMPACTION_FAILED = "claude.compaction_failed"


def retrying(frame: SystemFrame) -> Notice:
    """The CLI sends a request again."""
    what = (frame.error or "unknown").replace("_", " ")
    status = f" (HTTP {frame.error_status})" if frame.error_status is not None else ""
    cause = "The connection failed" if what == "unknown" and not status else f"The provider refused: {what}{status}"
    wait = f"{frame.retry_delay_ms / 1000:.2g} s ({frame.attempt} of {frame.max_retries})"
    return Notice(level="warning", code=RETRY, text=f"{cause}. Sending the request again in {wait}.")


def went_on(prose: AssistantFrame) -> Notice:
    """The CLI spoke of an error and went on all the same."""
    return Notice(level="warning", code=RETRY, text=words_of(prose))


def spoken(frame: AssistantFrame, parent: CallId | None) -> Notice:
    """The CLI speaks where a reply would be, of something it did by itself."""
    level: Literal["info", "warning"] = "info" if frame.error is None else "warning"
    return Notice(level=level, code=SAID, text=words_of(frame), parent_call_id=parent)


def informed(frame: SystemFrame) -> Notice:
    level: Literal["info", "warning"] = "warning" if frame.level in ("warning", "error") else "info"
    return Notice(level=level, code=SAID, text=frame.content)


def failed(error: EngineError) -> Notice:
    """A turn nobody asked for failed before it said anything."""
    return Notice(level="error", code=error.code, text=str(error))


def not_shortened(frame: SystemFrame) -> Notice:
    reason = frame.compact_error or "the CLI gave no reason"
    return Notice(level="warning", code=COMPACTION_FAILED, text=f"The conversation could not be shortened: {reason}")


def limited(info: JsonObject) -> Notice | None:
    """How far an account's limit is used up; None while there is nothing to say."""
    status, kind = str(info.get("status") or "allowed"), str(info.get("rateLimitType") or "").replace("_", " ")
    if status == "allowed":
        return None
    what = "is nearly used up" if status == "allowed_warning" else "is used up"
    return Notice(level="warning", code=RATE_LIMIT, text=f"The account's {f'{kind} ' if kind else ''}limit {what}.")
