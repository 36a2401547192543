"""The three standard streams: what they are, writing to them, reading an answer.

Rule: the event loop never waits for a reader. A write happens in a worker thread, so Ctrl-C works also while `less`
holds the pipe; and what is written to stdout and stderr appears in the order it was written in.
"""

import codecs
import errno
import os
import select
import termios
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import anyio
import anyio.to_thread

from enginehouse_protocol.errors import EnginehouseError


class Piece(NamedTuple):
    """A text for one of the two streams: the answer, or what is said about it."""

    to: Literal["answer", "talk"]
    text: str


class AnswerGone(Exception):
    """Whoever read stdout has closed it. Not an error: `| head` does it."""


class OutputUnwritable(EnginehouseError):
    """The disk that stdout goes to may be full."""

    code = "output_unwritable"

    def __init__(self, problem: str) -> None:
        super().__init__(f"stdout cannot be written: {problem}")
        self.problem = problem


_PLAIN_SCREEN = b"\x1b[?1049l\x1b[?25h\x1b[0m"
"""The usual screen, with a cursor, without colours."""


class Streams:
    """The descriptors of this process, unless others are given."""

    def __init__(self, environment: Mapping[str, str], *, stdin: int = 0, stdout: int = 1, stderr: int = 2) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.answer_is_terminal = _is_terminal(stdout)
        self.talk_is_terminal = _is_terminal(stderr)
        self.can_ask = _is_terminal(stdin) and self.talk_is_terminal
        """Whether somebody is there who can be asked."""
        self.coloured = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
        """Whether escape sequences are wanted at all; they go to terminals only."""
        self._prompt = ""  # what is being asked now; shown again below whatever is written meanwhile
        self._unfinished: Literal["", "answer", "talk", "prompt"] = ""  # what the last line on the screen is a part of
        self._writing = anyio.Lock()
        self._typed = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = ""

    async def write(self, pieces: Iterable[Piece]) -> None:
        """What nobody can read on stderr is dropped.

        Raises:
            AnswerGone: nobody reads stdout any more.
            OutputUnwritable: stdout cannot be written; its disk may be full.
        """
        async with self._writing:
            for to, text in self._joined(pieces):
                await self._put(self.stdout if to == "answer" else self.stderr, text.encode("utf-8", "replace"))

    async def write_bytes(self, data: bytes) -> None:
        """To stdout, as it is."""
        async with self._writing:
            await self._put(self.stdout, data)

    async def say(self, text: str) -> None:
        """One line for the person."""
        await self.write([Piece("talk", text + "\n")])

    async def ask(self, prompt: str) -> str | None:
        """One line from the person, without its newline; None at the end of input. May be cancelled."""
        async with self._writing:
            self._forget_typed()
            text = f"\n{prompt}" if self._unfinished else prompt
            self._prompt, self._unfinished = prompt, "prompt"
            await self._put(self.stderr, text.encode("utf-8", "replace"))
        try:
            while "\n" not in self._waiting:
                await anyio.wait_readable(self.stdin)
                try:
                    data = os.read(self.stdin, 65536)
                except OSError:  # a terminal that was closed
                    return None
                if not data:
                    return None
                self._waiting += self._typed.decode(data)
        finally:
            self.forget_prompt()
        self._unfinished = ""  # the terminal has shown the new line that was typed
        line, _, self._waiting = self._waiting.partition("\n")
        return line

    async def leave_screen(self) -> None:
        """What a program that was ended on this terminal may have left behind is taken back."""
        if self.talk_is_terminal:
            async with self._writing:
                await self._put(self.stderr, _PLAIN_SCREEN)

    def forget_prompt(self) -> None:
        """Nothing is asked any more, although the asking may not have heard of it yet."""
        self._prompt = ""

    def _forget_typed(self) -> None:
        """What was typed before a question was shown is no answer to it."""
        self._waiting = ""
        self._typed.reset()
        try:
            termios.tcflush(self.stdin, termios.TCIFLUSH)
        except (termios.error, OSError):
            pass

    def _joined(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Neighbours put together, and a new line where something else would go on in the middle of a line."""
        joined: list[Piece] = []
        for to, text in pieces:
            if not text:
                continue
            if self.talk_is_terminal if to == "talk" else self.answer_is_terminal:
                if self._unfinished not in ("", to):
                    text = f"\n{text}"
                self._unfinished = "" if text.endswith("\n") else to
            if joined and joined[-1].to == to:
                joined[-1] = Piece(to, joined[-1].text + text)
            else:
                joined.append(Piece(to, text))
        if joined and self._prompt:
            joined.append(Piece("talk", self._prompt))
            self._unfinished = "prompt"
        return joined

    async def _put(self, descriptor: int, data: bytes) -> None:
        try:
            await anyio.to_thread.run_sync(_write_all, descriptor, data, abandon_on_cancel=True)
        except OSError as error:
            if descriptor != self.stdout:
                return  # nobody reads the talk; that is no reason to stop
            if error.errno == errno.EIO and self.answer_is_terminal:
                return  # closed; the hang-up that says so is on its way
            if isinstance(error, BrokenPipeError):
                raise AnswerGone from error
            raise OutputUnwritable(error.strerror or str(error)) from error


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
