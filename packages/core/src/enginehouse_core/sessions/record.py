"""One session's record while the session is open: the log, what it says (the folds), and the way in.

Rule: whoever opens a record repairs it first, by appending what a crash left open; after a failed write the same
opening and repairing, once the disk lets it, is the way back. `fold` says what is on disk and may be shown; `ahead`
also knows what is still on its way, and is for those who must not do a thing twice.
"""

import copy
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from enginehouse_core.key_shapes import looks_like_key
from enginehouse_core.masking import Masker
from enginehouse_core.sessions.intake import Intake, Streamed
from enginehouse_core.transcript.blobs import BLOBS, load_blob
from enginehouse_core.transcript.file import TranscriptFile
from enginehouse_core.transcript.fold import SessionFold
from enginehouse_core.transcript.load import Loaded, open_transcript
from enginehouse_core.transcript.log import SessionLog
from enginehouse_core.transcript.repair import repairs
from enginehouse_protocol.content import content_text
from enginehouse_protocol.errors import TranscriptUnavailable
from enginehouse_protocol.events import AnyBody, Event, LiveState, MessageQueued, Notice, ToolResult
from enginehouse_protocol.hub import Delivery
from enginehouse_protocol.ids import SessionId, TurnId

_CLOSING_S = 5.0
_UNFOLDED = 256
_LOOKED_AT = 64 << 10  # characters of a text that are searched for keys nobody told us about


