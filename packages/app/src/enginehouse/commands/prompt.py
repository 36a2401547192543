"""`enginehouse sessions prompt`: exactly what a model was sent.

Rule: stdout gets the request's bytes and nothing else; whether they are the recorded ones is said on stderr and by the
exit code. Nothing is changed, and no hub is needed.
"""

import argparse
import os
from contextlib import suppress

from enginehouse.output import put_lines, put_listing, remark
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_engines.openai_compatible.recorded_requests import Rebuilt, RecordedStep, rebuilt, recorded_steps
from enginehouse_engines.openai_compatible.rendered_images import images_in
from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.errors import FileUnusable, UsageError
from enginehouse_protocol.events import Event
from enginehouse_protocol.ids import SessionId


def show_prompt(arguments: argparse.Namespace) -> int:
    """Exit code 1: what was rebuilt is not what was sent."""
    archive = Archive(Folders.of(os.environ).transcripts)
    session_id = archive.resolve(arguments.session)
    decoded = (decode_recorded(line) for line in archive.lines_after(session_id, 0))
    events = [event for event in decoded if isinstance(event, Event)]
    steps = recorded_steps(events)
    if arguments.step is None:
        _list(steps, as_json=arguments.json)
        return 0
    if arguments.step > len(steps):
        made = f"{len(steps)} model call{'' if len(steps) == 1 else 's'}" if steps else "no model calls on record"
        raise UsageError(f"session {session_id} has {made}; without --step they are listed")
    found = rebuilt(events, steps[arguments.step - 1], _images(archive, session_id, events))
    if found is None:
        raise UsageError(
            f"session {session_id} runs on an engine that makes its prompts itself and does not say of what; "
            "its own store has them"
        )
    put_lines(found.body)
    remark(_verdict(found))
    return 0 if found.same else 1


def _images(archive: Archive, session_id: SessionId, events: list[Event]) -> dict[str, bytes]:
    """Those that are still there; where one is lost the verdict says that this is not what was sent."""
    images: dict[str, bytes] = {}
    for digest in images_in(events):
        with suppress(FileUnusable):
            images[digest] = archive.blob(session_id, digest)
    return images


def _verdict(found: Rebuilt) -> str:
    size = f"{len(found.body)} bytes, sha256 {found.sha256}"
    if found.same:
        return f"{size}: exactly what was sent"
    if found.recorded_sha256 is None:
        return f"{size}; no sha256 was recorded, so nobody knows whether this is what was sent"
    why = (
        f"it was rendered by version {found.renderer}, and this Enginehouse renders with version {found.renderer_now}"
        if found.renderer != found.renderer_now
        else "the record is damaged, or the code that renders was changed without raising its version"
    )
    return f"{size}: not what was sent, which had sha256 {found.recorded_sha256}; {why}"


def _list(steps: list[RecordedStep], *, as_json: bool) -> None:
    put_listing(
        ("step", "turn", "in turn", "model", "renderer", "sha256"),
        [
            (
                str(each.number),
                each.turn_id or "",
                str(each.step),
                each.header.model if each.header else "",
                str(each.header.renderer) if each.header else "",
                (each.started.request_sha256 or "")[:12],
            )
            for each in steps
        ],
        [
            {
                "number": each.number,
                "seq": each.seq,
                "turn_id": each.turn_id,
                "step": each.step,
                "model": each.header.model if each.header else None,
                "renderer": each.header.renderer if each.header else None,
                "request_sha256": each.started.request_sha256,
                "history_seq": each.started.history_seq,
            }
            for each in steps
        ],
        as_json=as_json,
        none="no model calls on record",
    )
