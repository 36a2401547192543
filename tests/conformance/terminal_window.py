"""One command of ours on a pseudo-terminal, as a window: what stands on it is read, what a person does is typed.

Rule: the terminal is read all the time, as a real one does; nothing here knows more than what stands on it.
"""

import codecs
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from end_to_end.person import Person, Terminal

_CARD = "n: deny > "
_WHOLE = "v: view all"
_QUESTION = re.compile(r"\n  (?:answer|1 to \d+|numbers, with commas)[^\n]* > \Z")
_WHY = "why? (the model reads it; empty is fine) > "
_AS_JSON = "$EDITOR opens an editor) > "
_WITHDRAWN = "(no answer is needed any more)"
_STOPPED = re.compile(r"^(?:interrupted|stopped: .*|the turn failed: .*|the hub (?:is gone|ended).*)$", re.MULTILINE)
_TAKEN_BACK = r"[^\n]*\n(?:[^\n]*\n)?\(the reply broke off"
"""On the next line, or after the one that says why."""
_EARLIER = re.compile(r"`enginehouse sessions show (\S+)` shows all")
_INTERRUPTS = re.compile(r"`enginehouse sessions interrupt (\S+)` stops its turn")
_OBEYED = re.compile(r"[^\x20-\x7e\n\t\xa0-\U0010ffff]")
"""Whatever is no printable character; colours are off (NO_COLOR), so the host itself has no need of one."""
_READ_WITHIN_S = 30.0
_LEFT_WITHIN_S = 30.0


@dataclass
class TerminalWindow:
    """`detaches`: Ctrl-C leaves this window and interrupts nobody."""

    person: Person
    terminal: Terminal
    detaches: bool
    _text: str = ""
    _viewed: str = ""
    _grew: anyio.Event = field(default_factory=anyio.Event)
    _reading: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _closed: anyio.Event = field(default_factory=anyio.Event)

    def opens(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._read_on)

    async def _read_on(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with self._reading:
            while True:
                await anyio.wait_readable(self.terminal.fileno())
                try:
                    data = os.read(self.terminal.fileno(), 65536)
                except OSError:  # nobody has the other side open any more
                    break
                self._text += decoder.decode(data).replace("\r\n", "\n")
                self._grow()
        self._closed.set()
        self._grow()

    def _grow(self) -> None:
        self._grew.set()
        self._grew = anyio.Event()

    async def ended(self) -> None:
        """Return once the command has ended and all it wrote is read."""
        await self._closed.wait()
        while self.terminal.code() is None:  # noqa: ASYNC110 - it has closed its terminal, so it is about to
            await anyio.sleep(0.01)

    # --- eyes ---------------------------------------------------------------------------------------------------------

    async def read(self) -> str:
        return self._text

    async def scrolled_back(self) -> str:
        offered = _EARLIER.search(self._text)
        if offered is None:
            return self._text
        shown = await anyio.to_thread.run_sync(self.person.runs, "sessions", "show", offered[1])
        assert shown.code == 0, shown.err
        return shown.out

    async def stands(self, text: str) -> bool:
        return text in self._text and re.search(re.escape(text) + _TAKEN_BACK, self._text) is None

    async def stopped(self) -> str:
        found = _STOPPED.findall(self._text)
        return found[-1] if found else ""

    async def obeyed(self) -> Sequence[str]:
        return _OBEYED.findall(self._text)

    async def card(self) -> str | None:
        prompt = self._text.rpartition("\n")[2]
        if self._closed.is_set() or not prompt.endswith(_CARD):
            return None
        card = self._text[self._text.rfind("\n? ") :]
        if _WHOLE in prompt and self._viewed != card.split("\n")[1]:
            self._viewed = card.split("\n")[1]
            await self._types("v\n")
            return None
        return card

    async def became_of_card(self) -> str:
        return _WITHDRAWN if _WITHDRAWN in self._text[self._text.rfind(_CARD) :] else ""

    async def question(self) -> str | None:
        if self._closed.is_set() or _QUESTION.search(self._text) is None:
            return None
        return self._text[self._text.rfind("\n? ") :]

    # --- hands --------------------------------------------------------------------------------------------------------

    async def allow(self, instead: str | None = None) -> None:
        self._viewed = ""
        if instead is None:
            await self._types("y\n")
            return
        await self._types("e\n")
        await self._until_asked(_AS_JSON)
        await self._types(msgspec.json.encode({"command": instead}).decode() + "\n")

    async def deny(self, reason: str) -> None:
        self._viewed = ""
        await self._types("n\n")
        await self._until_asked(_WHY)
        await self._types(f"{reason}\n")

    async def allow_too_late(self) -> None:
        if not self._closed.is_set():
            self.terminal.types("y\n")

    async def reply(self, answer: str) -> None:
        await self._types(f"{answer}\n")

    async def interrupt(self) -> None:
        if not self.detaches:
            self.terminal.presses_ctrl_c()
            return
        offered = _INTERRUPTS.search(self._text)
        assert offered is not None, f"the window names no way to stop the turn:\n{self._text}"
        stopped = await anyio.to_thread.run_sync(self.person.runs, "sessions", "interrupt", offered[1])
        assert stopped.code == 0, stopped.err

    async def leave(self) -> None:
        """Ctrl-C where it detaches; else the command ends by itself with its turn, or its window is closed."""
        if self.detaches and not self._closed.is_set():
            self.terminal.presses_ctrl_c()
        elif await self.card() is not None or await self.question() is not None:
            self.terminal.gets(signal.SIGHUP)
        with anyio.move_on_after(_LEFT_WITHIN_S):
            await self.ended()
            return
        assert not self.detaches, f"Ctrl-C does not detach:\n{self._text}"
        self.terminal.gets(signal.SIGHUP)
        with anyio.fail_after(_LEFT_WITHIN_S):
            await self.ended()

    async def _types(self, text: str) -> None:
        """Return once the terminal has shown it: what was asked before is then answered."""
        length = len(self._text)
        self.terminal.types(text)
        with anyio.fail_after(_READ_WITHIN_S):
            while len(self._text) == length and not self._closed.is_set():
                await self._grew.wait()

    async def _until_asked(self, prompt: str) -> None:
        """A card that is withdrawn meanwhile asks for nothing more."""
        with anyio.fail_after(_READ_WITHIN_S):
            while not self._text.endswith(prompt):
                if self._closed.is_set() or _WITHDRAWN in self._text[self._text.rfind(_CARD) :]:
                    return
                await self._grew.wait()