class SessionRecord:
    """The open record of one session; satisfies `History`. Make it with `create` or `open`."""

    def __init__(self, session_id: SessionId, folder: Path, scratch: Path, masker: Masker, tasks: TaskGroup) -> None:
        self.session_id = session_id
        self.intake = Intake(masker, folder / BLOBS, scratch)
        self.ahead = SessionFold()
        self.log: SessionLog
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a group could not be written: nothing can be recorded until `recover`."""
        self._fold = SessionFold()
        self._unfolded: deque[Event] = deque()
        self._folder = folder
        self._tasks = tasks
        # What is put in one go is checked, stamped and folded in one go: no other body comes in between.
        self._order = anyio.Lock(fast_acquire=True)
        self._flagged: set[str] = set()
        self._log_changed = anyio.Event()
        self._closed = False

    @classmethod
    async def create(cls, session_id: SessionId, folder: Path, scratch: Path, masker: Masker, tasks: TaskGroup) -> Self:
        """A new, empty record.

        Raises:
            TranscriptUnavailable: the disk refuses.
        """
        self = cls(session_id, folder, scratch, masker, tasks)
        with anyio.CancelScope(shield=True):  # a file that is made has an owner
            self._start(await anyio.to_thread.run_sync(TranscriptFile.create, folder, session_id), Loaded())
        return self

    @classmethod
    async def open(cls, session_id: SessionId, folder: Path, scratch: Path, masker: Masker, tasks: TaskGroup) -> Self:
        """The record as it is on disk, repaired.

        Raises:
            SessionNotFound, TranscriptUnreadable, TranscriptUnavailable
        """
        self = cls(session_id, folder, scratch, masker, tasks)
        await self._open()
        return self

    async def _open(self) -> None:
        loaded = Loaded()
        with anyio.CancelScope(shield=True):
            file, loaded = await anyio.to_thread.run_sync(open_transcript, self._folder, self.session_id)
            self._start(file, loaded)
        try:
            for turn_id, body in repairs(loaded.fold, loaded.scan):
                await self.put(body, turn_id)
            await self.log.synced(self.log.last_seq)
        except BaseException:
            self.log.close()
            raise

    def _start(self, file: TranscriptFile, loaded: Loaded) -> None:
        self._fold, self.ahead = loaded.fold, copy.deepcopy(loaded.fold)
        self._unfolded.clear()
        self.log = SessionLog(self.session_id, self._folder, file, loaded.fold.last_seq, loaded.index)
        try:
            self._tasks.start_soon(self._write, self.log)
        except RuntimeError:  # the hub has ended meanwhile: nobody would give up the file
            file.close()
            raise
        self._log_changed.set()
        self._log_changed = anyio.Event()

    async def _write(self, log: SessionLog) -> None:
        await log.write()
        if log.failure:
            self.on_failure()

    @property
    def fold(self) -> SessionFold:
        """What the record on disk says."""
        while self._unfolded and self._unfolded[0].seq <= self.log.on_disk_seq:
            self._fold.apply(self._unfolded.popleft())
        return self._fold

    @property
    def failure(self) -> str:
        """Why nothing can be recorded at the moment; empty while all is well."""
        return self.log.failure

    async def recover(self) -> None:
        """After a failed write: read what is really there, repair it and go on.

        Raises:
            TranscriptUnavailable: it still cannot be written.
        """
        self.log.close()
        await self.log.wait_closed()
        await self._open()
        if self._closed:
            self.log.close()
            raise TranscriptUnavailable("the session was closed meanwhile")

    async def close(self) -> None:
        """Write what is queued, then give up the file."""
        self._closed = True
        self.log.close()
        self._log_changed.set()
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await self.log.wait_closed()

    # --- writing --------------------------------------------------------------------------------------------------

    async def put(
        self, body: AnyBody, turn_id: TurnId | None = None, *, only_if: Callable[[], bool] | None = None
    ) -> int:
        """Order and queue a body; returns its seq, 0 for a transient one and for one that `only_if` refused.

        `only_if` is asked when everything before it is in the record and nothing can come between.
        """
        return sum(await self.put_all([body], turn_id, only_if=only_if))

    async def put_all(
        self, bodies: Sequence[AnyBody], turn_id: TurnId | None, *, only_if: Callable[[], bool] | None = None
    ) -> list[int]:
        """The same for several that belong together; the seqs of the durable ones, none when `only_if` refused."""
        events: list[Event] = []
        bodies = [await self.intake.with_images_kept(body) for body in bodies]
        async with self._order:
            if only_if is not None and not only_if():
                return []
            await self.log.has_room()
            for body in bodies:
                event = (await self.intake.record(self.log, body, turn_id)).event
                if isinstance(event, Event):
                    events.append(event)
                    self.ahead.apply(event)
                    self._unfolded.append(event)
            if len(self._unfolded) > _UNFOLDED:
                _ = self.fold
        for event in events:
            await self._say_what_was_done(event)
        return [event.seq for event in events]

    async def put_durably(self, body: AnyBody, turn_id: TurnId | None = None) -> int:
        """The same, and wait for the disk."""
        seq = await self.put(body, turn_id)
        await self.log.synced(seq)
        return seq

    async def pass_on(self, body: Streamed, turn_id: TurnId | None) -> None:
        async with self._order:
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

    async def follow(self, seq: int, present: "Present") -> AsyncGenerator[tuple[Delivery, ...]]:
        """The durable events after `seq`, the present, then what happens, until the record is closed.

        While nothing can be recorded, `present` says why; once it can be again this goes on where it was.
        """
        while True:
            log, changed = self.log, self._log_changed
            try:
                async for batch in log.follow(seq, partial(self._live, log, present)):
                    for delivery in batch:
                        if isinstance(delivery.event, Event):
                            seq = delivery.event.seq
                    yield batch
                    if self.fold.closed and isinstance(batch[-1].event.body, LiveState):
                        return  # nothing comes any more
                return
            except TranscriptUnavailable as error:
                seq = min(seq, log.on_disk_seq)
                if self.log is log:  # else it was opened anew while this view was busy, and all is well
                    yield (present.read_only(str(error)),)
            if self._closed:
                return
            await changed.wait()

    def _live(self, log: SessionLog, present: "Present") -> Delivery:
        if self.log is not log:  # a view that was busy meanwhile has events of the new one to hear first
            raise TranscriptUnavailable(log.failure or "the record was opened anew")
        return present.live()


class Present(Protocol):
    """What only an open session knows of its present. Neither changes anything."""

    def live(self) -> Delivery:
        """A `live.state`, as of what is visible."""
        ...

    def read_only(self, why: str) -> Delivery:
        """A `session.state` that says why nothing can be recorded."""
        ...


class RecordView:
    """One view's cursor on a record."""

    def __init__(self, record: SessionRecord, after: int, present: Present) -> None:
        self._record = record
        self._after = after
        self._present = present

    def batches(self) -> AsyncIterator[tuple[Delivery, ...]]:
        return self._record.follow(self._after, self._present)
