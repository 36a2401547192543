"""`enginehouse demo`: the rehearsal engine on a throwaway project, through the real hub.

Rule: it touches nothing of the person's. Project, profile, data and logs are in one temporary folder, gone at the end.
What it answers for the person it says out loud.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import anyio
import anyio.to_thread

from enginehouse.environment import secrets_in
from enginehouse.wiring import hub_of
from enginehouse_core.hub import Hub
from enginehouse_core.profile.folders import VARIABLE, Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_engines.rehearsal.demo import AFTER_PROMPT, BUG, FIX_PROMPT, LONG_PROMPT, PROJECT_FILES
from enginehouse_hosts.terminal.conversation import Continued, Conversation, Message
from enginehouse_hosts.terminal.exit_codes import COMPLETED, FAILED, INTERRUPTED
from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.events import ToolOutput
from enginehouse_protocol.hub import Attach, CreateSession, Launch
from enginehouse_protocol.ids import EngineName, SessionId
from enginehouse_protocol.settings import SessionSettings

_ENGINE = EngineName("rehearsal")
_READING_S = 0.3
"""How long a question stands before the demo answers it."""
_WATCHING_S = 0.9
"""How long the long command runs before the demo interrupts it."""
_OUTRO = """\
That was the real hub, with a script in place of a model. To connect a model:

  export OPENAI_BASE_URL=https://…/v1   any OpenAI-compatible server; leave it out for OpenAI itself
  export OPENAI_API_KEY=…
  enginehouse doctor                    says whether it can be reached
  enginehouse run "what is this project about?"
"""


def play(_: argparse.Namespace) -> int:
    started = time.monotonic()
    top = Path(tempfile.mkdtemp(prefix="enginehouse-demo-"))
    try:
        return anyio.run(_play, top, started)
    finally:
        shutil.rmtree(top, ignore_errors=True)


class _OnePlace(Streams):
    """Everything on stdout, and a person who answers at once: the first choice, said out loud."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__(environment, stderr=1)
        self.can_ask = True

    async def ask(self, prompt: str) -> str | None:
        choice = prompt.lstrip()[:1]  # "y" of "y: allow once", "1" of "1 to 2"
        await anyio.sleep(_READING_S)
        await self.say(f"{prompt}{choice}    (the demo answers for you)")
        return choice


async def _play(top: Path, started: float) -> int:
    environment = _throwaway_environment(top)
    streams = _OnePlace(environment)
    styles = Styles(coloured=streams.coloured and streams.answer_is_terminal)
    folders = Folders.of(environment)
    project = await anyio.to_thread.run_sync(_make_project, top)

    async def heading(text: str) -> None:
        await streams.say("\n" + styles("ask", f"── {text}"))

    async def said(prompt: str) -> None:
        await streams.say(styles("title", f"> {prompt}"))

    launch = _launch(environment)

    async def hold(hub: Hub, start: CreateSession | Continued, prompt: str) -> int:
        await said(prompt)
        printer = Printer(streams, styles=styles)
        conversation = Conversation(hub, streams, printer, styles=styles, environment={})
        return await conversation.hold(start, Message(text=prompt, launch=launch))

    await streams.say("A rehearsal: no model, no network. The project, the tests, the edit and the record are real;")
    await streams.say(f"all of it is in {one_line(str(top))} and is removed at the end.")
    archive = Archive(folders.transcripts)
    async with hub_of(folders, "enginehouse demo") as hub:
        await heading("a session in plan mode: it may read, and asks before it does anything else")
        settings = SessionSettings(mode="plan")
        create = CreateSession(engine=_ENGINE, directory=str(project), settings=settings, launch=launch)
        code = await hold(hub, create, FIX_PROMPT)
        session_id = archive.ids()[0]
        if code != COMPLETED:
            return code
        await heading("a long command, interrupted: the demo presses Ctrl-C")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_interrupt_soon, hub, session_id, archive.info(session_id).last_seq)
            code = await hold(hub, _continued(archive, session_id), LONG_PROMPT)
            tasks.cancel_scope.cancel()
        if code != INTERRUPTED:
            return code or FAILED
    await heading("that hub is gone; a new one opens the same profile and goes on with the session")
    async with hub_of(folders, "enginehouse demo") as hub:
        code = await hold(hub, _continued(archive, session_id), AFTER_PROMPT)
    if code == COMPLETED and BUG in (project / "basket" / "total.py").read_text(encoding="utf-8"):
        code = FAILED
    last = archive.info(session_id).last_seq
    await heading(f"{last} events were recorded; {time.monotonic() - started:.1f} seconds")
    await streams.say(_OUTRO)
    return code


def _continued(archive: Archive, session_id: SessionId) -> Continued:
    return Continued(session=archive.info(session_id), change=SessionSettings())


async def _interrupt_soon(hub: Hub, session_id: SessionId, after: int) -> None:
    """Wait until the command says something, then do what Ctrl-C does."""
    async with hub.sessions_attach(Attach(session_id=session_id, after=after)) as view:
        async for batch in view.batches():
            if any(isinstance(delivery.event.body, ToolOutput) for delivery in batch):
                break
    await anyio.sleep(_WATCHING_S)
    signal.raise_signal(signal.SIGINT)


def _throwaway_environment(top: Path) -> dict[str, str]:
    """This process's own from here on: the folders outside the profile follow it too."""
    os.environ[VARIABLE] = str(top / "profile")
    for name in ("DATA", "CACHE", "STATE", "CONFIG"):
        os.environ[f"XDG_{name}_HOME"] = str(top / name.lower())
    runtime = top / "run"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    return dict(os.environ)


def _make_project(top: Path) -> Path:
    project = top / "basket-project"
    for path, text in PROJECT_FILES.items():
        file = project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return project


def _launch(environment: dict[str, str]) -> Launch:
    """The project's tests run with the Python that runs this."""
    secrets = secrets_in(environment)
    shown = {name: value for name, value in environment.items() if name not in secrets}
    shown["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), environment.get("PATH", os.defpath)))
    return Launch(environment=shown, secrets=secrets)
