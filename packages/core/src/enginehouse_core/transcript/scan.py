"""Reads a transcript file as it is on disk, damaged or not. Changes nothing.

Rule: every intact record is found, and every byte that is not part of one is reported with its place. A line is
normally one record; where it is not, the records inside it are looked for by the way ours begin.
"""

import bisect
import itertools
import json
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.errors import MalformedData, TranscriptUnreadable
from enginehouse_protocol.events import FORMAT_VERSION, Event, Unknown
from enginehouse_protocol.ids import SessionId

FORMAT_NAME = "enginehouse.transcript"
NEWLINE = 0x0A


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of every transcript."""

    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION
    session_id: SessionId
    created_at_ms: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One event with its exact bytes."""

    event: Event
    line: bytes
    """Without newline."""
    offset: int


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Something a reader had to step over. `missing_record` is a gap in the seqs and has no bytes."""

    kind: Literal[
        "torn_tail",
        "foreign_bytes",
        "nul_bytes",
        "foreign_record",
        "out_of_place",
        "missing_record",
        "wrong_shape",
        "header",
    ]
    offset: int
    size_bytes: int
    detail: str = ""


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    header: Header | None
    records: tuple[Record, ...]
    damage: tuple[Damage, ...]
    size_bytes: int
    whole_bytes: int
    """Where appending may begin: everything from here on is a torn tail. Equal to `size_bytes` when there is none."""
    ends_with_newline: bool
    """False also when the last record is whole and only its newline is missing."""

    @property
    def last_seq(self) -> int:
        return self.records[-1].event.seq if self.records else 0

    @property
    def newer_format(self) -> bool:
        """Made by a newer Enginehouse: what is understood can be read, nothing may be appended."""
        return self.header is not None and self.header.version > FORMAT_VERSION


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What every version of a header says."""

    format: str
    version: int


_header_decoder = msgspec.json.Decoder(Header)
_kind_decoder = msgspec.json.Decoder(_Kind)
_json_prefix = json.JSONDecoder()
_NOT_DECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_header(header: Header) -> bytes:
    return msgspec.json.encode(header)


def is_header(line: bytes) -> bool:
    """Whether this line begins a transcript, of whatever version."""
    try:
        return _kind_decoder.decode(line).format == FORMAT_NAME
    except _NOT_DECODED:
        return False


def scan(data: bytes, session_id: SessionId) -> Scan:
    """All records of `session_id` in `data`, and all damage."""
    header, start, damage = _read_header(data, session_id)
    records: list[Record] = []
    whole = start
    for offset, line, terminated in _lines(data, start):
        found, problems = _read_line(line, offset, session_id)
        records += found
        if terminated:
            whole = offset + len(line) + 1
        elif found and found[-1].offset + len(found[-1].line) == offset + len(line):
            whole = offset + len(line)  # a whole record that lost only its newline
        else:
            # All after the last whole record is the tail; what comes before it in this line stays where it is.
            whole = found[-1].offset + len(found[-1].line) if found else offset
            problems = [problem for problem in problems if problem.offset < whole]
            problems.append(Damage(kind="torn_tail", offset=whole, size_bytes=len(data) - whole))
        damage += problems
    records, displaced = _in_order(records)
    damage += displaced
    damage += _gaps(records)
    damage += [
        Damage(kind="wrong_shape", offset=record.offset, size_bytes=len(record.line), detail=record.event.body.tag)
        for record in records
        if isinstance(record.event.body, Unknown) and record.event.body.reason == "wrong_shape"
    ]
    return Scan(
        header=header,
        records=tuple(records),
        damage=tuple(sorted(damage, key=lambda problem: (problem.offset, problem.kind))),
        size_bytes=len(data),
        whole_bytes=whole,
        ends_with_newline=whole == 0 or data[whole - 1] == NEWLINE,
    )


def _read_header(data: bytes, session_id: SessionId) -> tuple[Header | None, int, list[Damage]]:
    """The header, where records begin, and what is wrong. A header that is lost costs nothing but its date."""
    end = data.find(b"\n")
    line = data if end < 0 else data[:end]
    try:
        kind = _kind_decoder.decode(line)
        if kind.format != FORMAT_NAME:
            raise TranscriptUnreadable(f"this is a {kind.format!r} file, not a transcript")
        header = _any_header(line, kind.version, session_id)
    except _NOT_DECODED:
        # No header line at all: let whatever is there be read as records.
        return None, 0, [Damage(kind="header", offset=0, size_bytes=0, detail="missing or damaged")]
    if header.session_id != session_id:
        detail = f"belongs to {header.session_id}"
        return None, len(line) + 1, [Damage(kind="header", offset=0, size_bytes=len(line), detail=detail)]
    if end < 0:
        return header, len(line), []
    return header, end + 1, []


