"""A server's token counts in our words.

Rule: what was not counted is unknown, never nothing, and every request counts once, however often it is reported.
"""

from enginehouse_engines.openai_compatible.faults import inner
from enginehouse_protocol.events import UsageUpdated
from enginehouse_protocol.permissions import JsonObject


def usage_of(usage: JsonObject) -> UsageUpdated:
    """A server's token counts in our words. What it did not say stays unknown, and a prompt of no
    tokens was not counted."""
    prompt = _count(usage.get("prompt_tokens")) or None
    output = _count(usage.get("completion_tokens"))
    if prompt is None and not output:
        return UsageUpdated(scope="request")
    cached = _count(inner(usage, "prompt_tokens_details").get("cached_tokens"))
    return UsageUpdated(
        scope="request",
        input_tokens=prompt,
        cached_input_tokens=cached if cached is not None else _count(usage.get("prompt_cache_hit_tokens")),
        output_tokens=output,
        reasoning_tokens=_count(inner(usage, "completion_tokens_details").get("reasoning_tokens")),
        cost_usd=_dollars(usage.get("cost")),
        context_tokens=None if prompt is None or output is None else prompt + output,
    )


def later(known: UsageUpdated, found: UsageUpdated) -> UsageUpdated:
    """`found`, with what only an earlier report said."""
    names = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "cost_usd")
    numbers = {name: getattr(known, name) if getattr(found, name) is None else getattr(found, name) for name in names}
    prompt, output = numbers["input_tokens"], numbers["output_tokens"]
    context = None if prompt is None or output is None else prompt + output
    return UsageUpdated(scope="request", **numbers, context_tokens=context)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _dollars(value: object) -> float | None:
    """What a broker says this request cost; others put something else under that name."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < float("inf") else None
