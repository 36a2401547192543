"""The sessions of a profile as they are on disk, for whoever only reads.

Rule: nothing is changed and nobody is refused anything because of it, so this works beside a running hub and on a
read-only profile. Asking whether a session is being written takes its lock for an instant, which a writer waits out.
Only `repair` and `delete` write; their caller holds the profile's lock.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from enginehouse_core.sessions.outcomes import told_by
from enginehouse_core.sessions.project import identity_of
from enginehouse_core.transcript.blobs import BLOBS, load_blob
from enginehouse_core.transcript.file import FILE_NAME, is_written, read_transcript
from enginehouse_core.transcript.fold import SessionFold
from enginehouse_core.transcript.load import load, open_transcript
from enginehouse_core.transcript.log import SessionLog
from enginehouse_core.transcript.repair import repairs
from enginehouse_core.transcript.scan import Damage
from enginehouse_protocol.errors import ProfileUnwritable, SessionNotFound, TranscriptError, UsageError
from enginehouse_protocol.hub import SessionInfo, SessionList, SessionStatus
from enginehouse_protocol.ids import QuestionId, RequestId, SessionId, is_id


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What a careful reader found in one transcript."""

    session_id: SessionId
    last_seq: int
    damage: tuple[Damage, ...]
    unfinished: int
    """How many events a repair would append."""