def _any_header(line: bytes, version: int, session_id: SessionId) -> Header:
    try:
        return _header_decoder.decode(line)
    except msgspec.ValidationError:
        if version <= FORMAT_VERSION:
            raise
        # Of a newer header only its version can be relied on, and it must not be taken for a lost one.
        return Header(version=version, session_id=session_id, created_at_ms=0)


def _lines(data: bytes, start: int) -> Iterator[tuple[int, bytes, bool]]:
    """(offset, line without newline, whether it had one)"""
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            yield start, data[start:], False
            return
        yield start, data[start:end], True
        start = end + 1


def _read_line(line: bytes, offset: int, session_id: SessionId) -> tuple[list[Record], list[Damage]]:
    if not line:
        return [], []
    try:
        event = decode_recorded(line)
    except MalformedData:
        return _search_line(line, offset, session_id)
    if isinstance(event, Event) and event.session_id == session_id and event.seq > 0:
        return [Record(event=event, line=line, offset=offset)], []
    detail = f"of {event.session_id}" if event.session_id != session_id else "without a place in the record"
    return [], [Damage(kind="foreign_record", offset=offset, size_bytes=len(line), detail=detail)]


def _search_line(line: bytes, offset: int, session_id: SessionId) -> tuple[list[Record], list[Damage]]:
    """Records inside a line that is not one: spliced together, or with foreign bytes around them.

    Ours begin with their session id, which cannot occur like this inside a text: there its quotes are escaped. Free
    JSON may begin like this too, so not every beginning is one of a record.
    """
    beginning = re.escape(f'{{"session_id":"{session_id}",'.encode())
    beginnings = [found.start() for found in re.finditer(beginning, line)]
    records: list[Record] = []
    damage: list[Damage] = []
    done = 0
    for number, at in enumerate(beginnings):
        if at < done:
            continue
        record = _record_at(line, beginnings, number, offset, session_id)
        if record is None:
            continue
        damage += _unread(line[done:at], offset + done)
        records.append(record)
        done = at + len(record.line)
    damage += _unread(line[done:], offset + done)
    return records, damage


def _record_at(line: bytes, beginnings: list[int], number: int, offset: int, session_id: SessionId) -> Record | None:
    """The record that begins at `beginnings[number]`, if one does.

    It should end before the next beginning. When that one is inside of it, twice as far is looked at each time, so that
    a line costs what is in it, however many there are.
    """
    at, ahead = beginnings[number], 1
    while True:
        end = beginnings[number + ahead] if number + ahead < len(beginnings) else len(line)
        # One byte one character: JSON is made of ASCII, and lengths are those of the bytes.
        text = line[at:end].decode("latin-1")
        try:
            _, size = _json_prefix.raw_decode(text)
            break
        except json.JSONDecodeError as error:
            if error.pos < len(text) or end == len(line):
                return None  # broken, not cut by the beginning of the next
            ahead *= 2
        except (ValueError, RecursionError):  # ValueError: an integer too long to be converted
            return None
    exact = line[at : at + size]
    try:
        event = decode_recorded(exact)
    except MalformedData:
        return None
    if not isinstance(event, Event) or event.session_id != session_id or event.seq < 1:
        return None
    return Record(event=event, line=exact, offset=offset + at)


def _unread(piece: bytes, offset: int) -> list[Damage]:
    if not piece:
        return []
    kind = "nul_bytes" if not piece.strip(b"\0") else "foreign_bytes"
    return [Damage(kind=kind, offset=offset, size_bytes=len(piece))]


def _in_order(records: list[Record]) -> tuple[list[Record], list[Damage]]:
    """The longest run of records whose seqs rise. One record that strayed cannot hide those after it."""
    seqs = [record.event.seq for record in records]
    if all(earlier < later for earlier, later in itertools.pairwise(seqs)):
        return records, []
    tails: list[int] = []  # smallest last seq of a rising run of each length
    tail_index: list[int] = []
    before: list[int] = []
    for index, seq in enumerate(seqs):
        length = bisect.bisect_left(tails, seq)
        before.append(tail_index[length - 1] if length else -1)
        if length == len(tails):
            tails.append(seq)
            tail_index.append(index)
        elif seq < tails[length]:  # of two with the same seq the first one counts
            tails[length] = seq
            tail_index[length] = index
    kept: set[int] = set()
    index = tail_index[-1]
    while index >= 0:
        kept.add(index)
        index = before[index]
    displaced = [
        Damage(kind="out_of_place", offset=record.offset, size_bytes=len(record.line), detail=f"seq {record.event.seq}")
        for index, record in enumerate(records)
        if index not in kept
    ]
    return [record for index, record in enumerate(records) if index in kept], displaced


def _gaps(records: list[Record]) -> list[Damage]:
    gaps: list[Damage] = []
    expected = 1
    for record in records:
        if record.event.seq > expected:
            detail = f"seq {expected}" if record.event.seq == expected + 1 else f"seq {expected}-{record.event.seq - 1}"
            gaps.append(Damage(kind="missing_record", offset=record.offset, size_bytes=0, detail=detail))
        expected = record.event.seq + 1
    return gaps
