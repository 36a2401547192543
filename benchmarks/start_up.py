"""CPU of `enginehouse --version` and `--help` beside a bare Python: what a person feels every time."""

import os
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.row import Row

ROUNDS = 11


def cpu_ms(argv: list[str]) -> float:
    """User and system time of one run, children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1_000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure() -> list[Row]:
    script = str(Path(sys.executable).parent / "enginehouse")
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "--version": [script, "--version"],
        "--help": [script, "--help"],
        "no arguments": [script],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, argv in commands.items():
            times[name].append(cpu_ms(argv))
    bare = sorted(times.pop("bare"))[ROUNDS // 2]
    return [
        Row(f"enginehouse {name}, CPU", f"{median:.0f} ms", f"bare Python {bare:.0f} ms", median / bare, "<= 4")
        for name, median in ((name, sorted(values)[ROUNDS // 2]) for name, values in times.items())
    ]
