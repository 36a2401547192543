"""The host suite's eyes and hands for the command line: real processes on pseudo-terminals, a model behind real HTTP.

Rule: one person with one terminal begins turns (`enginehouse run`), one command after the other; every other window is
`enginehouse sessions attach`. Without the hub there is only the one terminal, and `sessions show` to look back.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import psutil
from anyio.abc import TaskGroup

from conformance.history import recorded, remembered, session_of
from conformance.terminal_window import TerminalWindow
from end_to_end.person import Person, Terminal
from enginehouse_protocol.conformance.hosts import Ability, AskPerson, Hold, Reply, RunCommand, Use, WriteFile
from enginehouse_protocol.events import Event
from enginehouse_protocol.ids import SessionId
from model_server import ChatRequest, ModelServer, call, cut, fault, hold, reply, text_of
from model_server.script import Answer, Call, Piece

_ONE_PROCESS = "a session held in process belongs to that process"
_PLAIN = {"NO_COLOR": "1"}
_HUB_DIES_WITHIN_S = 5


class TerminalDriver:
    """`server` is the model, whose script is this driver's."""

    host = "terminal"
    slowness = 1.0
    tasks: TaskGroup
    """Reads the terminals."""

    def __init__(self, home: Path, server: ModelServer, *, hub: bool) -> None:
        self.cannot: Mapping[Ability, str] = (
            {}
            if hub
            else {
                "second_window": _ONE_PROCESS,
                "send": _ONE_PROCESS,
                "withdraw": _ONE_PROCESS,
                "hub_death": "there is no hub",
            }
        )
        self.person = Person(home, server.base_url)
        self.project = self.person.project
        self._hub = hub
        self._server = server
        self._terminals: list[Terminal] = []
        self._running: TerminalWindow | None = None
        self._replies: list[Reply] = []
        server.script = self._answer

    # --- the agent ----------------------------------------------------------------------------------------------------

    def plays(self, *replies: Reply) -> None:
        self._replies = list(replies)

    def opens(self, gate: str) -> None:
        self._server.release(gate)

    async def prompt(self) -> str:
        return "\n".join(text_of(message) for message in (self._server.chats[-1].json or {})["messages"])

    async def remember(self, turns: Sequence[tuple[str, str]]) -> None:
        await remembered(self.person.profile, self.project, turns, host=self.host)

    async def record(self) -> Sequence[Event]:
        return await anyio.to_thread.run_sync(recorded, self.person.profile)

    def _answer(self, _request: ChatRequest) -> Answer:
        if not self._replies:
            return fault(400, "the suite expects no more calls")
        wanted = self._replies.pop(0)
        deltas: list[Piece] = [hold(piece.gate) if isinstance(piece, Hold) else piece for piece in wanted.pieces]
        if wanted.breaks:
            deltas.append(cut())
        return reply(deltas=deltas, calls=[_call(use) for use in wanted.uses], flush_each=True)

    # --- the host -----------------------------------------------------------------------------------------------------

    async def say(self, text: str, *, unasked: bool = False) -> TerminalWindow:
        if self._running is not None:  # the terminal is not free before
            await self._running.ended()
        words = ["run", text]
        words += [] if self._hub else ["--no-hub"]
        words += ["--mode", "yolo"] if unasked else []
        if session_id := await anyio.to_thread.run_sync(session_of, self.person.profile):
            words += ["--session", session_id]
        self._running = self._window(*words, detaches=False)
        return self._running

    async def look(self) -> TerminalWindow:
        return self._window("sessions", "attach" if self._hub else "show", await self._there(), detaches=self._hub)

    async def _there(self) -> SessionId:
        session_id = await anyio.to_thread.run_sync(session_of, self.person.profile)
        assert session_id is not None, "there is no session yet"
        return session_id

    def _window(self, *words: str, detaches: bool) -> TerminalWindow:
        terminal = self.person.sits_at(*words, also=_PLAIN)
        self._terminals.append(terminal)
        window = TerminalWindow(self.person, terminal, detaches)
        window.opens(self.tasks)
        return window

    async def send(self, text: str) -> None:
        await self._runs("sessions", "send", await self._there(), text)

    async def take_back(self) -> str:
        return (await self._runs("sessions", "queue", "withdraw", await self._there())).removesuffix("\n")

    async def _runs(self, *words: str) -> str:
        ended = await anyio.to_thread.run_sync(self.person.runs, *words)
        assert ended.code == 0, ended.err
        return ended.out

    async def kill_hub(self) -> None:
        await anyio.to_thread.run_sync(self._kill_hub)

    def _kill_hub(self) -> None:
        hubs = self.person.hubs()
        assert hubs, "no hub runs"
        for each in hubs:
            each.kill()
        psutil.wait_procs(hubs, timeout=_HUB_DIES_WITHIN_S)

    def goes_home(self) -> None:
        """Close every window at once. Blocks."""
        for terminal in self._terminals:
            with terminal:
                pass
        self.person.ends_hubs()


def _call(use: Use) -> Call:
    match use:
        case RunCommand(command):
            return call("bash", {"command": command})
        case WriteFile(path, content):
            return call("write_file", {"path": path, "content": content})
        case AskPerson(text, options):
            return call("ask_user", {"question": text, "options": [{"label": each} for each in options]})
