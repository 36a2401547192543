"""What a turn cost, as an increment.

Rule: only `model_usage_since_last_result` is counted: it has the subagents and the retries, and it is a difference also
after a resume. `usage` lacks the subagents, and `modelUsage` grows over resumes and forks. What is not said is unknown.
"""

from collections.abc import Iterable
from typing import Literal

from enginehouse_engines.claude.frames import ResultFrame
from enginehouse_protocol.events import UsageUpdated
from enginehouse_protocol.permissions import JsonObject

_OF_A_REQUEST = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_PROMPT = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")


class Gauges:
    """How full the context is, as far as the requests of the main conversation tell."""

    def __init__(self) -> None:
        self._tokens: int | None = None
        self._window: int | None = None
        self._model = ""

    def request(self, usage: JsonObject | None) -> None:
        """The provider's own count for one request of the main conversation."""
        if usage is not None and _int(usage, "input_tokens") is not None:
            self._tokens = sum(_int(usage, key) or 0 for key in _OF_A_REQUEST)

    def compacted(self, tokens: int | None) -> None:
        self._tokens = tokens

    def model(self, name: str) -> None:
        if name and name != self._model:
            self._model = name
            self._window = None

    def of_turn(self, result: ResultFrame) -> UsageUpdated | None:
        """None when nothing was asked of a model."""
        said = result.model_usage_since_last_result
        for models in (result.model_usage or {}, said or {}):
            window = models.get(self._model, {}).get("contextWindow")
            self._window = window if isinstance(window, int) else self._window
        models = list((said or {}).values())
        if said is not None and not models:
            return None
        if said is None or any(_uncounted(model) for model in models):
            return self._update(None, None, None, None, None, None)
        prompts = [_sum(_int(model, key) for key in _PROMPT) for model in models]
        return self._update(
            _sum(prompts),
            _sum(_int(model, "cacheReadInputTokens") for model in models),
            _sum(_int(model, "cacheCreationInputTokens") for model in models),
            _sum(_int(model, "outputTokens") for model in models),
            _sum(_int(model, "thinkingTokens") for model in models),
            _cost(models),
        )

    def _update(
        self,
        prompt: int | None,
        cached: int | None,
        written: int | None,
        output: int | None,
        reasoning: int | None,
        cost_usd: float | None,
        scope: Literal["request", "turn"] = "turn",
    ) -> UsageUpdated:
        return UsageUpdated(
            scope=scope,
            input_tokens=prompt,
            cached_input_tokens=cached,
            cache_write_tokens=written,
            output_tokens=output,
            reasoning_tokens=reasoning,
            cost_usd=cost_usd,
            context_tokens=self._tokens,
            context_window=self._window,
        )


class Uncounted:
    """What was asked of models since the last result: all there is to go by when the CLI dies before the next one."""

    def __init__(self) -> None:
        self._asked = False
        self._under_way = False
        self._blind = False
        self._sums: dict[str, int | None] = dict.fromkeys(_OF_A_REQUEST, 0)

    def asked(self) -> None:
        """A request of the main conversation is sent."""
        self._asked = self._under_way = True

    def began(self, *, streaming: bool) -> None:
        """Its answer began. One that began before and never ended was cut: nobody knows what that cost."""
        self._blind = self._blind or streaming
        self.asked()

    def ended(self, usage: JsonObject | None) -> None:
        self._under_way = False
        for key in _OF_A_REQUEST:
            before, more = self._sums[key], _int(usage or {}, key)
            self._sums[key] = None if before is None or more is None else before + more

    def elsewhere(self) -> None:
        """A subagent, or an answer that was not streamed: their numbers do not come with them."""
        self._asked = self._blind = True

    def at_death(self) -> UsageUpdated | None:
        if not self._asked:
            return None
        if self._blind or self._under_way:
            return UsageUpdated(scope="turn")
        fresh, cached, written, output = (self._sums[key] for key in _OF_A_REQUEST)
        return UsageUpdated(
            scope="turn",
            input_tokens=_sum((fresh, cached, written)),
            cached_input_tokens=cached,
            cache_write_tokens=written,
            output_tokens=output,
        )


def _uncounted(model: JsonObject) -> bool:
    """Nothing in and nothing out is no request: the provider named no numbers, and the CLI wrote zeros."""
    return not any(_int(model, key) for key in (*_PROMPT, "outputTokens"))


def _int(model: JsonObject, key: str) -> int | None:
    value = model.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Unknown when one of them is."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _cost(models: list[JsonObject]) -> float | None:
    """Unknown when the CLI only guessed the price of one of the models."""
    total = 0.0
    for model in models:
        cost = model.get("costUSD")
        if not isinstance(cost, int | float) or isinstance(cost, bool) or model.get("costBasis") == "unknown":
            return None
        total += cost
    return total