class Archive:
    """Reads the transcripts below one folder. Every method blocks."""

    def __init__(self, transcripts: Path) -> None:
        self._transcripts = transcripts

    def folder(self, session_id: SessionId) -> Path:
        """Where a session's transcript is, or would be.

        Raises:
            SessionNotFound: no session can have this id.
        """
        if not is_id(session_id):
            raise SessionNotFound(session_id)
        return self._transcripts / session_id

    def is_there(self, session_id: SessionId) -> bool:
        return (self.folder(session_id) / FILE_NAME).exists()

    def ids(self) -> list[SessionId]:
        try:
            names = sorted(os.listdir(self._transcripts), reverse=True)
        except OSError:
            return []
        return [SessionId(name) for name in names if is_id(name)]

    def resolve(self, text: str) -> SessionId:
        """The one session whose id is, or begins with, `text`.

        Raises:
            SessionNotFound: none, or `text` could not be an id.
            UsageError: several.
        """
        if is_id(text) and (self._transcripts / text).is_dir():
            return SessionId(text)
        matches = [session_id for session_id in self.ids() if text and session_id.startswith(text)]
        if len(matches) > 1:
            raise UsageError(f"{text!r} is the beginning of {len(matches)} session ids; give more of it")
        if not matches:
            raise SessionNotFound(text)
        return matches[0]

    def list(self, directory: str | None) -> SessionList:
        """Newest first. With `directory` those that belong there, also ones whose project seems to have moved there."""
        directory = os.path.realpath(directory) if directory is not None else None
        sessions: list[SessionInfo] = []
        for session_id in self.ids():
            try:
                info = self.info(session_id, directory)
            except TranscriptError:
                info = _damaged(session_id)
            except SessionNotFound:
                continue  # a folder whose session never began
            if directory is None or info.directory == directory or info.moved_here:
                sessions.append(info)
        sessions.sort(key=lambda info: (info.updated_at_ms, info.id), reverse=True)
        return SessionList(sessions=tuple(sessions))

    def info(self, session_id: SessionId, here: str | None = None) -> SessionInfo:
        """One session; `here` is the directory to compare its project with.

        Raises:
            SessionNotFound, TranscriptUnreadable
        """
        folder = self.folder(session_id)
        loaded = load(folder, session_id)
        if loaded.fold.created is None and not loaded.fold.last_seq:
            raise SessionNotFound(session_id)
        return info_of(session_id, loaded.fold, state=_status(folder, loaded.fold), here=here)

    def lines_after(self, session_id: SessionId, after: int) -> Iterator[bytes]:
        """The transcript's own lines, without newline, oldest first; damage is stepped over."""
        for record in read_transcript(self.folder(session_id), session_id).records:
            if record.event.seq > after:
                yield record.line

    def outcome_of(self, asked: RequestId | QuestionId) -> str:
        """In words, what became of a request or a question of any session; empty when none knows of it."""
        for session_id in self.ids():
            try:
                if asked.encode() not in (self.folder(session_id) / FILE_NAME).read_bytes():
                    continue
                events = (record.event for record in read_transcript(self.folder(session_id), session_id).records)
                if outcome := next(filter(None, (told_by(event, asked) for event in events)), ""):
                    return outcome
            except (OSError, TranscriptError, SessionNotFound):
                continue
        return ""

    def blob(self, session_id: SessionId, sha256: str) -> bytes:
        """What a record of this session names.

        Raises:
            FileUnusable: it is missing or damaged.
        """
        return load_blob(self.folder(session_id) / BLOBS, sha256)

    def check(self, session_id: SessionId) -> Check:
        found = read_transcript(self.folder(session_id), session_id)
        fold = SessionFold()
        for record in found.records:
            fold.apply(record.event)
        unfinished = 0 if is_written(self.folder(session_id)) else len(repairs(fold, found))
        return Check(session_id=session_id, last_seq=found.last_seq, damage=found.damage, unfinished=unfinished)

    def repair(self, session_id: SessionId) -> Check:
        """Set a torn tail aside, and append that this was done and what ends whatever was cut off. Again does nothing.

        Raises:
            SessionNotFound, TranscriptUnreadable, TranscriptUnavailable
        """
        folder = self.folder(session_id)
        file, loaded = open_transcript(folder, session_id)
        try:
            if bodies := repairs(loaded.fold, loaded.scan):
                log = SessionLog(session_id, folder, file, loaded.fold.last_seq, loaded.index)
                stamped: list[bytes] = []
                for turn_id, body in bodies:
                    delivery = log.stamp(body, turn_id)
                    log.put(delivery)
                    stamped.append(delivery.line)
                file.append(stamped)
        finally:
            file.close()
        return self.check(session_id)

    def delete(self, session_id: SessionId) -> None:
        """Remove a session for good, its blobs included.

        Raises:
            SessionNotFound, ProfileUnwritable
        """
        folder = self.folder(session_id)
        if not folder.is_dir():
            raise SessionNotFound(session_id)
        # First out of the way in one step: a deletion that is cut off leaves no half session behind.
        doomed = folder.with_name(f".deleted-{session_id}")
        try:
            folder.rename(doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            raise ProfileUnwritable(str(folder), str(error.strerror)) from error


def info_of(session_id: SessionId, fold: SessionFold, *, state: SessionStatus, here: str | None = None) -> SessionInfo:
    """A session as lists show it."""
    moved = bool(here) and fold.directory != here and not os.path.isdir(fold.directory) and _is_same(fold, here or "")
    return SessionInfo(
        id=session_id,
        title=fold.title,
        directory=fold.directory,
        engine=fold.engine,
        state=state,
        settings=fold.settings,
        created_at_ms=fold.created_at_ms,
        updated_at_ms=fold.updated_at_ms,
        turns=fold.turns,
        last_seq=fold.last_seq,
        queued=len(fold.queue),
        branch=fold.created.branch if fold.created else None,
        moved_here=moved,
    )


def _status(folder: Path, fold: SessionFold) -> SessionStatus:
    if fold.closed:
        return "closed"
    if fold.open_turn is None:
        return "idle"
    return "running" if is_written(folder) else "interrupted"


def _is_same(fold: SessionFold, here: str) -> bool:
    return bool(fold.roots) and fold.roots[0].identity != "" and fold.roots[0].identity == identity_of(here)


def _damaged(session_id: SessionId) -> SessionInfo:
    """All that can be said of a session whose transcript cannot be read."""
    return info_of(session_id, SessionFold(), state="damaged")
