"""What servers call the end of a reply, in our words.

Rule: a reason is only evidence. Calls that are there are there, whatever it says; a word nobody knows is an ordinary
end.
"""

from typing import Literal

Finish = Literal["end", "too_long", "filtered", "broken"]
_TOO_LONG = "length max_tokens max_output_tokens max_completion_tokens max_length model_length token_limit"
_FILTERED = (
    "content_filter content_filtered content_filtering safety sensitive refusal recitation prohibited_content "
    "blocklist spii guardrail_intervened"
)
_BROKEN = "error network_error engine_error server_error insufficient_system_resource abort aborted cancelled timeout"
_KNOWN: dict[str, Finish] = {
    **dict.fromkeys(_TOO_LONG.split(), "too_long"),
    **dict.fromkeys(_FILTERED.split(), "filtered"),
    **dict.fromkeys(_BROKEN.split(), "broken"),
}
CALLS = frozenset({"tool_calls", "function_call", "tool_use"})
"""Reasons that announce calls."""


def meaning(reason: str | None) -> Finish:
    return _KNOWN.get((reason or "").lower(), "end")
