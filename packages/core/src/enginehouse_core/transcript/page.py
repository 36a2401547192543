"""Some events of a transcript, from the file: "what came after seq N". Blocking; changes nothing.

Rule: a page costs what is in it, also of a damaged file. Only where the file is not what it is known to be, it is
scanned whole.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from enginehouse_core.transcript.file import FILE_NAME, read_transcript
from enginehouse_core.transcript.index import Place, Whereabouts
from enginehouse_core.transcript.scan import is_header
from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.errors import MalformedData, SessionNotFound, TranscriptUnreadable
from enginehouse_protocol.events import Event
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import SessionId

PAGE_EVENTS = 1_000
PAGE_BYTES = 1 << 20
_FROM_THE_START = Whereabouts()


class _NotAsKnown(Exception):
    """The file is not what it is known to be."""


def page_after(folder: Path, session_id: SessionId, seq: int, where: Whereabouts = _FROM_THE_START) -> list[Delivery]:
    """The next events after `seq`: at most 1,000, and about 1 MiB; none when there are no more.

    `where` is what an index of this file says about `seq`. Without one the file is read from its start.

    Raises:
        SessionNotFound, TranscriptUnreadable
    """
    path = folder / FILE_NAME
    if where.offset is None and not where.places:
        return []
    try:
        if where.places:
            return _bounded(_at_places(path, session_id, where.places))
        return _bounded(_in_lines(path, session_id, seq, where.offset or 0))
    except _NotAsKnown:
        records = read_transcript(folder, session_id).records
        return _bounded((record.event, record.line) for record in records if record.event.seq > seq)
    except FileNotFoundError as error:
        raise SessionNotFound(session_id) from error
    except OSError as error:
        raise TranscriptUnreadable(f"cannot read {path}: {error.strerror}") from error


def _bounded(records: Iterable[tuple[Event, bytes]]) -> list[Delivery]:
    page: list[Delivery] = []
    size = 0
    for event, line in records:
        page.append(Delivery(event=event, line=line))
        size += len(line)
        if len(page) == PAGE_EVENTS or size >= PAGE_BYTES:
            break
    return page


def _at_places(path: Path, session_id: SessionId, places: Iterable[Place]) -> Iterator[tuple[Event, bytes]]:
    with path.open("rb", buffering=0) as file:
        for place in places:
            line = os.pread(file.fileno(), place.size_bytes, place.offset)
            event = _event(line, session_id)
            if event.seq != place.seq:
                raise _NotAsKnown
            yield event, line


def _in_lines(path: Path, session_id: SessionId, seq: int, offset: int) -> Iterator[tuple[Event, bytes]]:
    with path.open("rb") as file:
        if offset:
            file.seek(offset)
        elif not is_header(file.readline()):
            raise _NotAsKnown
        for line in file:
            if not line.endswith(b"\n"):
                return  # being written at this moment
            event = _event(line, session_id)
            if event.seq > seq:
                yield event, line[:-1]


def _event(line: bytes, session_id: SessionId) -> Event:
    try:
        event = decode_recorded(line)
    except MalformedData:
        raise _NotAsKnown from None
    if not isinstance(event, Event) or event.session_id != session_id:
        raise _NotAsKnown
    return event
