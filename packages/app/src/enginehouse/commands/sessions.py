"""`enginehouse sessions`: the conversations of a profile.

Rule: a verb that reads takes no lock and makes no file, so it works beside a running hub and on a missing profile. A
verb that writes goes through the hub; only a repair, which no hub may be in the way of, holds the profile's lock.
"""

import argparse
import os
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from enginehouse.connecting import connected
from enginehouse.output import agreed, clock, put, put_lines, put_listing, remark
from enginehouse.places import directory_of
from enginehouse_core.profile.folders import Folders
from enginehouse_core.profile.lock import ProfileLock
from enginehouse_core.sessions.archive import Archive, Check
from enginehouse_hosts.terminal.plain_text import one_line
from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.streams import Streams
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.codec import decode_recorded, well_formed
from enginehouse_protocol.errors import UsageError
from enginehouse_protocol.hub import HubApi, SessionRef, SetSession
from enginehouse_protocol.ids import SessionId

_LONGEST_TITLE = 200


def _archive() -> Archive:
    return Archive(Folders.of(os.environ).transcripts)


# --- reading ----------------------------------------------------------------------------------------------------------


def list_sessions(arguments: argparse.Namespace) -> int:
    directory = None if arguments.directory is None else directory_of(arguments.directory)
    sessions = _archive().list(directory).sessions
    put_listing(
        ("id", "changed", "state", "engine", "title", "directory"),
        [
            (
                info.id,
                clock(info.updated_at_ms),
                info.state + (f", {info.queued} queued" if info.queued else ""),
                info.engine,
                info.title,
                info.directory + (" (moved here?)" if info.moved_here else ""),
            )
            for info in sessions
        ],
        [msgspec.to_builtins(info) for info in sessions],
        as_json=arguments.json,
        none='no sessions yet; `enginehouse run "…"` begins one'
        if directory is None
        else f"no sessions of {directory}",
    )
    return 0


def show(arguments: argparse.Namespace) -> int:
    archive = _archive()
    session_id = archive.resolve(arguments.session)
    info = archive.info(session_id)
    if arguments.json:
        put(msgspec.json.encode(info).decode() + "\n")
        return 0
    streams = Streams(os.environ)
    styles = Styles(coloured=streams.coloured and streams.answer_is_terminal)
    put(styles("title", one_line(info.title or "without a title")) + "\n")
    put(
        styles("faint", f"{info.id} · {info.state} · {info.turns} turns · changed {clock(info.updated_at_ms)}") + "\n\n"
    )
    printer = Printer(streams, styles=styles, recorded=True)
    for line in archive.lines_after(session_id, 0):
        for piece in printer.told(decode_recorded(line)):
            put(piece.text)
    if summary := printer.usage():
        put(styles("faint", summary) + "\n")
    return 0


def events(arguments: argparse.Namespace) -> int:
    archive = _archive()
    session_id = archive.resolve(arguments.session)
    for line in archive.lines_after(session_id, arguments.after):
        put_lines(line + b"\n")
    return 0


# --- writing ----------------------------------------------------------------------------------------------------------


def rename(arguments: argparse.Namespace) -> int:
    title = well_formed(arguments.title).strip()
    if not title or "\n" in title or len(title) > _LONGEST_TITLE:
        raise UsageError(f"a title is one line of 1 to {_LONGEST_TITLE} characters")

    async def change(hub: HubApi, session_id: SessionId) -> None:
        await hub.sessions_set(SetSession(session_id=session_id, title=title))

    return _written(arguments, change)


def close(arguments: argparse.Namespace) -> int:
    async def change(hub: HubApi, session_id: SessionId) -> None:
        await hub.sessions_close(SessionRef(session_id=session_id))

    return _written(arguments, change)


def delete(arguments: argparse.Namespace) -> int:
    archive = _archive()
    session_id = archive.resolve(arguments.session)
    info = archive.info(session_id)
    about = f"{info.id} ({one_line(info.title) or 'without a title'}, {info.turns} turns)"
    if not arguments.yes and not agreed(f"Delete {about} for good?"):
        raise UsageError("nothing was deleted; deleting is for good, say --yes to do it without being asked")

    async def change(hub: HubApi, session_id: SessionId) -> None:
        await hub.sessions_delete(SessionRef(session_id=session_id))

    return _written(arguments, change)


def check(arguments: argparse.Namespace) -> int:
    """Exit code 1: there is damage, or what was cut off is still open."""
    folders = Folders.of(os.environ)
    archive = Archive(folders.transcripts)
    chosen = archive.ids() if arguments.session is None else [archive.resolve(arguments.session)]
    if arguments.repair and chosen:
        with ProfileLock.acquire(folders.profile, "enginehouse sessions check --repair"):
            found = [archive.repair(session_id) for session_id in chosen]
    else:
        found = [archive.check(session_id) for session_id in chosen]
    if arguments.json:
        for each in found:
            put_lines(msgspec.json.encode({"id": each.session_id, **msgspec.to_builtins(each)}) + b"\n")
    else:
        for each in found:
            put("".join(f"{line}\n" for line in _told(each)))
        if not found:
            remark("no sessions to check")
    return 1 if any(each.damage or each.unfinished for each in found) else 0


def _told(found: Check) -> list[str]:
    if not found.damage and not found.unfinished:
        return [f"{found.session_id}: sound, {found.last_seq} events"]
    lines = [f"{found.session_id}: {found.last_seq} events"]
    for damage in found.damage:
        where = f"{damage.size_bytes} bytes at {damage.offset}" if damage.size_bytes else f"at {damage.offset}"
        detail = f": {one_line(damage.detail)}" if damage.detail else ""
        lines.append(f"  {damage.kind.replace('_', ' ')}, {where}{detail}")
    if found.unfinished:
        lines.append(
            f"  cut off in mid-turn; a repair, or the next `run`, appends {found.unfinished} events that say so"
        )
    return lines


def _written(arguments: argparse.Namespace, change: Callable[[HubApi, SessionId], Awaitable[None]]) -> int:
    """Do it through the hub, so that a live session and a stored one are changed in the same way."""
    folders = Folders.of(os.environ)
    session_id = Archive(folders.transcripts).resolve(arguments.session)  # before anything is made

    async def through_the_hub() -> None:
        async with connected(folders, dict(os.environ), can_answer=False) as hub:
            await change(hub, session_id)

    anyio.run(through_the_hub)
    return 0
