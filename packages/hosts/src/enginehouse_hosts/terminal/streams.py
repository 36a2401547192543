"""The three standard streams: what they are, writing to them, reading an answer.

Rule: the event loop never waits for a reader. A write happens in a worker thread, so Ctrl-C works also while `less`
holds the pipe; and what is written to stdout and stderr appears in the order it was written in.
"""

import codecs
import os
import select
import termios
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import anyio
import anyio.to_thread

STDIN, STDOUT, STDERR = 0, 1, 2


class Piece(NamedTuple):
    """A text for one of the two streams: the answer, or what is said about it."""

    to: Literal["answer", "talk"]
    text: str


class AnswerGone(Exception):
    """Whoever read stdout has closed it. Not an error: `| head` does it."""


class Streams:
    """stdin, stdout and stderr of this process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.answer_is_terminal = _is_terminal(STDOUT)
        self.talk_is_terminal = _is_terminal(STDERR)
        self.can_ask = _is_terminal(STDIN) and self.talk_is_terminal
        """Whether somebody is there who can be asked."""
        self.coloured = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
        """Whether escape sequences are wanted at all; they go to terminals only."""
        self.prompt = ""
        """What a person is being asked at this moment; shown again below whatever is written meanwhile."""
        self._writing = anyio.Lock()
        self._at_line_start = True
        self._typed = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = ""

    async def write(self, pieces: Iterable[Piece]) -> None:
        """Raises `AnswerGone` when nobody reads stdout any more. Without a reader of stderr, that is dropped."""
        async with self._writing:
            for to, text in self._joined(pieces):
                await self._put(STDOUT if to == "answer" else STDERR, text.encode("utf-8", "replace"))

    async def write_bytes(self, data: bytes) -> None:
        """To stdout, as it is."""
        async with self._writing:
            await self._put(STDOUT, data)

    async def say(self, text: str) -> None:
        """One line for the person."""
        await self.write([Piece("talk", text + "\n")])

    async def ask(self, prompt: str) -> str | None:
        """One line from the person, without its newline; None at the end of input. May be cancelled."""
        async with self._writing:
            self._forget_typed()
            self.prompt = prompt
            await self._put(STDERR, self._new_line() + prompt.encode("utf-8", "replace"))
        try:
            while "\n" not in self._waiting:
                await anyio.wait_readable(STDIN)
                data = os.read(STDIN, 65536)
                if not data:
                    return None
                self._waiting += self._typed.decode(data)
        finally:
            self.prompt = ""
            self._at_line_start = True
        line, _, self._waiting = self._waiting.partition("\n")
        return line

    def _forget_typed(self) -> None:
        """What was typed before a question was shown is no answer to it."""
        self._waiting = ""
        self._typed.reset()
        try:
            termios.tcflush(STDIN, termios.TCIFLUSH)
        except (termios.error, OSError):
            pass

    def _new_line(self) -> bytes:
        started, self._at_line_start = self._at_line_start, False
        return b"" if started else b"\n"

    def _joined(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Neighbours put together, and a new line where one stream would go on in the middle of the other's."""
        joined: list[Piece] = []
        one_screen = self.answer_is_terminal and self.talk_is_terminal
        last: str | None = None
        for to, text in pieces:
            if not text:
                continue
            if self.prompt and last is None and one_screen:
                text = f"\n{text}"
            if one_screen and to == "talk" and not self._at_line_start and last != "talk" and not self.prompt:
                text = f"\n{text}"
            if joined and joined[-1].to == to:
                joined[-1] = Piece(to, joined[-1].text + text)
            else:
                joined.append(Piece(to, text))
            self._at_line_start = text.endswith("\n")
            last = to
        if joined and self.prompt:
            joined.append(Piece("talk", self.prompt))
        return joined

    async def _put(self, descriptor: int, data: bytes) -> None:
        try:
            await anyio.to_thread.run_sync(_write_all, descriptor, data, abandon_on_cancel=True)
        except BrokenPipeError as error:
            if descriptor == STDOUT:
                raise AnswerGone from error


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever shares this stream made it non-blocking
            select.select([], [descriptor], [])


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
