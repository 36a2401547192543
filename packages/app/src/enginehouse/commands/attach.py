"""`enginehouse sessions attach`: look at a session, whoever holds it.

Rule: a person reads the last of it and is asked; a program gets every event and decides nothing.
"""

import argparse

import anyio

from enginehouse.connecting import connected
from enginehouse.named_session import NamedSession, named_session
from enginehouse_hosts.terminal.attachment import Attachment
from enginehouse_hosts.terminal.exit_codes import BROKEN_PIPE
from enginehouse_hosts.terminal.json_lines import JsonLines
from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.streams import AnswerGone, Streams
from enginehouse_hosts.terminal.styles import Styles


def attach(arguments: argparse.Namespace) -> int:
    here = named_session(arguments.session)
    streams = Streams(here.environment)
    for_person = streams.answer_is_terminal and not arguments.json
    after: int | None = arguments.after
    if after is None and not for_person:
        after = 0
    return anyio.run(_watch, here, streams, after, for_person)


async def _watch(here: NamedSession, streams: Streams, after: int | None, for_person: bool) -> int:
    styles = Styles(coloured=streams.coloured and streams.talk_is_terminal)
    presenter = Printer(streams, styles=styles, recorded=True) if for_person else JsonLines(streams)
    try:
        async with connected(here.folders, here.environment, can_answer=for_person and streams.can_ask) as hub:
            attachment = Attachment(hub, streams, presenter, styles=styles, environment=here.environment)
            return await attachment.watch(here.info, after, for_person=for_person)
    except* AnswerGone:
        return_code = BROKEN_PIPE
    return return_code
