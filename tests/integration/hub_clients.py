"""Host processes as a test holds them: it tells them what to do and has what they heard.

Rule: every wait has a deadline, and says what the host said last when it passes.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import psutil

from integration.host_words import (
    ANSWERED,
    HEARD,
    Answered,
    AnySaid,
    AnyWord,
    Failed,
    Numbered,
    Reply,
)

PATIENCE_S = 60.0
_TESTS = str(Path(__file__).parent.parent)
_decoder = msgspec.json.Decoder(Reply)
SaidT = TypeVar("SaidT", bound=AnySaid)


class HostProcess:
    """One `integration.host_process`. Use as a context manager: what still runs at the end is killed."""

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        search = os.pathsep.join(filter(None, (_TESTS, environment.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "integration.host_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env={**environment, "PYTHONPATH": search},
        )
        self.heard: list[bytes] = []
        """Every durable line its loud view heard, in order."""
        self.answered: list[Answered] = []
        self.failed: str | None = None
        self._replies: dict[int, AnySaid] = {}
        self._numbers = itertools.count(1)
        self._changed = Condition()
        self._ended = False
        self._complaints = b""
        self._threads = [Thread(target=self._listen), Thread(target=self._hear_complaints)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        for thread in self._threads:
            thread.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed
            with self._changed:
                if line[:1] == HEARD:
                    self.heard.append(line[1:-1])
                elif line[:1] == ANSWERED:
                    self._take(_decoder.decode(line[1:-1]))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self, reply: Reply) -> None:
        match reply.said:
            case Answered() as answered:
                self.answered.append(answered)
            case Failed(why=why):
                self.failed = why
            case said:
                self._replies[reply.number] = said

    def _hear_complaints(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._complaints = (self._complaints + line)[-4_000:]

    def told(self, word: AnyWord) -> int:
        """Tell it to do something; returns the number to ask for the answer with."""
        number = next(self._numbers)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # whoever waits for the answer hears why it ended
            self.process.stdin.write(msgspec.json.encode(Numbered(number=number, word=word)) + b"\n")
            self.process.stdin.flush()
        return number

    def answer(self, number: int, kind: type[SaidT], within_s: float = PATIENCE_S) -> SaidT:
        self.until(lambda: number in self._replies, within_s, f"the answer to {number}")
        said = self._replies.pop(number)
        assert isinstance(said, kind), said
        return said

    def does(self, word: AnyWord, kind: type[SaidT], within_s: float = PATIENCE_S) -> SaidT:
        return self.answer(self.told(word), kind, within_s)

    def has(self, number: int) -> bool:
        """Whether the answer has come."""
        return number in self._replies

    def until(self, holds: Callable[[], bool], within_s: float, what: str) -> None:
        deadline = time.monotonic() + within_s
        with self._changed:
            while not holds():
                left = deadline - time.monotonic()
                gone = self._ended or self.failed is not None
                if gone or left <= 0 or not self._changed.wait(left):
                    raise AssertionError(
                        f"{what} did not come: {self.failed or ('it ended' if gone else f'after {within_s:g} s')}; "
                        f"last heard: {self.heard[-2:]}; stderr: {self._complaints.decode('utf-8', 'replace')}"
                    )

    def stops(self) -> None:
        """As Ctrl-Z does it, only that nothing can be done about it."""
        self.process.send_signal(signal.SIGSTOP)

    def goes_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Memory:
    """The most memory a process held while the block lasted."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._over = False
        self.before_bytes = self.most_bytes = process.memory_info().rss
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join(5)

    def _watch(self) -> None:
        while not self._over:
            try:
                self.most_bytes = max(self.most_bytes, self._process.memory_info().rss)
            except psutil.NoSuchProcess:
                return
            time.sleep(0.02)

    @property
    def growth_mb(self) -> float:
        return (self.most_bytes - self.before_bytes) / 1e6
