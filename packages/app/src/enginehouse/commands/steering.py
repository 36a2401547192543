"""`enginehouse sessions interrupt` and `set`: changing what a session does, from outside.

Rule: an interrupt starts no hub: where none runs, nothing can be interrupted.
"""

import argparse

import anyio

from enginehouse.connecting import connected
from enginehouse.named_session import NamedSession, hub_runs, named_session
from enginehouse.output import remark
from enginehouse_hosts.terminal.exit_codes import COMPLETED
from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.errors import UsageError
from enginehouse_protocol.hub import HubApi, SessionInfo, SessionRef, SetSession
from enginehouse_protocol.settings import SessionSettings

_LONGEST_TITLE = 200


def interrupt(arguments: argparse.Namespace) -> int:
    here = named_session(arguments.session)
    remark(anyio.run(_interrupted, here))
    return COMPLETED


async def _interrupted(here: NamedSession) -> str:
    """What to say of it."""
    session = SessionRef(session_id=here.info.id)
    if not await hub_runs(here.folders) and here.info.state != "running":
        return "nothing runs in this session"
    async with connected(here.folders, here.environment, can_answer=False, start=False) as hub:
        await hub.sessions_interrupt(session)
        queue = await hub.queue_list(session)
    said = "interrupted" if here.info.state == "running" else "nothing ran in this session"
    if queue.held and queue.messages:
        count = len(queue.messages)
        held = "1 queued message is" if count == 1 else f"{count} queued messages are"
        said += f"; {held} held: `enginehouse sessions queue resume {here.info.id}` lets the queue go on"
    return said


def set_session(arguments: argparse.Namespace) -> int:
    settings = SessionSettings(model=arguments.model, effort=arguments.effort, mode=arguments.mode)
    title = None if arguments.title is None else _title(arguments.title)
    if settings == SessionSettings() and title is None:
        raise UsageError("there is nothing to set: give --model, --effort, --mode or --title")
    here = named_session(arguments.session)
    change = SetSession(
        session_id=here.info.id, title=title, settings=None if settings == SessionSettings() else settings
    )

    async def changed(hub: HubApi) -> SessionInfo:
        return await hub.sessions_set(change)

    remark(_told(here.ask_hub(changed)))
    return COMPLETED


def _title(text: str) -> str:
    title = well_formed(text).strip()
    if not title or "\n" in title or len(title) > _LONGEST_TITLE:
        raise UsageError(f"a title is one line of 1 to {_LONGEST_TITLE} characters")
    return title


def _told(info: SessionInfo) -> str:
    settings = info.settings
    said: list[str] = [info.id]
    if info.title:
        said.append(one_line(info.title))
    if settings.model:
        said.append(f"model {one_line(settings.model)}")
    if settings.effort:
        said.append(f"effort {one_line(settings.effort)}")
    said.append(f"mode {(settings.mode or 'default').replace('_', '-')}")
    return " · ".join(said)
