"""Reading sessions from disk disturbs nobody, and repairing one twice is repairing it once."""

from pathlib import Path

import pytest
from transcript.sample import SESSION, events, transcript

from enginehouse_core.sessions.archive import Archive
from enginehouse_core.transcript.file import FILE_NAME, TranscriptFile, read_transcript
from enginehouse_protocol.codec import encode_event
from enginehouse_protocol.events import DurableBody, Notice, ToolResult, TurnFailed


def kept(folder: Path, data: bytes) -> Archive:
    (folder / SESSION).mkdir()
    (folder / SESSION / FILE_NAME).write_bytes(data)
    return Archive(folder)


def bodies_after(folder: Path, seq: int) -> list[DurableBody]:
    records = read_transcript(folder / SESSION, SESSION).records
    return [record.event.body for record in records if record.event.seq > seq]  # pyright: ignore[reportReturnType]


def test_repair_appends_what_ends_the_turn_and_says_what_it_set_aside(tmp_path: Path) -> None:
    cut = transcript(1)[: -len(encode_event(events(1)[-1])) - 1]  # all but how the turn ended
    torn = cut[:-9]  # and the result before it is half written
    archive = kept(tmp_path, torn)
    half_bytes = len(torn) - torn.rindex(b"\n") - 1
    assert archive.check(SESSION).unfinished == 3

    check = archive.repair(SESSION)
    ended, failed, said = bodies_after(tmp_path, 7)
    assert isinstance(ended, ToolResult) and ended.status == "unknown"
    assert isinstance(failed, TurnFailed)
    text = f"{half_bytes} bytes of a half-written record were set aside"
    assert said == Notice(level="warning", code="transcript.repaired", text=text)
    assert (check.damage, check.unfinished, check.last_seq) == ((), 0, 10)


@pytest.mark.parametrize("cut", [1, 9, 200, 600])
def test_a_second_repair_appends_nothing(tmp_path: Path, cut: int) -> None:
    archive = kept(tmp_path, transcript(2)[:-cut])
    archive.repair(SESSION)
    once = {path.name: path.read_bytes() for path in (tmp_path / SESSION).iterdir()}
    archive.repair(SESSION)
    assert {path.name: path.read_bytes() for path in (tmp_path / SESSION).iterdir()} == once


def test_a_torn_tail_after_a_conversation_that_is_whole_is_told_all_the_same(tmp_path: Path) -> None:
    archive = kept(tmp_path, transcript(1) + b'{"session')
    archive.repair(SESSION)
    text = "9 bytes of a half-written record were set aside"
    assert bodies_after(tmp_path, 9) == [Notice(level="warning", code="transcript.repaired", text=text)]


def test_a_turn_is_running_while_somebody_writes_and_interrupted_when_nobody_does(tmp_path: Path) -> None:
    archive = kept(tmp_path, transcript(1)[: -len(encode_event(events(1)[-1])) - 1])
    writer = TranscriptFile.open(tmp_path / SESSION, SESSION)
    assert archive.info(SESSION).state == "running"
    assert archive.check(SESSION).unfinished == 0
    writer.close()
    assert archive.info(SESSION).state == "interrupted"
    assert archive.check(SESSION).unfinished == 1


def test_reading_leaves_every_byte_and_name_as_it_was(tmp_path: Path) -> None:
    archive = kept(tmp_path, b"\0\n" + transcript(2)[:-30])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [info.id for info in archive.list(None).sessions] == [SESSION]
    assert len(list(archive.lines_after(SESSION, 3))) == 13
    archive.check(SESSION)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
