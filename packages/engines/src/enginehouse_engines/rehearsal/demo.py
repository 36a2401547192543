"""What `enginehouse demo` shows: a throwaway project with one bug, and the scenes played on it.

Rule: nothing is made up. The tests really fail, the edit is really written, and where a fact turns out otherwise the
scene says so and stops.
"""

from enginehouse_engines.rehearsal.scenario import (
    EditFile,
    FixedScenario,
    Progress,
    ProposePlan,
    ReadFile,
    Recall,
    RunCommand,
    Say,
    Scene,
)

PROJECT_FILES: dict[str, str] = {
    "README.md": "# Basket\n\nTotals of a shopping basket. Run the tests with `python3 -m unittest`.\n",
    "basket/__init__.py": '"""Totals of a shopping basket."""\n',
    "basket/total.py": '''\
"""What a basket costs."""


def total_cents(prices_cents: list[int], discount_percent: int = 0) -> int:
    """Return the sum of the prices less the discount, in whole cents."""
    full = sum(prices_cents)
    return round(full - full * discount_percent)
''',
    "long_check.py": '''\
"""Takes six seconds, so that somebody can interrupt it."""

import time

for check in range(1, 13):
    print(f"check {check} of 12", flush=True)
    time.sleep(0.5)
''',
    "test_basket.py": '''\
"""Run with `python3 -m unittest`."""

import unittest

from basket.total import total_cents


class Total(unittest.TestCase):
    def test_without_a_discount_it_is_the_sum(self) -> None:
        self.assertEqual(total_cents([250, 199]), 449)

    def test_a_discount_of_ten_percent_leaves_nine_tenths(self) -> None:
        self.assertEqual(total_cents([1000, 500], discount_percent=10), 1350)


if __name__ == "__main__":
    unittest.main()
''',
}
"""Path → text of every file of the project, for the app to write into an empty folder."""

BUG = "full - full * discount_percent)"
FIX = "full - full * discount_percent / 100)"
RUN_TESTS = "python3 -B -m unittest -q test_basket"
LONG_CHECK = "python3 -B long_check.py"

FIX_PROMPT = "The discount is wrong. Find out why and fix it."
LONG_PROMPT = "Run the long check."
AFTER_PROMPT = "Where were we?"

_PLAN = ("Run the tests and see them fail", "Fix the discount", "Run the tests again")
_NO_PROJECT = (
    "This rehearsal is about a project of its own, which is not here. `enginehouse demo` makes it and plays there."
)
_STOPPED = "That did not happen, so this scene of the rehearsal ends here. Nothing else was changed."

_FIX = Scene(
    prompt=FIX_PROMPT,
    steps=(
        Say(
            text="This is a rehearsal: I am a script, there is no model. But what I read, run and write is real, and "
            "Enginehouse asks you before anything happens. First I read, which plan mode allows."
        ),
        ReadFile(path="basket/total.py", otherwise=_NO_PROJECT),
        ReadFile(path="test_basket.py", otherwise=_NO_PROJECT),
        Say(
            text="The test wants 10 to mean ten percent. The code multiplies by 10, as if it were a fraction: "
            "`/ 100` is missing."
        ),
        Progress(entries=_PLAN, done=0, started=False),
        ProposePlan(
            text="1. Run the tests, to see them fail.\n2. In `basket/total.py` divide the discount by 100.\n"
            "3. Run the tests again.",
            otherwise="The plan was not approved, so I stay in plan mode and change nothing.",
        ),
        Progress(entries=_PLAN, done=0),
        RunCommand(
            command=RUN_TESTS,
            expected="fail",
            otherwise=f"The tests were to run, and to fail, first. {_STOPPED}",
        ),
        Progress(entries=_PLAN, done=1),
        EditFile(
            path="basket/total.py",
            old=BUG,
            new=FIX,
            otherwise=f"The edit was to be written now. {_STOPPED}",
        ),
        Progress(entries=_PLAN, done=2),
        RunCommand(
            command=RUN_TESTS,
            expected="pass",
            otherwise="The edit is written, but the tests were not run, or still fail: look at the result above.",
        ),
        Progress(entries=_PLAN, done=3),
        Say(
            text="Done: `basket/total.py` divides the discount by 100, and the tests, which failed before, pass.",
            final=True,
        ),
    ),
)

_LONG = Scene(
    prompt=LONG_PROMPT,
    steps=(
        Say(text="This takes six seconds. Interrupt me whenever you like."),
        RunCommand(command=LONG_CHECK, expected="pass", otherwise=f"The long check was to run to its end. {_STOPPED}"),
        Say(text="All twelve checks ran, nobody interrupted me.", final=True),
    ),
)

_AFTER = Scene(
    prompt=AFTER_PROMPT,
    steps=(
        Recall(otherwise="The record says that the last turn ran to its end; nothing was interrupted."),
        RunCommand(
            command=RUN_TESTS,
            expected="pass",
            otherwise="The tests were to pass once more, and did not run or did not pass: look at the result above.",
        ),
        Say(text="The fix is still there and the tests pass. That is the whole rehearsal.", final=True),
    ),
)

DEMO = FixedScenario(scenes=(_FIX, _LONG, _AFTER))
