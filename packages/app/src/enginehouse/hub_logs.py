"""What a hub wrote down about itself, as text: what its process printed, and the log of the profile.

Rule: it reads, and only what a line at the end may be half of is left for later. A log that is rotated meanwhile is
followed into the next file.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from enginehouse.hub_place import hub_place
from enginehouse.output import flush, put, remark
from enginehouse_core.log import FILE
from enginehouse_core.profile.folders import Folders
from enginehouse_hosts.terminal.plain_text import exact

_TAIL_BYTES = 1 << 20
"""Of each file; `lines` are the last ones in it."""
_PAUSE_S = 0.25


class Log:
    """One file, from its end on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = -1
        self._read_to = 0
        self._rest = b""

    def last(self, count: int) -> list[str]:
        """The last lines there are."""
        lines = list(self._more(from_end=_TAIL_BYTES))
        return lines[len(lines) - min(count, len(lines)) :]

    def new(self) -> Iterator[str]:
        """What was added since."""
        yield from self._more(from_end=None)

    def _more(self, from_end: int | None) -> Iterator[str]:
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._number or found.st_size < self._read_to:
                    self._number, self._read_to, self._rest = found.st_ino, 0, b""
                file.seek(self._read_to if from_end is None else max(0, found.st_size - from_end))
                data = file.read()
                self._read_to = file.tell()
        except OSError:  # not there, or not ours to read
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield _told(line.decode("utf-8", "replace"))


def show(folders: Folders, lines: int) -> list[Log]:
    """Print the last `lines` of each log; returns them, to be followed."""
    logs = [Log(hub_place(folders).log), Log(folders.log / FILE)]
    for log in logs:
        remark(f"{log.path}:" if log.path.exists() else f"{log.path}: not there")
        put("".join(f"{line}\n" for line in log.last(lines)))
        flush()
    return logs


def follow(logs: list[Log]) -> None:
    """Print what comes until somebody interrupts."""
    while True:
        for log in logs:
            put("".join(f"{line}\n" for line in log.new()))
        flush()
        time.sleep(_PAUSE_S)


def _told(line: str) -> str:
    """A line of the profile's log is a JSON object, and reads better as a sentence."""
    try:
        record = json.loads(line)
        said = f"{record['at']} {record['level']} {record['logger']}: {record['message']}"
    except (ValueError, KeyError, TypeError):
        return exact(line)
    details = record.get("traceback", "")
    return exact(f"{said}\n{details}" if details else said)
