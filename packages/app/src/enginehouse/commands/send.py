"""`enginehouse sessions send`: a message to a session, without waiting for the answer.

Rule: when it returns the message is on disk. Nobody need stay: what its turn asks for waits in the inbox.
"""

import argparse

import anyio

from enginehouse.commands.run import prompt_of
from enginehouse.connecting import connected
from enginehouse.images_given import images_given
from enginehouse.named_session import NamedSession, named_session
from enginehouse.output import put, remark
from enginehouse_hosts.terminal.asking import HOST
from enginehouse_hosts.terminal.conversation import Continued, Conversation, Message
from enginehouse_hosts.terminal.exit_codes import BROKEN_PIPE, COMPLETED
from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.streams import AnswerGone, Streams
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.events import MessageQueued
from enginehouse_protocol.hub import EventsAfter, HubApi, SendMessage, SessionRef
from enginehouse_protocol.settings import SessionSettings


def send(arguments: argparse.Namespace) -> int:
    here = named_session(arguments.session)
    images = images_given(arguments.images)
    message = Message(launch=here.launch(), text=prompt_of(arguments.prompt), images=images, unattended="wait")
    if arguments.wait:
        return anyio.run(_hold, here, message)
    sending = SendMessage(
        host=HOST,
        session_id=here.info.id,
        content=message.content,
        launch=message.launch,
        unattended=message.unattended,
        message_id=message.message_id,
    )

    async def sent(hub: HubApi) -> tuple[bool, int]:
        """Whether it began at once, and how many wait before it."""
        receipt = await hub.sessions_send(sending)
        page = await hub.sessions_events(EventsAfter(session_id=here.info.id, after=receipt.seq - 1))
        began = any(isinstance(event.body, MessageQueued) and event.body.source == "human" for event in page.events[:1])
        waiting = (await hub.queue_list(SessionRef(session_id=here.info.id))).messages
        ids = [each.message_id for each in waiting]
        return began, ids.index(receipt.message_id) if receipt.message_id in ids else 0

    began, before = here.ask_hub(sent)
    put(f"{message.message_id} {'started' if began else 'queued'}\n")
    if before:
        remark(f"{before} more {'message waits' if before == 1 else 'messages wait'} before it")
    return COMPLETED


async def _hold(here: NamedSession, message: Message) -> int:
    streams = Streams(here.environment)
    styles = Styles(coloured=streams.coloured and streams.talk_is_terminal)
    printer = Printer(streams, styles=styles)
    try:
        async with connected(here.folders, here.environment, can_answer=streams.can_ask) as hub:
            conversation = Conversation(hub, streams, printer, styles=styles, environment=here.environment)
            return await conversation.hold(Continued(session=here.info, change=SessionSettings()), message)
    except* AnswerGone:
        return_code = BROKEN_PIPE
    return return_code
