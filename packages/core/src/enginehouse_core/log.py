"""The rotating log of one profile: one JSON object a line, private, bounded, without secrets.

Rule: logging never costs the caller anything but memory. A thread masks and writes; a slow, full or missing
disk loses records (how many is said in the next one that can be written), it never raises and never blocks.
"""

import contextlib
import copy
import json
import logging
import os
import queue
import threading
import time
from io import TextIOWrapper
from logging.handlers import QueueHandler, RotatingFileHandler
from pathlib import Path

from enginehouse_core.masking import Masker
from enginehouse_core.profile.folders import make_private

FILE = "enginehouse.log"
SIZE_BYTES = 1_000_000
KEPT_FILES = 3
_WAITING = 1_000
LONGEST_TEXT = 64 * 1024
_OURS = (
    "enginehouse",
    "enginehouse_protocol",
    "enginehouse_core",
    "enginehouse_engines",
    "enginehouse_hosts",
)


def configure_log(folder: Path, masker: Masker) -> logging.Logger:
    """Send what is logged in this process to `folder`: ours from INFO, that of libraries from WARNING.

    Call it again when the hub learns another secret (only the masker changes) or for another folder (the
    former log is closed). Nothing is made before the first record. Ends with `close_log`, or with the
    process.
    """
    root = logging.getLogger()
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    for handler in _intakes():
        if handler.file.path == folder / FILE:
            handler.file.masker = masker
            return logging.getLogger("enginehouse")
    close_log()
    root.addHandler(_Intake(_File(folder / FILE, masker)))
    return logging.getLogger("enginehouse")


def flush_log() -> None:
    """Wait until what was logged so far is written or lost, for at most two seconds. Blocks."""
    for handler in _intakes():
        handler.flush()


def close_log() -> None:
    """Write what waits, for at most two seconds, and let go of the file. Without a log this does nothing. Blocks."""
    for handler in _intakes():
        logging.getLogger().removeHandler(handler)
        handler.close()


def _intakes() -> "list[_Intake]":
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _Intake)]


class _Intake(QueueHandler):
    """Runs in whatever thread logs. Leaves the record, its arguments already rendered, for the thread."""

    def __init__(self, file: "_File") -> None:
        self._waiting: queue.Queue[logging.LogRecord | threading.Event | None] = queue.Queue(maxsize=_WAITING)
        super().__init__(self._waiting)
        self.file = file
        self._thread = threading.Thread(target=self._write, name="enginehouse-log", daemon=True)
        self._thread.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # Rendered here: an argument may change later, and a traceback holds on to every frame it names.
        new = copy.copy(record)
        try:
            new.msg = record.getMessage()
        except Exception as error:  # noqa: BLE001 - a wrong format or a broken __str__ must not fail the caller
            new.msg = f"{record.msg!r} (its arguments could not be rendered: {type(error).__name__})"
        new.args = None
        if record.exc_info:
            new.exc_text = logging.Formatter().formatException(record.exc_info)
            new.exc_info = None
        if record.stack_info:
            new.exc_text = f"{new.exc_text}\n{record.stack_info}" if new.exc_text else record.stack_info
            new.stack_info = None
        return new

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.file.dropped += 1

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - so named by `logging`
        self.file.dropped += 1

    def flush(self) -> None:
        done = threading.Event()
        with contextlib.suppress(queue.Full):
            self._waiting.put(done, timeout=1)
            done.wait(timeout=1)

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=1)
            self._thread.join(timeout=1)
        super().close()

    def _write(self) -> None:
        while (item := self._waiting.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            else:
                self.file.handle(item)
        self.file.close()


class _File(RotatingFileHandler):
    """Runs in the thread. Masks, writes, rotates."""

    def __init__(self, path: Path, masker: Masker) -> None:
        super().__init__(path, maxBytes=SIZE_BYTES, backupCount=KEPT_FILES - 1, encoding="utf-8", delay=True)
        self.path = path
        self.masker = masker
        self.dropped = 0
        """Records that found the queue full. Counted by the threads that log."""
        self.failed = 0
        """Records the disk did not take. Counted by the thread that writes."""
        self._told = 0

    def format(self, record: logging.LogRecord) -> str:
        """One line. Long texts keep head and tail."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line: dict[str, str | int] = {"at": at, "level": record.levelname.lower(), "logger": record.name}
        # Masked before it is shortened, so that no half of a secret stays.
        line["message"] = _bounded(self.masker.text(record.getMessage()))
        if record.exc_text:
            line["traceback"] = _bounded(self.masker.text(record.exc_text))
        line["process"] = record.process or 0
        if lost := self.dropped + self.failed - self._told:
            line["lost_before"] = lost
        return json.dumps(self.masker.value(line), ensure_ascii=False)

    def emit(self, record: logging.LogRecord) -> None:
        lost, failed = self.dropped + self.failed, self.failed
        super().emit(record)
        if self.failed == failed:  # written, and its line told how many were not
            self._told = lost

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802 - so named by `logging`
        # Another process may have rotated the file, or a person removed it: then go on in the one that is
        # there now.
        if self.stream is not None:
            try:
                moved = not os.path.samestat(os.stat(self.path), os.fstat(self.stream.fileno()))
            except OSError:
                moved = True
            if moved:
                self._drop()
        return bool(super().shouldRollover(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - so named by `logging`
        self.failed += 1
        self._drop()  # its buffer holds the line that could not be written, and would fail again

    def _drop(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()

    def _open(self) -> TextIOWrapper:
        make_private(self.path.parent)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        stream = os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            stream.write("\n")  # a full disk or a kill cut the last line
        return stream


def _bounded(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
