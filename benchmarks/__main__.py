"""Measures Enginehouse beside the floor it stands on, in one run: `uv run --group dev python -m benchmarks [NAME …]`.

Rule: only ratios of numbers from the same run mean anything. Nothing here is a test; nothing fails for being slow.
"""

import sys

from benchmarks import (
    durable_ack,
    fan_out,
    first_request,
    growth,
    hub_memory,
    load_and_fold,
    local_socket,
    shared_session,
    start_up,
)
from benchmarks.row import Row, show

BENCHMARKS = {
    "start_up": start_up.measure,
    "durable_ack": durable_ack.measure,
    "load_and_fold": load_and_fold.measure,
    "growth": growth.measure,
    "local_socket": local_socket.measure,
    "fan_out": fan_out.measure,
    "shared_session": shared_session.measure,
    "hub_memory": hub_memory.measure,
    "first_request": first_request.measure,
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for name in names or BENCHMARKS:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        rows += BENCHMARKS[name]()
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
