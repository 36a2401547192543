"""A real service to connect to. Run as a program: `echo_service.py '{"folder": …, "name": …}'`.

Says a line back as JSON; some lines make it do something first. While it runs it holds a witness: an abstract socket
address only one process can have, independent of any file. Two services at once leave a line in `violations`.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteStream

from enginehouse_protocol.errors import ServiceRunning
from enginehouse_protocol.local_socket import (
    ALREADY_RUNNING_EXIT,
    Edition,
    Guest,
    Lifetime,
    Place,
    Server,
    Span,
)

WITNESS_PATIENCE_S = 0.5  # a killed process lets go of its lock a moment before its socket


class Echo:
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.busy = bool(options.get("busy"))

    async def __call__(self, stream: ByteStream, guest: Guest) -> None:
        lines = BufferedByteStream(stream)
        while True:
            try:
                asked = (await lines.receive_until(b"\n", 65_536)).decode()
            except anyio.IncompleteRead:
                return
            answer: object = asked
            match asked:
                case "raise":
                    raise RuntimeError("this handler fails")
                case "group":
                    raise ExceptionGroup("this one fails in parts", [RuntimeError("one"), ValueError("two")])
                case "busy" | "free":
                    self.busy = asked == "busy"
                case "child":  # keeps every descriptor that is not marked close-on-exec
                    answer = subprocess.Popen(["sleep", "60"], close_fds=False).pid
                case "self":
                    answer = {
                        "environment": sorted(os.environ),
                        "stdin": os.readlink("/proc/self/fd/0"),
                        "stdout": os.readlink("/proc/self/fd/1"),
                        "stderr": os.readlink("/proc/self/fd/2"),
                        "leads_session": os.getsid(0) == os.getpid(),
                        "cwd": os.getcwd(),
                    }
                case "guest":
                    answer = {"pid": guest.pid, "protocol": guest.protocol, "version": guest.version}
                case _:
                    pass
            await stream.send(json.dumps(answer).encode() + b"\n")


def place_of(options: dict[str, Any]) -> Place:
    return Place(Path(options["folder"]), options["name"], through_proc=options.get("through_proc"))


def edition_of(options: dict[str, Any]) -> Edition:
    low, high = options.get("protocol", [1, 3])
    return Edition(version=options.get("version", "1.2.0"), protocol=Span(min=low, max=high))


def bear_witness(key: str, violations: str) -> socket.socket:
    witness = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + WITNESS_PATIENCE_S
    while sys.platform == "linux":
        try:
            witness.bind(f"\0{key}")
            break
        except OSError:
            if time.monotonic() > deadline:
                with open(violations, "a") as file:
                    file.write(f"{os.getpid()}\n")
                break
            time.sleep(0.01)
    return witness


async def main(options: dict[str, Any]) -> int:
    print(options.get("says", "hello from the service"), flush=True)
    if status := options.get("exits"):
        return status
    if options.get("hangs"):
        await anyio.sleep(60)
    echo = Echo(options)
    try:
        lifetime = Lifetime.acquire(place_of(options), edition_of(options).version)
    except ServiceRunning as running:
        print(running, flush=True)
        return ALREADY_RUNNING_EXIT
    with lifetime, bear_witness(options["witness"], options["violations"]):
        server = Server(
            lifetime,
            edition_of(options),
            echo,
            idle_after_s=options.get("idle_after_s", 20),
            busy=lambda: echo.busy,
        )
        print("ended:", await server.run(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(anyio.run(main, json.loads(sys.argv[1])))
