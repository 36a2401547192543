"""What a conversation has cost so far.

Rule: totals are sums, and a part nobody knows makes the total unknown, never smaller.
"""

from enginehouse_protocol.events import UsageUpdated

_COUNTED = ("input_tokens", "cached_input_tokens", "output_tokens")


class UsageTotals:
    def __init__(self) -> None:
        self._requests = 0
        self._tokens: dict[str, int | None] = dict.fromkeys(_COUNTED, 0)
        self._cost_usd: float | None = 0.0

    def add(self, usage: UsageUpdated) -> None:
        self._requests += 1
        for name in _COUNTED:
            had, came = self._tokens[name], getattr(usage, name)
            self._tokens[name] = None if had is None or came is None else had + came
        had = self._cost_usd
        self._cost_usd = None if had is None or usage.cost_usd is None else had + usage.cost_usd

    def summary(self) -> str:
        """One line; empty when nothing was reported."""
        if not self._requests:
            return ""
        cached = self._tokens["cached_input_tokens"]
        said = f"tokens: {_count(self._tokens['input_tokens'])} in"
        if cached:
            said += f" ({_count(cached)} cached)"
        said += f", {_count(self._tokens['output_tokens'])} out"
        return said if self._cost_usd is None else f"{said} · ${self._cost_usd:.4f}"


def _count(tokens: int | None) -> str:
    if tokens is None:
        return "unknown"
    return str(tokens) if tokens < 10_000 else f"{tokens / 1000:.1f}k"
