"""Watches one turn for a model that gets nowhere: it says nothing, or makes the same calls over and over.

Rules: first it is told, then it is told that the turn will end, then the turn ends, with everything recorded. A call
whose result changes is not going nowhere: waiting for something looks like that, so it has far more patience. All it
knows is this turn; a person's message begins anew.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from enginehouse_engines.openai_compatible.tool_fragments import Call

EMPTY_REPLY = "guard.empty_reply"
"""Code of the notice that stands for a message to the model: a renderer shows it as the user's side."""
REPEATED = "guard.repeated_calls"
STOPPED = "guard.stopped"
SAME_RESULT = (3, 5, 8)
"""At which round of the same calls with the same results the model is told, told at last, and stopped."""
OTHER_RESULTS = (10, 20, 30)
"""The same for calls that are the same while their results are not."""
EMPTY_REPLIES = 3
"""The turn ends with this many in a row."""
_PERIODS = (1, 2, 3)
"""The same call; two in turns; three in turns."""
_REMEMBERED = OTHER_RESULTS[-1] * _PERIODS[-1] + 1
_LAST_STEPS = {5: 10, 1: 4}
"""Model calls left → the smallest limit at which that is worth saying."""


Result = tuple[str, str]
"""Status and text."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    to_model: str
    to_person: str
    stop: bool = False
    unless_changed: int | None = None
    """It is void when the last call's result is another than before, which is known only afterwards."""

    def holds(self, last: Result) -> bool:
        return self.unless_changed is None or self.unless_changed == hash(last)


@dataclass(frozen=True)
class _Round:
    calls: Hashable
    results: tuple[int, ...]


class Guard:
    """One turn's. Ask `empty_reply` or `about_to` for every reply, and say what `came_of` its calls."""

    def __init__(self) -> None:
        self._past: deque[_Round] = deque(maxlen=_REMEMBERED)
        self._empty = 0

    def empty_reply(self) -> Advice:
        """The reply had neither text nor calls."""
        self._empty += 1
        if self._empty >= EMPTY_REPLIES:
            words = f"the model gave {self._empty} empty replies in a row"
            return Advice(to_model="", to_person=f"The turn was ended: {words}.", stop=True)
        told = "Your last reply was empty: it had neither text nor a tool call. "
        if self._empty == 1:
            told += "If the task is done, say in a few sentences what you did; otherwise go on with it."
        else:
            told += "Answer now in words, also if you cannot go on: say why. After another empty reply the turn ends."
        return Advice(to_model=told, to_person=told)

    def about_to(self, calls: Sequence[Call]) -> Advice | None:
        """What to say about making these calls now; with `stop`, do not make them."""
        self._empty = 0
        made = _signature(calls)
        for period in _PERIODS:
            unchanged = self._rounds(made, period, with_results=True)
            if advice := _advice(unchanged, SAME_RESULT, period, "with the same result"):
                return advice if advice.stop else replace(advice, unless_changed=self._past[-period].results[-1])
            similar = self._rounds(made, period, with_results=False)
            if similar > unchanged and (advice := _advice(similar, OTHER_RESULTS, period, "")):
                return advice
        return None

    def came_of(self, calls: Sequence[Call], results: Sequence[Result]) -> None:
        """What every call gave, in their order."""
        self._past.append(_Round(_signature(calls), tuple(hash(result) for result in results)))

    def _rounds(self, calls: Hashable, period: int, *, with_results: bool) -> float:
        """How many rounds of `period` steps these calls would complete, each like the one before."""
        past = self._past
        if len(past) < period or past[-period].calls != calls:
            return 1
        if period > 1 and len({each.calls for each in list(past)[-period:]}) == 1:
            return 1  # the shorter period's business
        same = 0
        for at in range(len(past) - 1, period - 1, -1):
            now, before = past[at], past[at - period]
            if now.calls != before.calls or (with_results and now.results != before.results):
                break
            same += 1
        return (same + period + 1) / period


def steps_left(left: int, limit: int) -> str:
    """What the model is told when a turn nears its limit of model calls; empty when it does not."""
    if left not in _LAST_STEPS or limit < _LAST_STEPS[left]:
        return ""
    if left == 1:
        return (
            "Your next reply is the last of this turn: no tool will be run after it. Say what is done and what is not."
        )
    return f"Only {left} more replies are possible in this turn. Bring the work into a good state."


def _signature(calls: Sequence[Call]) -> Hashable:
    return tuple((call.name, call.arguments) for call in calls)


def _advice(rounds: float, levels: tuple[int, int, int], period: int, addition: str) -> Advice | None:
    told, warned, stopped = levels
    what = "the same call" if period == 1 else f"the same {period} calls in turns"
    words = f"{what} {rounds:.0f} times in a row{f' {addition}' if addition else ''}"
    if rounds >= stopped:
        return Advice(
            to_model=f"This call was not run: you made {words}, after two warnings. The turn ends here.",
            to_person=f"The turn was ended: the model made {words}.",
            stop=True,
        )
    if rounds not in {told, warned}:
        return None
    to_model = f"You have now made {words}. "
    if rounds == told:
        to_model += "It will not help to make it again: try something else, or say what stands in the way."
    else:
        to_model += (
            f"At the {stopped}th time the turn ends. Do something else, or end your work and say what is missing."
        )
    return Advice(to_model=to_model, to_person=f"The model made {words}; it was told.")
