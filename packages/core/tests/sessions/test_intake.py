"""The way into a record for what is too long for it: nothing is lost, nothing is followed, nothing is mistaken."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from enginehouse_core.masking import Masker
from enginehouse_core.sessions.intake import RECORD_BYTES, Intake
from enginehouse_core.transcript.blobs import digest_of
from enginehouse_core.transcript.file import TranscriptFile
from enginehouse_core.transcript.index import SeqIndex
from enginehouse_core.transcript.log import SessionLog
from enginehouse_protocol.codec import decode_event
from enginehouse_protocol.content import FileChange, SpilledText, Text
from enginehouse_protocol.errors import MalformedData, TranscriptUnavailable
from enginehouse_protocol.events import (
    AnyBody,
    Body,
    MessageAssistant,
    Notice,
    PermissionDecided,
    Reasoning,
    ToolResult,
    ToolUse,
)
from enginehouse_protocol.ids import CallId, MessageId, ReplyId, SessionId
from enginehouse_protocol.permissions import Allow, Expired

pytestmark = pytest.mark.anyio

LONG = "é" * RECORD_BYTES
ALSO_LONG = "b" * (RECORD_BYTES + 1)
CALL = CallId("c_1")


class Way:
    """An intake in front of a real log."""

    def __init__(self, intake: Intake, log: SessionLog, folder: Path) -> None:
        self.intake = intake
        self.log = log
        self.blobs = folder / "session" / "blobs"
        self.scratch = folder / "scratch"

    async def __call__(self, body: AnyBody) -> Body:
        """The body as it was kept; the one on disk is the same."""
        delivery = await self.intake.record(self.log, body, None)
        assert decode_event(delivery.line) == delivery.event
        return delivery.event.body

    def whole(self, spilled: object) -> str:
        """The text a spill stands for, which is in the blob and in the scratch folder alike."""
        spill = spilled if isinstance(spilled, SpilledText) else msgspec.convert(spilled, SpilledText)
        data = (self.blobs / spill.sha256).read_bytes()
        assert (self.scratch / spill.blob_name).read_bytes() == data
        assert digest_of(data) == spill.sha256
        return data.decode()


@asynccontextmanager
async def way_in(folder: Path) -> AsyncGenerator[Way]:
    session_id = SessionId("s_1")
    file = TranscriptFile.create(folder / "session", session_id)
    log = SessionLog(session_id, folder / "session", file, 0, SeqIndex())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.write)
        yield Way(Intake(Masker({}), folder / "session" / "blobs", folder / "scratch"), log, folder)
        log.close()


async def test_a_key_of_free_json_that_is_called_diff_loses_nothing(tmp_path: Path) -> None:
    async with way_in(tmp_path) as way:
        use = ToolUse(call_id=CALL, name="patch", kind="edit", title="patch", input={"diff": LONG, "cut": 1})
        kept = await way(use)
        assert isinstance(kept, ToolUse)
        assert kept.input["cut"] == 1
        assert way.whole(kept.input["diff"]) == LONG


async def test_free_json_that_looks_like_content_keeps_its_own_shape(tmp_path: Path) -> None:
    async with way_in(tmp_path) as way:
        looks_like = {"type": "text", "text": LONG, "more": [{"text": ALSO_LONG}, "short"]}
        kept = await way(ToolUse(call_id=CALL, name="x", kind="other", title="x", input={"content": looks_like}))
        assert isinstance(kept, ToolUse)
        content = kept.input["content"]
        assert (content["type"], content["more"][1]) == ("text", "short")
        assert way.whole(content["text"]) == LONG
        assert way.whole(content["more"][0]["text"]) == ALSO_LONG


async def test_the_input_of_a_decision_is_spilled_as_well(tmp_path: Path) -> None:
    async with way_in(tmp_path) as way:
        decided = PermissionDecided(
            call_id=CALL,
            decision=Allow(input={"content": LONG}),
            by="person",
            risk="write",
            input_digest="",
            input={"content": ALSO_LONG},
        )
        kept = await way(decided)
        assert isinstance(kept, PermissionDecided)
        assert isinstance(kept.decision, Allow)
        assert kept.decision.input is not None
        assert kept.input is not None
        assert way.whole(kept.decision.input["content"]) == LONG
        assert way.whole(kept.input["content"]) == ALSO_LONG


async def test_our_own_texts_become_spills_and_only_a_diff_is_cut(tmp_path: Path) -> None:
    async with way_in(tmp_path) as way:
        result = ToolResult(
            call_id=CALL,
            status="ok",
            content=(Text(text=LONG), Text(text="short")),
            changes=(FileChange(path="a", change="modified", diff=ALSO_LONG),),
        )
        kept = await way(result)
        assert isinstance(kept, ToolResult)
        assert way.whole(kept.content[0]) == LONG
        assert kept.content[1] == Text(text="short")
        (change,) = kept.changes
        assert change == FileChange(path="a", change="modified", diff=ALSO_LONG[: len(change.diff)], cut=True)
        said = MessageAssistant(
            message_id=MessageId("m"), reply_id=ReplyId("r"), text=LONG, reasoning=Reasoning(text=ALSO_LONG)
        )
        kept = await way(said)
        assert isinstance(kept, MessageAssistant)
        assert kept.reasoning is not None
        assert (way.whole(kept.text), way.whole(kept.reasoning.text)) == (LONG, ALSO_LONG)


async def test_a_long_text_where_none_belongs_is_refused(tmp_path: Path) -> None:
    async with way_in(tmp_path) as way:
        with pytest.raises(MalformedData):
            await way(Notice(level="info", code="x", text=LONG))


async def test_a_link_where_a_spill_goes_is_replaced_and_never_followed(tmp_path: Path) -> None:
    victim = tmp_path / "authorized_keys"
    victim.write_text("mine")
    async with way_in(tmp_path) as way:
        way.scratch.mkdir()
        trap = way.scratch / f"{digest_of(LONG.encode())}.txt"
        trap.symlink_to(victim)
        result = await way(ToolResult(call_id=CALL, status="ok", content=(Text(text=LONG),)))
        assert isinstance(result, ToolResult)
        assert victim.read_text() == "mine"
        assert not trap.is_symlink()
        assert trap.stat().st_mode & 0o777 == 0o600
        assert way.whole(result.content[0]) == LONG
        assert [entry.name for entry in os.scandir(way.scratch)] == [trap.name]


async def test_a_scratch_folder_that_cannot_be_written_means_that_nothing_is_recorded(tmp_path: Path) -> None:
    async with way_in(tmp_path) as way:
        way.scratch.write_text("no folder")
        with pytest.raises(TranscriptUnavailable):
            await way(ToolResult(call_id=CALL, status="ok", content=(Text(text=LONG),)))


async def test_a_judged_input_with_a_number_json_cannot_carry_is_refused(tmp_path: Path) -> None:
    async with way_in(tmp_path) as way:
        decided = PermissionDecided(
            call_id=CALL,
            decision=Expired(reason="late"),
            by="expiry",
            risk="write",
            input_digest="",
            input={"depth": float("nan")},
        )
        with pytest.raises(MalformedData):
            await way(decided)
