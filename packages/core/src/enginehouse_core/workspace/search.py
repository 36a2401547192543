"""Starts a search in a process of its own and waits for it, not for ever.

Why a process: Python's `re` cannot be stopped from another thread, and a model may well write a pattern that backtracks
for years. Cutting lines and looking at the clock between them bounds neither one line nor the hub's lock on the
interpreter, which `re` holds all the time. A process can be killed, is cancelled with its caller, and leaves the hub's
views fluid; it costs a few hundredths of a second. (An `rg` that may or may not be installed would make the same
pattern mean two things.)

Rule: nothing found is lost. When time is up the process itself reports what it has; only if it cannot is it killed.
"""

import os
import sys
from contextlib import suppress
from subprocess import DEVNULL
from typing import Literal

import anyio
import anyio.abc
import msgspec

from enginehouse_core.workspace.descriptors import Identity
from enginehouse_core.workspace.outer_ignores import OuterRules

HITS = 10_000
PATTERN_CHARACTERS = 10_000
GRACE_S = 3.0
"""How much longer than its deadline a search may live, for starting and for reporting."""
_OUTCOME_BYTES = 64 * 1024 * 1024


class Request(msgspec.Struct, frozen=True, kw_only=True):
    parts: tuple[str, ...]
    """Names from the inherited descriptor to the file or folder to search."""
    pattern: str | None
    """None: the names are what is looked for."""
    glob: str | None
    limit: int
    deadline_s: float
    off_limits: tuple[Identity, ...]
    """Folders never entered."""
    outer: OuterRules = ()


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Relative to the inherited descriptor."""
    line_number: int = 0
    line: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    hits: tuple[Hit, ...]
    ended: Literal["complete", "limit", "deadline", "bad_pattern", "bad_glob", "failed"]
    detail: str = ""
    """Of `deadline`: the file it was in. Else what was wrong."""


_request_encoder = msgspec.json.Encoder()
_outcome_decoder = msgspec.json.Decoder(Outcome)


async def search(root: int, request: Request) -> Outcome:
    """Search below the folder `root`, a descriptor. When this returns, or is cancelled, the process is dead."""
    process = await anyio.open_process(
        [sys.executable, "-P", "-m", "enginehouse_core.workspace.searcher", str(root)],
        pass_fds=(root,),
        stderr=DEVNULL,
        cwd="/",
        env={"PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))},
        start_new_session=True,  # Ctrl-C in a terminal is for the hub to understand
    )
    answer = b""
    try:
        with anyio.move_on_after(request.deadline_s + GRACE_S):
            answer = await _converse(process, _request_encoder.encode(request))
    finally:
        await _end(process)
    try:
        return _outcome_decoder.decode(answer)
    except msgspec.DecodeError:
        if process.returncode is None or process.returncode < 0:
            return Outcome(hits=(), ended="deadline")
        return Outcome(hits=(), ended="failed", detail=f"the search ended with exit code {process.returncode}")


async def _converse(process: anyio.abc.Process, request: bytes) -> bytes:
    assert process.stdin is not None  # both are pipes, by default
    assert process.stdout is not None
    with suppress(anyio.BrokenResourceError):  # it ended before it listened: its exit code tells
        await process.stdin.send(request)
        await process.stdin.aclose()
    answer = bytearray()
    async for chunk in process.stdout:
        answer += chunk
        if len(answer) > _OUTCOME_BYTES:
            break
    else:
        await process.wait()
    return bytes(answer)


async def _end(process: anyio.abc.Process) -> None:
    with anyio.move_on_after(2, shield=True):
        with suppress(ProcessLookupError):
            if process.returncode is None:
                process.kill()
        await process.wait()
        await process.aclose()
