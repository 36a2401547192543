"""`python -m model_server --script FILE`: the server as a process, for tests that kill and benchmarks that
measure.

Rule: it says where it listens only once it does, in one line of JSON: {"base_url": …, "pid": …}.
"""

import argparse
import os
import runpy
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from model_server.programs import Script
from model_server.server import ModelServer


def main() -> None:
    parser = argparse.ArgumentParser(prog="model_server", description="A scripted Chat Completions server on loopback.")
    parser.add_argument("--script", type=Path, required=True, help="a Python file with a global named `script`")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--announce", default="-", help="the file that is told the address; -: standard output")
    parser.add_argument("--model", action="append", dest="models", help="a model to list; may be repeated")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when whoever started this is gone")
    options = parser.parse_args()
    script = runpy.run_path(str(options.script))["script"]
    try:
        anyio.run(_serve, script, options)
    except KeyboardInterrupt:
        sys.exit(130)


async def _serve(script: Script, options: argparse.Namespace) -> None:
    server = ModelServer(
        script,
        models=tuple(options.models or ("scripted",)),
        api_key=os.environ.get("MODEL_SERVER_API_KEY"),
        port=options.port,
        controlled=True,
    )
    async with server:
        line = msgspec.json.encode({"base_url": server.base_url, "pid": os.getpid()}) + b"\n"
        if options.announce == "-":
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        else:
            await _write_whole(anyio.Path(options.announce), line)
        if options.until_stdin_closes:
            await anyio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)
        else:
            await anyio.sleep_forever()


async def _write_whole(path: anyio.Path, line: bytes) -> None:
    """Appear under the name only when complete: whoever waits for the file may read it at once."""
    unfinished = path.with_name(path.name + ".new")
    await unfinished.write_bytes(line)
    await unfinished.rename(path)


if __name__ == "__main__":
    main()
