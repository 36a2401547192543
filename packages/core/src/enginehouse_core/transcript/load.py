"""From a transcript file to the state it describes.

Rule: an undamaged file is read as a stream, one event in memory at a time; only a damaged one is scanned whole.
"""

from pathlib import Path

import msgspec

from enginehouse_core.transcript.file import FILE_NAME, TranscriptFile, read_transcript
from enginehouse_core.transcript.fold import SessionFold
from enginehouse_core.transcript.index import EVERY, Place, SeqIndex
from enginehouse_core.transcript.scan import Damage, Header, Record, Scan
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
        """What a careful reader found; None for a file that is whole lines of well-known events."""

    @property
    def damage(self) -> tuple[Damage, ...]:
        return self.scan.damage if self.scan else ()

    def add(self, record: Record) -> None:
        """The next record a careful reader found."""
        self.fold.apply(record.event)
        self.index.add_found(Place(record.event.seq, record.offset, len(record.line)))


def load(folder: Path, session_id: SessionId) -> Loaded:
    """Read and fold the transcript in `folder`, one of a newer format too. Blocking; changes nothing.

    Raises:
        SessionNotFound, TranscriptUnreadable
    """
    try:
        loaded = _load_clean(folder / FILE_NAME, session_id)
    except _NotClean:
        found = read_transcript(folder, session_id)
        loaded = Loaded(found)
        for record in found.records:
            loaded.add(record)
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


def _load_clean(path: Path, session_id: SessionId) -> Loaded:
    loaded = Loaded()
    decode, apply, note = _event_decoder.decode, loaded.fold.apply, loaded.index.add
    seq = 0
    with path.open("rb") as file:
        line = file.readline()
        _check_header(line, session_id)
        offset = len(line)
        for line in file:
            try:
                event = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise _NotClean from None
            seq += 1
            if event.seq != seq or event.session_id != session_id or type(event.body) is Unknown:
                raise _NotClean
            apply(event)
            if seq % EVERY == 1:  # the index keeps no more anyway
                note(seq, offset)
            offset += len(line)
    if not line.endswith(b"\n"):
        raise _NotClean
    return loaded


def _check_header(line: bytes, session_id: SessionId) -> None:
    try:
        header = _header_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _NotClean from None
    if header.version != FORMAT_VERSION or header.session_id != session_id:
        raise _NotClean
