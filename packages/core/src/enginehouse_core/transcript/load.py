"""From a transcript file to the state it describes.

Rule: an undamaged file is read as a stream, one event in memory at a time; only a damaged one is scanned whole.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from enginehouse_core.transcript.file import FILE_NAME, TranscriptFile, read_transcript
from enginehouse_core.transcript.fold import SessionFold
from enginehouse_core.transcript.index import SeqIndex
from enginehouse_core.transcript.scan import NEWLINE, Damage, Header, Scan
from enginehouse_protocol.errors import SessionNotFound, TranscriptUnreadable
from enginehouse_protocol.events import FORMAT_VERSION, Event, Unknown
from enginehouse_protocol.ids import SessionId

_event_decoder = msgspec.json.Decoder(Event)
_header_decoder = msgspec.json.Decoder(Header)


class _NotClean(Exception):
    """Something in the file wants the careful reader."""


class Loaded:
    """A transcript's state, where its events are, and what was wrong with it."""

    def __init__(self, scan: Scan | None = None) -> None:
        self.fold = SessionFold()
        self.index = SeqIndex()
        self.scan = scan
        """None for a file without any damage."""

    @property
    def damage(self) -> tuple[Damage, ...]:
        return self.scan.damage if self.scan else ()

    def add(self, event: Event, offset: int) -> None:
        self.fold.apply(event)
        self.index.add(event.seq, offset)


def load(folder: Path, session_id: SessionId) -> Loaded:
    """Read and fold the transcript in `folder`. Blocking; changes nothing.

    Raises:
        SessionNotFound, TranscriptUnreadable
    """
    loaded = Loaded()
    try:
        for offset, event in _clean_events(folder / FILE_NAME, session_id):
            loaded.add(event, offset)
    except _NotClean:
        found = read_transcript(folder, session_id)
        loaded = Loaded(found)
        for record in found.records:
            loaded.add(record.event, record.offset)
    except FileNotFoundError as error:
        raise SessionNotFound(session_id) from error
    except OSError as error:
        raise TranscriptUnreadable(f"cannot read {folder / FILE_NAME}: {error.strerror}") from error
    return loaded


def open_transcript(folder: Path, session_id: SessionId) -> tuple[TranscriptFile, Loaded]:
    """Lock and load a transcript, fit for appending. Blocking.

    Raises:
        SessionNotFound
        TranscriptUnreadable: a newer format, or not a transcript.
        TranscriptUnavailable: it cannot be written.
    """
    file = TranscriptFile.open(folder, session_id)
    try:
        loaded = load(folder, session_id)
        if loaded.scan is not None:
            if loaded.scan.newer_format:
                raise TranscriptUnreadable(
                    f"{file.path} was made by a newer Enginehouse: it can be read here, not continued"
                )
            file.prepare(session_id, loaded.scan)
    except BaseException:
        file.close()
        raise
    return file, loaded


def _clean_events(path: Path, session_id: SessionId) -> Iterator[tuple[int, Event]]:
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise _NotClean from None  # empty
        with data:
            yield from _clean_lines(data, session_id)


def _clean_lines(data: mmap.mmap, session_id: SessionId) -> Iterator[tuple[int, Event]]:
    decode, find = _event_decoder.decode, data.find
    end = find(b"\n")
    try:
        header = _header_decoder.decode(data[: max(end, 0)])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _NotClean from None
    if header.version != FORMAT_VERSION or header.session_id != session_id or data[len(data) - 1] != NEWLINE:
        raise _NotClean
    start, expected = end + 1, 1
    while (end := find(b"\n", start)) >= 0:
        try:
            event = decode(data[start:end])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _NotClean from None
        if event.seq != expected or event.session_id != session_id or type(event.body) is Unknown:
            raise _NotClean
        yield start, event
        start, expected = end + 1, expected + 1
