"""The processes below a command or below ourselves: finding them, and ending them so that none is left.

Rule: a process is its pid *and* its start time. Nothing is signalled that is not the process that was found, and never
ourselves, an ancestor, or the group of either.

The keeper runs this before anything else is imported, so it imports only what costs nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False  # `typing` itself would be the dearest import here
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

SESSION_MARKER = "ENGINEHOUSE_SESSION"
"""In the environment of every command of a session; finds those that left their process group."""
COMMAND_MARKER = "ENGINEHOUSE_COMMAND"
"""The same for one command: commands of a session run side by side, and the end of one must not end the other."""

_LINUX = sys.platform == "linux"
_UNCLAIMED_AFTER_S = 10.0
_ROUNDS = 8


class Process:
    """One process as it was when it was looked at."""

    __slots__ = ("group", "parent", "pid", "session", "started", "state")

    def __init__(self, pid: int, parent: int, group: int, session: int, state: str, started: int) -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.session = session
        self.state = state
        self.started = started
        """Clock ticks since boot on Linux, seconds since 1970 on macOS: to be compared, not to be read."""

    @property
    def alive(self) -> bool:
        return self.state not in "ZXx"

    def __repr__(self) -> str:
        return f"Process({self.pid}, parent={self.parent}, state={self.state!r}, started={self.started})"


def process(pid: int) -> Process | None:
    """The process with this pid now, also a zombie; None when there is none."""
    if not _LINUX:
        return _listed_by_ps([str(pid)]).get(pid)
    try:
        stat = _content(f"/proc/{pid}/stat")
        fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold spaces and parentheses
        return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0].decode(), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def processes(first: int | None = None) -> dict[int, Process]:
    """Everything that runs; with `first`, only what was given a pid after that one, which is much less.

    Looks again until there is nothing new: what hands on from one short-lived process to the next would otherwise be
    between two of them at every look.
    """
    if not _LINUX:
        return _listed_by_ps(None)
    table: dict[int, Process] = {}
    looked_at: set[int] = set()
    for _ in range(_ROUNDS):
        new = [pid for pid in _pids(first) if pid not in looked_at]
        if not new:
            break
        looked_at.update(new)
        table.update((pid, one) for pid in new if (one := process(pid)) is not None)
    return table


def start_clock() -> int:
    """A start time no later than that of any process started from now on."""
    if not _LINUX:
        return int(time.time())
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def descendants(pid: int) -> list[Process]:
    """What lives below `pid`, itself not included."""
    table = processes()
    return [table[found] for found in _below(table, {pid}) if found != pid and table[found].alive]


def of_session(session_id: str) -> list[Process]:
    """What lives and carries the marker of this session. On macOS the system hides the environment of its own
    programs, so there it is not everything."""
    return [one for one in processes().values() if one.alive and _variable(one.pid, SESSION_MARKER) == session_id]


def running_commands() -> set[str]:
    """The markers of all commands of which anything lives; macOS as above."""
    found = (_variable(one.pid, COMMAND_MARKER) for one in processes().values() if one.alive)
    return {token for token in found if token is not None}


def of_command(token: str, root: int | None, *, since: int, recent: bool = False) -> list[Process]:
    """What lives and was started by one command, however it hid: by group, by descent, by marker.

    `root` is the leader of the command's session and group, None when that is not certain any more. `since` is a
    start time from before it. `recent`: the command began so lately that pids cannot have come round since; then only
    the pids given out after `root` are looked at, because reading all of a busy machine takes ten milliseconds.
    """
    found: list[Process] = []
    for _ in range(_ROUNDS):
        table = {pid: one for pid, one in processes(root if recent else None).items() if one.started >= since}
        members: set[int] = set()
        if root is not None:
            members = {pid for pid, one in table.items() if root in (pid, one.session, one.group)}
            _below(table, members)
        others = [pid for pid, one in table.items() if pid not in members and one.alive]
        members.update(pid for pid in others if _variable(pid, COMMAND_MARKER) == token)
        found = [table[pid] for pid in _below(table, members) if table[pid].alive]
        # What ended before its marker was read may have been one of ours and may have started another.
        if found or all((now := process(pid)) is not None and now.alive for pid in others):
            break
    return found


def send(target: Process, number: int) -> bool:
    """Signal exactly this process. False when it is gone or not ours to signal."""
    try:
        handle = os.pidfd_open(target.pid) if hasattr(os, "pidfd_open") else -1
    except ProcessLookupError:
        return False
    except OSError:
        handle = -1  # an old kernel, or no descriptor left
    try:
        now = process(target.pid)
        if now is None or now.started != target.started:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(target.pid, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def end(
    find: Callable[[], list[Process]],
    *,
    grace_s: float,
    limit_s: float,
    reaped_elsewhere: Collection[int] = (),
) -> list[Process]:
    """SIGTERM what `find` finds, then SIGKILL it and whatever it started meanwhile, until `find` finds nothing.

    Blocks for at most `limit_s`; returns what is alive even then (another user's, or stuck in the kernel). Ended
    processes that had become children of ours are reaped, except those somebody else waits for.
    """
    if not find():
        return []
    begin = time.monotonic()
    kin = _ourselves_and_ancestors()
    seen: dict[int, Process] = {}

    def look() -> list[Process]:
        living = [one for one in find() if one.pid not in kin]
        seen.update((one.pid, one) for one in living)
        return living

    living = look()
    if living and grace_s > 0:
        _strike(living, signal.SIGTERM, kin)
        _strike(living, signal.SIGCONT, kin)  # a stopped process takes its SIGTERM only when it goes on
        while living and time.monotonic() - begin < min(grace_s, limit_s):
            time.sleep(0.005)
            living = look()
    pause_s = 0.0  # at once again first: something that forks in a circle must not get ahead
    while living and time.monotonic() - begin < limit_s:
        _strike(living, signal.SIGKILL, kin)
        time.sleep(pause_s)
        pause_s = min(pause_s + 0.001, 0.02)
        living = look()
    for pid, one in seen.items():
        if pid not in reaped_elsewhere:
            _reap(one)
    return living


class _Unclaimed:
    """Ended children of ours that nobody has waited for yet, and when each was first seen."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], float] = {}
        self.looked_at = 0.0


_unclaimed = _Unclaimed()


def reap_adopted(group: int | None = None) -> None:
    """Reap orphans that came to us as their subreaper and have ended; never a child somebody here waits for.

    Those of `group` at once. Others only after nobody has claimed them for ten seconds: a child of our own is waited
    for by whoever started it, and that takes milliseconds.
    """
    try:
        while group is not None and os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        pass
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    except ChildProcessError:
        return
    now = time.monotonic()
    if now - _unclaimed.looked_at < _UNCLAIMED_AFTER_S / 2:
        return  # looking at every process costs
    _unclaimed.looked_at = now
    us = os.getpid()
    known, _unclaimed.seen = _unclaimed.seen, {}
    for one in processes().values():
        if one.parent == us and not one.alive:
            since = known.get((one.pid, one.started), now)
            if now - since < _UNCLAIMED_AFTER_S or not _reap(one):
                _unclaimed.seen[one.pid, one.started] = since


def _reap(one: Process) -> bool:
    now = process(one.pid)
    if now is None or now.started != one.started or now.alive or now.parent != os.getpid():
        return False
    try:
        return os.waitpid(one.pid, os.WNOHANG)[0] == one.pid
    except ChildProcessError:
        return False


def _strike(living: list[Process], number: int, kin: dict[int, Process]) -> None:
    """A whole group at once where it can only be a descendant's: the kernel does that in one step, so nothing in it can
    fork itself out of reach. In our own session groups may be mixed; there each process is signalled by itself."""
    our_session = os.getsid(0)
    spared = {one.group for one in kin.values()} | {os.getpgrp(), 0, 1}
    groups = {one.group for one in living if one.session != our_session} - spared
    for group in groups:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            pass
    for one in living:
        if one.group not in groups:
            send(one, number)


def _below(table: dict[int, Process], members: set[int]) -> set[int]:
    """Add to `members` what descends from them."""
    children: dict[int, list[int]] = {}
    for one in table.values():
        children.setdefault(one.parent, []).append(one.pid)
    waiting = list(members)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in members:
                members.add(child)
                waiting.append(child)
    return members


def _ourselves_and_ancestors() -> dict[int, Process]:
    kin: dict[int, Process] = {}
    pid = os.getpid()
    while pid > 0 and pid not in kin and (one := process(pid)) is not None:
        kin[pid] = one
        pid = one.parent
    return kin


def _variable(pid: int, name: str) -> str | None:
    """What this variable is in the environment the process was started with; None also when we may not see it."""
    if not _LINUX:
        words = f" {_run_ps(['-E', '-ww', '-o', 'command=', '-p', str(pid)])} ".partition(f" {name}=")
        return words[2].partition(" ")[0] if words[1] else None
    wanted = f"\0{name}=".encode()
    for _ in range(3):
        try:
            environment = _content(f"/proc/{pid}/environ")
        except OSError:
            return None  # gone, or another user's
        if environment:
            _, found, rest = (b"\0" + environment).partition(wanted)
            return rest.partition(b"\0")[0].decode(errors="replace") if found else None
        try:
            os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return None  # the kernel's own
        time.sleep(0.001)  # it is just being replaced by another program
    return None


def _pids(first: int | None) -> list[int]:
    """Pids are handed out upwards and begin again at the bottom; the last one given out is in loadavg."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    if first is None:
        return pids
    last = int(_content("/proc/loadavg").split()[4])
    if first <= last:
        return [pid for pid in pids if first <= pid <= last]
    return [pid for pid in pids if pid >= first or pid <= last]


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while part := os.read(descriptor, 65_536):
            parts.append(part)
            if len(part) < 4096 and path.endswith("stat"):
                break  # one line; asking for its end costs a second call for every process there is
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _listed_by_ps(pids: list[str] | None) -> dict[int, Process]:
    """For systems without /proc."""
    columns = "pid=,ppid=,pgid=,state=,lstart="
    chosen = ["-A"] if pids is None else ["-p", ",".join(pids)]
    found: dict[int, Process] = {}
    for line in _run_ps([*chosen, "-o", columns]).splitlines():
        fields = line.split()
        try:
            pid, parent, group = (int(field) for field in fields[:3])
            started = int(time.mktime(time.strptime(" ".join(fields[4:9]), "%a %b %d %H:%M:%S %Y")))
        except (ValueError, IndexError):
            continue
        try:
            session = os.getsid(pid)
        except OSError:
            session = 0  # not ours, or we would be told
        found[pid] = Process(pid, parent, group, session, fields[3][0], started)
    return found


def _run_ps(arguments: list[str]) -> str:
    import subprocess

    done = subprocess.run(
        ["ps", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        env={"PATH": "/bin:/usr/bin", "LC_ALL": "C"}, timeout=5, check=False,
    )  # fmt: skip
    return done.stdout
