"""Connecting to the service: start it if nobody answers, replace it if it is older and idle.

Rule: nothing that may pass is an error before the deadline, and nothing that will not pass waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import anyio
from anyio import to_thread
from anyio.abc import ByteStream

from enginehouse_protocol.errors import AccessRefused, ServiceUnavailable, VersionMismatch
from enginehouse_protocol.local_socket.dialling import Answered, dial
from enginehouse_protocol.local_socket.edition import Edition, is_newer
from enginehouse_protocol.local_socket.handshake import Refusal
from enginehouse_protocol.local_socket.lock import Holder, holder_of
from enginehouse_protocol.local_socket.place import Place
from enginehouse_protocol.local_socket.starting import Launch, Starter

DEADLINE_S = 20.0
_PAUSE_S = 0.01
_PAUSE_MAX_S = 0.1
_PASSING = ("stopping", "hello_timeout", "too_many_connections")
_OTHER_EDITION = ("protocol_too_old", "protocol_too_new", "other_version")


@dataclass(frozen=True)
class Connection:
    """The stream is the caller's to close. `protocol` is the one to speak, `pid` and `version` the service's."""

    stream: ByteStream
    protocol: int
    version: str
    pid: int


async def connect(
    place: Place,
    edition: Edition,
    *,
    start: Callable[[], Launch] | None,
    deadline_s: float = DEADLINE_S,
    exact_version: bool = True,
) -> Connection:
    """Reach the service, whatever that takes, within the deadline. Cancelling leaves nothing open.

    `start` None: only if it runs. It is called in a worker thread, each time a process is to be started.
    `exact_version` false: a service of another version is welcome as long as there is a common protocol.

    Raises:
        ServiceUnavailable: nobody answers in time; carries the end of the log of what was started.
        VersionMismatch: it runs in another version and is newer, in use, or may not be replaced.
        AccessRefused: folder, token or the user on the other end is not ours.
    """
    attempt = _Attempt(place, edition, start)
    try:
        with anyio.move_on_after(deadline_s):
            return await attempt.until_connected(exact_version)
        raise await to_thread.run_sync(attempt.too_late, deadline_s)
    finally:
        attempt.close()


class _Attempt:
    """What one `connect` remembers between its tries."""

    def __init__(self, place: Place, edition: Edition, start: Callable[[], Launch] | None) -> None:
        self._place = place
        self._edition = edition
        self._starter = None if start is None else Starter(place, start)
        self._replaced = False
        self._last: Refusal | None = None

    async def until_connected(self, exact_version: bool) -> Connection:
        pause = _PAUSE_S
        while True:
            outcome = await dial(self._place, self._edition, "attach", exact_version=exact_version)
            match outcome:
                case Answered(welcome, stream):
                    return Connection(stream, welcome.protocol, welcome.version, welcome.pid)
                case Refusal():
                    self._last = outcome
                    await self._refused(outcome)
                case _:
                    self._last = None
                    await self._nobody()
            await anyio.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_MAX_S)

    def close(self) -> None:
        if self._starter:
            self._starter.close()

    async def _nobody(self) -> None:
        if self._starter:
            await to_thread.run_sync(self._starter.step)
        elif await to_thread.run_sync(holder_of, self._place) is None:
            raise ServiceUnavailable(f"{self._place.name} is not running in {self._place.folder}")

    async def _refused(self, refusal: Refusal) -> None:
        """Return if trying again makes sense."""
        if refusal.code in _PASSING:
            return
        if refusal.code in _OTHER_EDITION:
            await self._replace(refusal)
            return
        where = str(self._place.socket)
        if refusal.code in ("wrong_token", "other_user", "other_service"):
            raise AccessRefused(
                where,
                refusal.message,
                f"see what runs there; {self._place.name} keeps its token in {self._place.token}",
            )
        raise ServiceUnavailable(f"{self._place.name} at {where} refused ({refusal.code}): {refusal.message}")

    async def _replace(self, refusal: Refusal) -> None:
        running = refusal.edition
        if running is None or refusal.pid is None:
            raise ServiceUnavailable(f"{self._place.name} refused without its version: {refusal.message}")
        if is_newer(running, self._edition):
            raise self._mismatch(running, refusal.pid, "it is newer: update this program")
        if self._starter is None or self._replaced:
            raise self._mismatch(running, refusal.pid, "")
        outcome = await dial(self._place, self._edition, "stop_if_idle")
        if isinstance(outcome, Answered):
            self._replaced = True
            await anyio.aclose_forcefully(outcome.stream)
        elif isinstance(outcome, Refusal) and outcome.code == "not_idle":
            raise self._mismatch(running, refusal.pid, "it is in use: let it finish, or")

    def _mismatch(self, running: Edition, pid: int, advice: str) -> VersionMismatch:
        ours = self._edition
        stop = f"stop it with `{self._place.stop_hint or f'kill {pid}'}` and try again"
        if advice.endswith("or"):
            todo = f"{advice} {stop}"
        else:
            todo = f"{advice}, or {stop}" if advice else stop
        return VersionMismatch(
            f"{self._place.name} runs as version {running.version} (protocol {running.protocol}, process {pid}), this "
            f"is version {ours.version} (protocol {ours.protocol}); {todo}",
            running=running.version,
            ours=ours.version,
            pid=pid,
        )

    def too_late(self, deadline_s: float) -> ServiceUnavailable:
        name = self._place.name
        holder = holder_of(self._place)
        tail = self._starter.log_tail() if self._starter and self._starter.started else ""
        if self._last is not None:
            return ServiceUnavailable(f"{name} refused for {deadline_s:g} s: {self._last.message}", tail)
        if holder is not None:
            return ServiceUnavailable(self._mute(holder, deadline_s), tail)
        if self._starter and (pid := self._starter.started):
            return ServiceUnavailable(
                f"{name} was started as process {pid} and did not come up within {deadline_s:g} s; "
                f"log: {self._place.log}",
                tail,
            )
        return ServiceUnavailable(f"{name} in {self._place.folder} did not come up within {deadline_s:g} s")

    def _mute(self, holder: Holder, deadline_s: float) -> str:
        who = "another process" if holder.pid is None else f"process {holder.pid}"
        stop = self._place.stop_hint or (f"kill {holder.pid}" if holder.pid else "")
        hint = f"; to end it: `{stop}`" if stop else ""
        return (
            f"{self._place.name} runs as {who} but did not answer within {deadline_s:g} s{hint}; log: {self._place.log}"
        )
