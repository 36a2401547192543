"""When a request is sent again, and after how long a wait.

Rules: one extra request for one fault; what waiting cannot mend is never tried again; every fault has its own bound and
all of them together have one; a server that asks for a wait gets it, up to a limit.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from enginehouse_engines.openai_compatible.options import Options
from enginehouse_engines.openai_compatible.provider_errors import ProviderError

MOST: dict[str, int] = {
    "provider.rate_limited": 6,
    "provider.overloaded": 6,
    "provider.server_error": 4,
    "provider.conflict": 3,
    "provider.cut_stream": 3,
    "provider.timeout": 2,
    "provider.unreachable": 2,
    "provider.proxy": 1,
    "provider.error": 1,
}
"""How often one request is sent again for a fault. What is not here is never tried again."""
_MOST_BACKOFF_S = 30.0
_JITTER = 0.25
"""Many sessions that failed together must not come back together."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    wait_s: float
    number: int
    """From 1, of all retries of this request."""
    most: int
    """How many there may be if this fault goes on."""


class Retries:
    """The retries of one request. Ask once for every failure."""

    def __init__(self, options: Options, chance: Callable[[], float] = random.random) -> None:
        self._options = options
        self._chance = chance
        self._by_code: Counter[str] = Counter()

    @property
    def made(self) -> int:
        return self._by_code.total()

    def after(self, error: ProviderError) -> Retry | None:
        """What to do about it; None: give up."""
        most = MOST.get(error.code, 0) if error.retries is None else error.retries
        most = min(most - self._by_code[error.code], self._options.max_retries - self.made)
        wait_s = self._wait_s(error)
        if most <= 0 or wait_s is None:
            return None
        self._by_code[error.code] += 1
        return Retry(wait_s=wait_s, number=self.made, most=self.made - 1 + most)

    def _wait_s(self, error: ProviderError) -> float | None:
        if error.retry_after_s is not None:
            return error.retry_after_s if error.retry_after_s <= self._options.max_retry_wait_s else None
        backoff_s = min(self._options.retry_wait_s * 2**self.made, _MOST_BACKOFF_S)
        return backoff_s * (1 + _JITTER * (2 * self._chance() - 1))
