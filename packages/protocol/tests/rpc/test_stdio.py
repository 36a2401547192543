"""Standard input and output as a connection, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from anyio.streams.stapled import StapledByteStream

from enginehouse_protocol.rpc import Peer

from .test_peer import echo

pytestmark = pytest.mark.anyio

SERVER = """
import os, subprocess, sys, anyio
from enginehouse_protocol.rpc import Peer, stdio_stream

async def handler(method, params):
    print("a stray line")
    subprocess.run(["sh", "-c", "echo from a child; cat"], timeout=5)
    return params

async def main():
    async with stdio_stream() as stream, Peer(stream, handler) as peer:
        await peer.notify("ready", b"{}")
        print(await peer.ended(), file=sys.stderr)
    print("the end")

anyio.run(main)
"""


async def test_a_process_speaks_over_its_standard_streams_and_nothing_else_gets_between() -> None:
    big = b'"' + b"x" * 3_000_000 + b'"'
    with anyio.fail_after(20):
        async with await anyio.open_process([sys.executable, "-c", SERVER]) as process:
            assert process.stdin and process.stdout and process.stderr
            async with Peer(StapledByteStream(process.stdin, process.stdout), echo) as peer:
                assert bytes(await peer.request("a", b'{"text":"\xc3\xa4"}', deadline_s=10)) == b'{"text":"\xc3\xa4"}'
                assert bytes(await peer.request("a", big, deadline_s=10)) == big
            said = b"".join([chunk async for chunk in process.stderr])
            assert await process.wait() == 0
    assert said.count(b"a stray line") == said.count(b"from a child") == 2
    assert b"the other side closed it" in said


def test_files_and_devices_serve_as_standard_streams(tmp_path: Path) -> None:
    asked, answers = tmp_path / "asked", tmp_path / "answers"
    asked.write_bytes(b"")
    for source in (str(asked), "/dev/null"):
        with open(source, "rb") as standard_input, answers.open("wb") as standard_output:
            done = subprocess.run(
                [sys.executable, "-c", SERVER],
                stdin=standard_input,
                stdout=standard_output,
                stderr=subprocess.PIPE,
                timeout=20,
                check=True,
            )
        assert answers.read_bytes() == b'{"jsonrpc":"2.0","method":"ready","params":{}}\nthe end\n'
        assert b"the other side closed it" in done.stderr
