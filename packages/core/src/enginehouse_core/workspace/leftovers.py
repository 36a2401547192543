"""Records of running commands, and ending what a hub left behind that was killed together with its keeper.

Rule: a record is written before its command starts and named by the command's marker, so there is no moment at which a
command runs and cannot be found. Only what is certain is signalled: a pid whose start time matches, or the marker.
"""

import functools
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from enginehouse_core.workspace import process_tree

_log = logging.getLogger(__name__)
_LIMIT_S = 2.0
_TOKEN_LENGTH = 32


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the next start needs to find a command again. Start times are those of `process_tree`."""

    session_id: str
    token: str
    owner_pid: int
    owner_started: int
    """The process that runs the command; while it lives, the command is its business."""
    pid: int | None = None
    """None until the command has been started, and when it had ended before anybody could look."""
    started: int | None = None
    boot: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CommandRecord)


def new_record(session_id: str, token: str) -> CommandRecord:
    us = os.getpid()
    return CommandRecord(session_id=session_id, token=token, owner_pid=us, owner_started=_start_of(us), boot=_boot())


def write_record(folder: Path, record: CommandRecord) -> None:
    """Blocking. Not flushed to disk: it serves the death of processes; after a power cut nothing is left to end."""
    path = _path(folder, record.token)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, _encoder.encode(record))
    finally:
        os.close(descriptor)


def remove_record(folder: Path, token: str) -> None:
    """Blocking."""
    _path(folder, token).unlink(missing_ok=True)


def end_leftovers(folder: Path) -> list[CommandRecord]:
    """End what commands of dead owners left running, and remove their records. Blocking: two seconds a command at most.

    Returns the records of the commands that were still running. A record whose processes could not be ended stays.
    """
    records = _records_in(folder)
    return end_recorded(folder, records) if records else []


def end_recorded(folder: Path, records: Iterable[CommandRecord]) -> list[CommandRecord]:
    marked = process_tree.running_commands()
    ended: list[CommandRecord] = []
    for record in records:
        of_this_boot = record.boot in ("", _boot())
        if of_this_boot and _is(record.owner_pid, record.owner_started):
            continue
        if of_this_boot and (record.token in marked or _root_of(record) is not None):
            ended.append(record)
            survivors = process_tree.end(lambda record=record: _living(record), grace_s=0.3, limit_s=_LIMIT_S)
            if survivors:
                pids = ", ".join(str(one.pid) for one in survivors)
                _log.warning("a command of session %s cannot be ended: processes %s", record.session_id, pids)
                continue
        remove_record(folder, record.token)
    return ended


def _living(record: CommandRecord) -> list[process_tree.Process]:
    return process_tree.of_command(record.token, _root_of(record), since=record.started or 0)


def _root_of(record: CommandRecord) -> int | None:
    """The leader of the command's session, if the process with this pid still is it."""
    return record.pid if record.pid is not None and _is(record.pid, record.started) else None


def _is(pid: int, started: int | None) -> bool:
    now = process_tree.process(pid)
    return now is not None and now.alive and now.started == started


def _records_in(folder: Path) -> list[CommandRecord]:
    records: list[CommandRecord] = []
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError:
        return []
    for path in paths:
        if len(path.stem) != _TOKEN_LENGTH or not path.stem.isalnum():
            continue
        try:
            record = _decoder.decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            record = None
        if record is None or record.token != path.stem:
            # Cut off while it was written: its name is the marker, and that is enough.
            record = CommandRecord(session_id="", token=path.stem, owner_pid=0, owner_started=0)
        records.append(record)
    return records


def _path(folder: Path, token: str) -> Path:
    return folder / f"{token}.json"


@functools.lru_cache(maxsize=1)
def _start_of(us: int) -> int:
    now = process_tree.process(us)
    return now.started if now is not None else 0


@functools.cache
def _boot() -> str:
    """Pids and start times begin again at every boot; this does not repeat. Empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
