"""A client process: connects, starting the echo service if need be; prints the service's pid; ends when stdin does."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from enginehouse_protocol.local_socket import Edition, Launch, Place, Span, connect


async def main(options: dict[str, Any]) -> None:
    place = Place(Path(options["folder"]), options["name"])
    edition = Edition(version="1.2.0", protocol=Span(min=1, max=3))
    launch = Launch(options["argv"], options["environment"])
    connection = await connect(place, edition, start=lambda: launch, deadline_s=60)
    async with connection.stream:
        print(connection.pid, flush=True)
        await to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.argv[1]))
