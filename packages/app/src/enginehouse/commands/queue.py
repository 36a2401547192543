"""`enginehouse sessions queue`: the messages of a session that wait for their turn.

Rule: no text is lost. Listing starts no hub; without one the queue is what the record says, and it is held.
"""

import argparse

import anyio
import msgspec

from enginehouse.commands.run import prompt_of
from enginehouse.connecting import connected
from enginehouse.named_session import NamedSession, hub_runs, named_session
from enginehouse.output import put, put_listing, remark
from enginehouse_core.transcript.load import load
from enginehouse_hosts.terminal.editing import NotEdited, edited_bytes, editor_of
from enginehouse_hosts.terminal.exit_codes import COMPLETED
from enginehouse_hosts.terminal.plain_text import neutral, one_line
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.content import Content, Image, Text, content_text
from enginehouse_protocol.errors import MessageNotQueued, UsageError
from enginehouse_protocol.hub import (
    EditQueued,
    HubApi,
    QueuedMessage,
    QueueState,
    ResumeQueue,
    SessionRef,
    WithdrawQueued,
)


def list_queue(arguments: argparse.Namespace) -> int:
    here = named_session(arguments.session)
    queue = anyio.run(_queue, here)
    put_listing(
        ("message", "text"),
        [(each.message_id, one_line(content_text(each.content))) for each in queue.messages],
        [{**msgspec.to_builtins(each), "held": queue.held} for each in queue.messages],
        as_json=arguments.json,
        none="nothing waits in this session",
    )
    if queue.held and queue.messages and not arguments.json:
        remark(f"the queue is held; `enginehouse sessions queue resume {here.info.id}` lets it go on")
    return COMPLETED


async def _queue(here: NamedSession) -> QueueState:
    if await hub_runs(here.folders):
        async with connected(here.folders, here.environment, can_answer=False, start=False) as hub:
            return await hub.queue_list(SessionRef(session_id=here.info.id))
    loaded = await anyio.to_thread.run_sync(load, here.archive.folder(here.info.id), here.info.id)
    messages = tuple(
        QueuedMessage(message_id=each.message_id, content=each.content) for each in loaded.fold.queue.values()
    )
    return QueueState(messages=messages, held=bool(messages))


def edit(arguments: argparse.Namespace) -> int:
    here = named_session(arguments.session)
    streams = Streams(here.environment)
    text: str | None = arguments.text
    if text is None and not streams.can_ask:
        text = prompt_of(None)

    async def edited(hub: HubApi) -> None:
        queue = await hub.queue_list(SessionRef(session_id=here.info.id))
        message = _chosen(queue, arguments.message)
        said = well_formed(text) if text is not None else await _in_editor(_words(message), here, streams)
        if not said.strip():
            raise UsageError("a message cannot be empty; `enginehouse sessions queue withdraw` takes it out")
        kept: list[Content] = [part for part in message.content if not isinstance(part, Text)]
        await hub.queue_edit(
            EditQueued(session_id=here.info.id, message_id=message.message_id, content=(Text(text=said), *kept))
        )

    here.ask_hub(edited)
    return COMPLETED


def _words(message: QueuedMessage) -> str:
    """What can be edited; its images stay as they are."""
    return content_text(tuple(part for part in message.content if not isinstance(part, Image)))


async def _in_editor(text: str, here: NamedSession, streams: Streams) -> str:
    editor = editor_of(here.environment)
    if not editor:
        raise UsageError("give the new text, or set EDITOR")
    try:
        data = await edited_bytes(text.encode() + b"\n", ".md", editor, streams)
    except NotEdited as problem:
        raise UsageError(str(problem)) from problem
    return data.decode("utf-8", "replace").rstrip("\n")


def withdraw(arguments: argparse.Namespace) -> int:
    here = named_session(arguments.session)

    async def withdrawn(hub: HubApi) -> QueuedMessage:
        queue = await hub.queue_list(SessionRef(session_id=here.info.id))
        message = _chosen(queue, arguments.message)
        return await hub.queue_withdraw(WithdrawQueued(session_id=here.info.id, message_id=message.message_id))

    text = content_text(here.ask_hub(withdrawn).content)
    shown = neutral(text) if Streams(here.environment).answer_is_terminal else text  # a file gets it as it was
    put(f"{shown}\n")
    return COMPLETED


def resume(arguments: argparse.Namespace) -> int:
    here = named_session(arguments.session)
    launch = here.launch()

    async def resumed(hub: HubApi) -> int:
        session = SessionRef(session_id=here.info.id)
        waiting = len((await hub.queue_list(session)).messages)
        await hub.queue_resume(ResumeQueue(session_id=here.info.id, launch=launch))
        return waiting

    waiting = here.ask_hub(resumed)
    remark("nothing waits in this session" if not waiting else f"the queue goes on with {waiting} waiting")
    return COMPLETED


def _chosen(queue: QueueState, text: str | None) -> QueuedMessage:
    """The message whose id is, or begins with, `text`; the only one there is when there is no text."""
    found = [each for each in queue.messages if text is None or (text and each.message_id.startswith(text))]
    if len(found) == 1:
        return found[0]
    if found:
        which = "say which" if text is None else "give more of it"
        raise UsageError(f"{len(found)} messages wait that could be meant; {which}: " + ", ".join(_ids(found)))
    if text is None:
        raise UsageError("nothing waits in this session")
    raise MessageNotQueued(f"no message whose id begins with {text!r} waits; it may have begun already")


def _ids(messages: list[QueuedMessage]) -> list[str]:
    return [each.message_id for each in messages]
