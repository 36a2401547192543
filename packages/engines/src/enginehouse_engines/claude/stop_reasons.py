"""How a turn of the CLI ended, in our words.

Rule: the order decides, because a result says several things at once: an interrupted turn calls itself an error, and
so does a refused one. Aborted, then turns, budget, refusal, output limit; only what is left is a failure.
"""

from enginehouse_engines.claude.frames import AssistantFrame, ResultFrame
from enginehouse_protocol.engine import TurnEnd
from enginehouse_protocol.errors import EngineError

_BY_TERMINAL = {"prompt_too_long": "provider.context_exceeded", "image_error": "provider.too_large"}
_BY_ERROR = {
    "rate_limit": "provider.rate_limited",
    "overloaded": "provider.overloaded",
    "authentication_failed": "provider.unauthorized",
    "billing_error": "provider.quota",
    "model_not_found": "provider.not_found",
    "connection_failed": "provider.unreachable",
    "timeout": "provider.timeout",
}
_BY_STATUS = {
    400: "provider.bad_request",
    401: "provider.unauthorized",
    402: "provider.quota",
    403: "provider.forbidden",
    404: "provider.not_found",
    408: "provider.timeout",
    413: "provider.too_large",
    422: "provider.bad_request",
    429: "provider.rate_limited",
    503: "provider.overloaded",
    529: "provider.overloaded",
}
_PROSE = "API Error: "


def end_of(result: ResultFrame, prose: AssistantFrame | None) -> TurnEnd | EngineError:
    """`prose` is the last sentence of the CLI's own in this turn, which says what kind of error it was."""
    error = prose.error if prose is not None else None
    words = words_of(prose) or (result.result or "").removeprefix(_PROSE)
    limits = "; ".join(_sentences(result))
    match result:
        case ResultFrame(terminal_reason=str(reason)) if reason.startswith("aborted"):
            return TurnEnd(stop="interrupted")
        case ResultFrame(subtype="error_max_turns") | ResultFrame(terminal_reason="max_turns"):
            return TurnEnd(stop="max_steps", detail=limits)
        case ResultFrame(subtype="error_max_budget_usd") | ResultFrame(terminal_reason="budget_exhausted"):
            return TurnEnd(stop="budget", detail=limits)
        case ResultFrame(stop_reason="refusal"):
            return TurnEnd(stop="refused", detail=words if result.is_error else "")
        case ResultFrame(is_error=True) if "max_output_tokens" in (error, result.api_error):
            return TurnEnd(stop="max_tokens", detail=words)
        case ResultFrame(is_error=False):
            return TurnEnd(stop="max_tokens" if result.stop_reason == "max_tokens" else "end")
        case _:
            return EngineError(
                words or limits or f"the turn failed without an explanation ({result.subtype or 'no subtype'})",
                code=_code(result, prose),
                http_status=result.api_error_status,
            )


def words_of(prose: AssistantFrame | None) -> str:
    """The CLI's sentence without its prefix."""
    if prose is None or isinstance(prose.message.content, str):
        return "" if prose is None else str(prose.message.content).removeprefix(_PROSE)
    texts = (block.get("text") for block in prose.message.content)
    return "\n".join(text for text in texts if isinstance(text, str)).removeprefix(_PROSE)


def _code(result: ResultFrame, prose: AssistantFrame | None) -> str:
    """The most telling of what is known: why the turn stopped, the kind of error, the status."""
    if (code := _BY_TERMINAL.get(result.terminal_reason or "")) is not None:
        return code
    status = result.api_error_status
    api_error = prose.api_error if prose is not None else result.api_error
    error = prose.error if prose is not None else None
    if status is not None and (status in (403, 413, 503, 529) or error in ("unknown", "invalid_request", None)):
        return _BY_STATUS.get(status, "provider.server_error" if status >= 500 else "provider.bad_request")
    for word in (api_error, error):
        if (code := _BY_ERROR.get(word or "")) is not None:
            return code
    if error == "server_error":
        return "provider.server_error" if status is not None else "provider.unreachable"
    if error == "invalid_request":
        return "provider.bad_request"
    return "provider.error" if result.terminal_reason == "api_error" else "engine.failed"


def _sentences(result: ResultFrame) -> list[str]:
    """What the CLI lists as errors, without its diagnostics, which say nothing to anybody."""
    return [each for each in result.errors or [] if not each.startswith("[ede_diagnostic]")]
