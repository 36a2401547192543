"""Asking a service how it is, and asking it to end. Works across all versions.

Rule: the lock tells whether it runs, its own answer tells the rest. One that does not answer is still there.
"""

from dataclasses import dataclass
from typing import Literal

import anyio
from anyio import to_thread

from enginehouse_protocol.errors import AccessRefused, ServiceUnavailable
from enginehouse_protocol.local_socket.dialling import Answered, dial
from enginehouse_protocol.local_socket.edition import Edition, Span
from enginehouse_protocol.local_socket.handshake import Refusal, Want
from enginehouse_protocol.local_socket.lock import Holder, holder_of
from enginehouse_protocol.local_socket.place import Place

_ANY = Edition(version="", protocol=Span(min=0, max=0))  # status and stop are not versioned
_PAUSE_S = 0.05
_ANSWER_S = 2.0

StopOutcome = Literal["stopped", "not_running", "busy"]


@dataclass(frozen=True)
class Status:
    """A service that runs. `pid` is None in the first moments of its life.

    `answers` false: it starts, ends, hangs or is stopped; then `idle` and `connections` are unknown.
    """

    pid: int | None
    version: str
    since_ms: int
    answers: bool
    idle: bool | None = None
    connections: int | None = None


async def status(place: Place, *, deadline_s: float = _ANSWER_S) -> Status | None:
    """How the service is. None: it does not run. Creates nothing.

    Raises:
        AccessRefused: the folder or the token is not ours alone, or a foreign service answers.
        ServiceUnavailable: what answers is not this service.
    """
    with anyio.move_on_after(deadline_s):
        outcome = await _request(place, "status")
        if isinstance(outcome, Answered):
            welcome = outcome.welcome
            return Status(
                pid=welcome.pid,
                version=welcome.version,
                since_ms=welcome.since_ms,
                answers=True,
                idle=welcome.idle,
                connections=welcome.connections,
            )
    holder = await to_thread.run_sync(holder_of, place)
    if holder is None:
        return None
    return Status(pid=holder.pid, version=holder.version, since_ms=holder.since_ms, answers=False)


async def ask_to_stop(place: Place, *, only_if_idle: bool = False, deadline_s: float = 15.0) -> StopOutcome:
    """Ask the service to end and wait until it has let go of its lock. Never kills.

    Raises:
        ServiceUnavailable: it does not answer, or did not end in time; the error names its pid.
        AccessRefused: as for `status`.
    """
    first = await to_thread.run_sync(holder_of, place)
    if first is None:
        return "not_running"
    now: Holder | None = first
    with anyio.move_on_after(deadline_s):
        asked = False
        while now is not None and (first.pid is None or now.pid in (first.pid, None)):
            if not asked:
                outcome = await _request(place, "stop_if_idle" if only_if_idle else "stop")
                if isinstance(outcome, Refusal):
                    return "busy"
                asked = isinstance(outcome, Answered)
            await anyio.sleep(_PAUSE_S)
            now = await to_thread.run_sync(holder_of, place)
        return "stopped"
    who = "another process" if now is None or now.pid is None else f"process {now.pid}"
    raise ServiceUnavailable(f"{place.name} runs as {who} and did not end within {deadline_s:g} s; log: {place.log}")


async def _request(place: Place, want: Want) -> Answered | Refusal | Literal["nobody"]:
    """The stream behind a welcome is closed: there is nothing more to hear."""
    outcome = await dial(place, _ANY, want)
    if isinstance(outcome, Answered):
        await anyio.aclose_forcefully(outcome.stream)
    elif isinstance(outcome, Refusal):
        if outcome.code in ("wrong_token", "other_user", "other_service"):
            raise AccessRefused(str(place.socket), outcome.message, "see what runs there")
        if outcome.code != "not_idle":
            return "nobody"
    return outcome
