"""One session's record while the session is open: the log, what it says (the fold), and the way in.

Rule: whoever opens a record repairs it first, by appending what a crash left open. After a failed write the same
opening and repairing, once the disk lets it, is the way back.
"""

import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from enginehouse_core.key_shapes import looks_like_key
from enginehouse_core.masking import Masker
from enginehouse_core.sessions.intake import Intake, Streamed
from enginehouse_core.transcript.blobs import load_blob
from enginehouse_core.transcript.file import TranscriptFile
from enginehouse_core.transcript.fold import SessionFold
from enginehouse_core.transcript.load import Loaded, load, open_transcript
from enginehouse_core.transcript.log import SessionLog, last_seq_of
from enginehouse_core.transcript.repair import closing_bodies
from enginehouse_protocol.content import content_text
from enginehouse_protocol.errors import TranscriptError, TranscriptUnavailable
from enginehouse_protocol.events import AnyBody, Event, MessageQueued, Notice, SessionStateChanged, ToolResult
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import SessionId, TurnId

BLOBS = "blobs"
_log = logging.getLogger(__name__)
_CLOSING_S = 5.0
_LOOKED_AT = 64 << 10  # characters of a text that are searched for keys nobody told us about


class SessionRecord:
    """The open record of one session; satisfies `History`. Make it with `create` or `open`."""

    def __init__(self, session_id: SessionId, folder: Path, intake: Intake, tasks: TaskGroup) -> None:
        self.session_id = session_id
        self.intake = intake
        self.fold = SessionFold()
        self.log: SessionLog
        self._folder = folder
        self._tasks = tasks
        self._flagged: set[str] = set()
        self._log_changed = anyio.Event()
        self._closed = False

    @classmethod
    async def create(cls, session_id: SessionId, folder: Path, scratch: Path, masker: Masker, tasks: TaskGroup) -> Self:
        """A new, empty record.

        Raises:
            TranscriptUnavailable: the disk refuses.
        """
        self = cls(session_id, folder, Intake(masker, folder / BLOBS, scratch), tasks)
        file = await anyio.to_thread.run_sync(TranscriptFile.create, folder, session_id)
        self._start(file, Loaded())
        return self

    @classmethod
    async def open(cls, session_id: SessionId, folder: Path, scratch: Path, masker: Masker, tasks: TaskGroup) -> Self:
        """The record as it is on disk, repaired.

        Raises:
            SessionNotFound, TranscriptUnreadable, TranscriptUnavailable
        """
        self = cls(session_id, folder, Intake(masker, folder / BLOBS, scratch), tasks)
        await self._open()
        return self

    async def _open(self) -> None:
        file, loaded = await anyio.to_thread.run_sync(open_transcript, self._folder, self.session_id)
        self._start(file, loaded)
        await self._repair(loaded)

    def _start(self, file: TranscriptFile, loaded: Loaded) -> None:
        self.fold = loaded.fold
        self.log = SessionLog(self.session_id, self._folder, file, loaded.fold.last_seq, loaded.index)
        self.log.damaged = bool(loaded.damage)
        self._tasks.start_soon(self.log.write)
        self._log_changed.set()
        self._log_changed = anyio.Event()

    async def _repair(self, loaded: Loaded) -> None:
        seq = 0
        for turn_id, body in closing_bodies(self.fold):
            seq = await self.put(body, turn_id)
        torn = [damage for damage in loaded.damage if damage.kind == "torn_tail"]
        if torn:
            text = f"{torn[0].size_bytes} bytes of a half-written record were set aside"
            seq = await self.put(Notice(level="warning", code="transcript.repaired", text=text))
        if seq:
            await self.log.synced(seq)

    @property
    def failure(self) -> str:
        """Why nothing can be recorded at the moment; empty while all is well."""
        return self.log.failure

    async def reread(self) -> None:
        """After a failed write: what is said here is what is on disk again, though nothing can be added."""
        try:
            self.fold = (await anyio.to_thread.run_sync(load, self._folder, self.session_id)).fold
        except TranscriptError:
            _log.exception("the transcript of %s cannot be read back", self.session_id)

    async def recover(self) -> None:
        """After a failed write: read what is really there, repair it and go on.

        Raises:
            TranscriptUnavailable: it still cannot be written.
        """
        self.log.close()
        await self.log.wait_closed()
        await self._open()

    async def close(self) -> None:
        """Write what is queued, then give up the file."""
        self._closed = True
        self.log.close()
        self._log_changed.set()
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await self.log.wait_closed()

    # --- writing --------------------------------------------------------------------------------------------------

    async def put(self, body: AnyBody, turn_id: TurnId | None = None) -> int:
        """Order and queue a body; returns its seq, for a transient one the seq before it."""
        await self.log.has_room()
        delivery = await self.intake.record(self.log, body, turn_id)
        if isinstance(delivery.event, Event):
            self.fold.apply(delivery.event)
            await self._say_what_was_done(delivery.event)
        return self.log.last_seq

    async def put_durably(self, body: AnyBody, turn_id: TurnId | None = None) -> int:
        """The same, and wait for the disk."""
        seq = await self.put(body, turn_id)
        await self.log.synced(seq)
        return seq

    async def pass_on(self, body: Streamed, turn_id: TurnId | None) -> None:
        await self.log.has_room()
        await self.intake.pass_on(self.log, body, turn_id)

    async def _say_what_was_done(self, event: Event) -> None:
        """Repaired text and suspected keys are not silent."""
        if self.intake.repaired_text:
            self.intake.repaired_text = 0
            text = "ill-formed Unicode was replaced by U+FFFD in the record above"
            await self.put(Notice(level="info", code="text.repaired", text=text), event.turn_id)
        if isinstance(event.body, MessageQueued | ToolResult):
            text = content_text(event.body.content)[:_LOOKED_AT]
            for shape in looks_like_key(text):
                if shape.kind not in self._flagged:
                    self._flagged.add(shape.kind)
                    text = f"something that looks like a {shape.kind} is now in this conversation's record"
                    await self.put(Notice(level="warning", code="secret.suspected", text=text), event.turn_id)

    # --- reading (History) ----------------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        return self.log.last_seq

    async def events_after(self, seq: int) -> list[Event]:
        return await self.log.events_after(seq)

    async def blob(self, sha256: str) -> bytes:
        return await anyio.to_thread.run_sync(load_blob, self._folder / BLOBS, sha256)

    async def follow(self, seq: int) -> AsyncGenerator[tuple[Delivery, ...]]:
        """Everything after `seq`, then what happens, until the record is closed.

        While nothing can be recorded a `session.state` says why; once it can be again this goes on where it was.
        """
        while True:
            log, changed = self.log, self._log_changed
            try:
                async for batch in log.follow(seq):
                    seq = last_seq_of(batch, seq)
                    yield batch
                return
            except TranscriptUnavailable as error:
                yield (log.stamp(SessionStateChanged(state="idle", held=True, read_only=str(error)), None),)
            if self._closed:
                return
            await changed.wait()
