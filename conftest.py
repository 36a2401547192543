"""What every test shares: the async backend, skips that nobody can overlook, the time each part took.

Rule: a test that did not run is said out loud. The summary lists each one with its reason and counts them.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

ROOT = Path(__file__).parent
PARTS = {"packages": "unit tests", "tests": "real processes"}
"""The first folder of a test's path, and what its part is called."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The only backend Enginehouse runs on: subprocesses and signals are asyncio's here."""
    return "asyncio"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time of each part, then every skip and expected failure, then how many there were.

    `.ci/run` repeats the lines that start with "not run: ".
    """
    reports = [
        report
        for found in cast("dict[str, Sequence[object]]", terminalreporter.stats).values()
        for report in found
        if isinstance(report, pytest.TestReport | pytest.CollectReport)
    ]
    _print_times(terminalreporter, [report for report in reports if isinstance(report, pytest.TestReport)])
    _print_skips(terminalreporter, reports)


def _print_times(reporter: pytest.TerminalReporter, reports: Sequence[pytest.TestReport]) -> None:
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        seconds[PARTS.get(report.nodeid.split("/", 1)[0], "elsewhere")] += report.duration
    for part, spent in seconds.items():
        reporter.write_line(f"time: {part} took {spent:.1f} s")


def _print_skips(
    reporter: pytest.TerminalReporter, reports: Sequence[pytest.TestReport | pytest.CollectReport]
) -> None:
    skips = [report for report in reports if report.skipped]
    if not skips:
        return
    reporter.section("tests that did not run", yellow=True, bold=True)
    for report in skips:
        reporter.write_line(f"not run: {report.nodeid}: {_reason(report)}", yellow=True)
    reporter.write_line(f"not run: {len(skips)} in all", yellow=True, bold=True)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if expected_failure := cast("str | None", getattr(report, "wasxfail", None)):
        return f"expected to fail: {expected_failure}"
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return "no reason was given"
