"""`enginehouse run`: one message to an agent, through the hub, or with `--no-hub` in this process.

Rule: everything that can be wrong with the call is found before a hub is started or entered, and before anything is
written.
"""

import argparse
import os
import select
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio

from enginehouse.connecting import connected
from enginehouse.environment import DEFAULT_ENGINE, NO_MODEL, Flags, start_of
from enginehouse.hub_place import is_held_by_hub, locked_text
from enginehouse.images_given import images_given
from enginehouse.output import agreed, complain
from enginehouse.places import directory_of
from enginehouse.session_provider import launch_again
from enginehouse_core.profile.defaults import MODES, parse_mode
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_hosts.terminal.conversation import Continued, Conversation, Message
from enginehouse_hosts.terminal.exit_codes import BROKEN_PIPE
from enginehouse_hosts.terminal.json_lines import JsonLines
from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.streams import AnswerGone, Streams
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.errors import ProfileLocked, SessionMoved, UsageError
from enginehouse_protocol.hub import CreateSession, HubApi, SessionInfo
from enginehouse_protocol.settings import Mode

_MOST_PIPED = 64 << 20
_PATIENCE_S = 1.0


def run(arguments: argparse.Namespace) -> int:
    environment = dict(os.environ)
    folders = Folders.of(environment)
    streams = Streams(environment)
    flags = Flags(
        engine=arguments.engine,
        provider=arguments.provider,
        model=arguments.model,
        effort=arguments.effort,
        mode=arguments.mode,
    )
    images = images_given(arguments.images)
    start: CreateSession | Continued
    if arguments.newest or arguments.session is not None:
        start = _continued(arguments, flags, folders, environment)
        archive = Archive(folders.transcripts)
        launch = launch_again(start.session, archive, folders, environment, provider=arguments.provider)
    else:
        new = start_of(flags, folders, environment)
        launch = new.launch
        start = CreateSession(
            engine=new.engine, directory=directory_of(arguments.directory), settings=new.settings, launch=launch
        )
    prompt = prompt_of(arguments.prompt)
    engine = start.engine if isinstance(start, CreateSession) else start.session.engine
    if engine == DEFAULT_ENGINE and launch.provider is None:
        raise UsageError(NO_MODEL)
    message = Message(text=prompt, images=images, launch=launch, max_steps=arguments.max_steps)
    hub = in_process(folders) if arguments.no_hub else connected(folders, environment, can_answer=streams.can_ask)
    return anyio.run(_hold, hub, streams, start, message, arguments.json, environment)


@asynccontextmanager
async def in_process(folders: Folders) -> AsyncGenerator[HubApi]:
    """A hub in this process, which takes the profile's lock.

    Raises:
        ProfileLocked: somebody has it.
        UsageError: the shared hub has it.
    """
    from enginehouse.wiring import hub_of  # with it comes all of core

    entered = False
    try:
        async with hub_of(folders, "enginehouse run") as hub:
            entered = True
            yield hub
    except ProfileLocked as error:
        if entered or not is_held_by_hub(error):
            raise
        raise UsageError(f"{locked_text(error)}, or leave out --no-hub") from error


async def _hold(
    through: AbstractAsyncContextManager[HubApi],
    streams: Streams,
    start: CreateSession | Continued,
    message: Message,
    as_json: bool,
    environment: Mapping[str, str],
) -> int:
    """The turn is over, or interrupted, before the hub is left: a shared one would go on with it."""
    styles = Styles(coloured=streams.coloured and streams.talk_is_terminal)
    presenter = JsonLines(streams) if as_json else Printer(streams, styles=styles)
    try:
        async with through as hub:
            conversation = Conversation(hub, streams, presenter, styles=styles, environment=environment)
            return await conversation.hold(start, message)
    except* AnswerGone:
        return_code = BROKEN_PIPE
    return return_code


def _continued(
    arguments: argparse.Namespace, flags: Flags, folders: Folders, environment: Mapping[str, str]
) -> Continued:
    archive = Archive(folders.transcripts)
    directory: str | None = None
    if arguments.session is not None:
        session = archive.info(archive.resolve(arguments.session))
        if arguments.directory is not None:
            named = directory_of(arguments.directory)
            directory = named if named != session.directory else None
    else:
        here = directory_of(arguments.directory)
        open_ones = [info for info in archive.list(here).sessions if info.state not in ("closed", "damaged")]
        if not open_ones:
            raise UsageError(f"no session of {here} can be continued; `enginehouse sessions list` shows all there are")
        session = open_ones[0]
        if session.moved_here:
            _confirm_move(session, here)
            directory = here
    if flags.engine is not None and flags.engine != session.engine:
        raise UsageError(f"session {session.id} runs on {session.engine}, and a session keeps its engine")
    remark = looser_than_wanted(session.settings.updated(flags.settings).mode or "default", flags, environment)
    return Continued(session=session, change=flags.settings, directory=directory, remark=remark)


def looser_than_wanted(mode: Mode, flags: Flags, environment: Mapping[str, str]) -> str:
    """A session keeps its mode; who set a stricter one for new sessions should hear of it."""
    text = environment.get("ENGINEHOUSE_MODE")
    if not text or flags.mode is not None:
        return ""
    try:
        wanted = parse_mode(text)
    except ValueError as error:
        raise UsageError(f"ENGINEHOUSE_MODE {error}") from error
    if MODES.index(wanted) >= MODES.index(mode):
        return ""
    said, kept = wanted.replace("_", "-"), mode.replace("_", "-")
    return f"ENGINEHOUSE_MODE says {said}, and this session keeps its mode {kept}; --mode {said} changes it"


def _confirm_move(session: SessionInfo, here: str) -> None:
    """A project that seems to have moved: a person says so, nobody guesses."""
    if agreed(
        f"The newest session here, {session.id}, was in {session.directory}, which is gone.\n"
        f"Is {here} the same project, and should it go on here?"
    ):
        return
    raise SessionMoved(session.id, session.directory, here)


def prompt_of(argument: str | None) -> str:
    """What to say to the agent: the argument, then what is piped in. Blocks until the pipe ends.

    Raises:
        UsageError: neither says anything.
    """
    parts = [argument or "", _piped(waiting_is_told=bool(argument))]
    prompt = "\n\n".join(part for part in parts if part.strip())
    if not prompt:
        raise UsageError(
            'there is nothing to say: give a prompt, as in `enginehouse run "fix the test"`, or pipe one in'
        )
    repaired = well_formed(prompt)
    if repaired != prompt:
        complain("the prompt is not valid UTF-8; what could not be read was replaced by U+FFFD")
    return repaired


def _piped(*, waiting_is_told: bool) -> str:
    if os.isatty(0):
        return ""
    try:
        if waiting_is_told and not select.select([0], [], [], _PATIENCE_S)[0]:
            complain("waiting for the end of stdin, which follows the prompt; `< /dev/null` skips it")
        data = bytearray()
        while len(data) <= _MOST_PIPED and (more := os.read(0, 1 << 20)):
            data += more
    except OSError as error:
        if waiting_is_told:
            return ""  # no stdin at all, as under some launchers
        raise UsageError(f"stdin cannot be read: {error.strerror}") from error
    if len(data) > _MOST_PIPED:
        raise UsageError(f"more than {_MOST_PIPED >> 20} MiB were piped in; save it in the project and name the file")
    return data.decode("utf-8-sig", "surrogateescape").rstrip("\n")
