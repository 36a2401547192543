"""What a request cost, and how full the model's context is, from its token counts.

Rule: where a count or a price is unknown the cost is unknown; it is never made up, and never nothing.
"""

import msgspec

from enginehouse_engines.openai_compatible.known_providers import ModelFacts, Price
from enginehouse_protocol.events import UsageUpdated

_TOKENS = 1_000_000


def accounted(usage: UsageUpdated, facts: ModelFacts, listed_window: int | None = None) -> UsageUpdated:
    """`usage`, with its cost and the size of the context. What the server said of either stands; `listed_window` is
    what its list of models says."""
    window = usage.context_window or facts.context_window or listed_window
    cost = usage.cost_usd if usage.cost_usd is not None else cost_usd(usage, facts.price)
    return msgspec.structs.replace(usage, cost_usd=cost, context_window=window)


def cost_usd(usage: UsageUpdated, price: Price) -> float | None:
    if usage.input_tokens is None or usage.output_tokens is None or price.input is None or price.output is None:
        return None
    cached = min(usage.cached_input_tokens or 0, usage.input_tokens)
    cached_price = price.input if price.cached_input is None else price.cached_input
    fresh = usage.input_tokens - cached
    return (fresh * price.input + cached * cached_price + usage.output_tokens * price.output) / _TOKENS
