"""One writer a transcript: whole groups or nothing, and a damaged file made fit without losing a byte."""

import errno
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from transcript.sample import SESSION, events, transcript

from enginehouse_core.transcript.file import FILE_NAME, TranscriptFile, is_written, read_transcript
from enginehouse_core.transcript.load import load, open_transcript
from enginehouse_core.transcript.page import PAGE_EVENTS, page_after
from enginehouse_protocol.codec import encode_event
from enginehouse_protocol.errors import SessionNotFound, TranscriptUnavailable, TranscriptUnreadable


def written(folder: Path, data: bytes) -> Path:
    folder.mkdir()
    (folder / FILE_NAME).write_bytes(data)
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this machine lets nobody mount a small disk: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    file = TranscriptFile.create(tmp_path / "s", SESSION)
    file.append([encode_event(event) for event in events(2)])
    file.close()
    found = read_transcript(tmp_path / "s", SESSION)
    assert [record.event for record in found.records] == events(2)
    assert found.damage == ()
    assert (tmp_path / "s" / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_there_is_one_writer(tmp_path: Path) -> None:
    file = TranscriptFile.create(tmp_path / "s", SESSION)
    with pytest.raises(TranscriptUnavailable, match="another process"):
        TranscriptFile.open(tmp_path / "s", SESSION)
    file.close()
    TranscriptFile.open(tmp_path / "s", SESSION).close()


def test_opening_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound):
        open_transcript(tmp_path / "s", SESSION)


def test_a_torn_tail_is_set_aside_and_the_next_record_is_read_at_every_cut(tmp_path: Path) -> None:
    whole, last = transcript(1), events(1)[-1]
    beginning = len(whole) - len(encode_event(last)) - 1
    for cut in range(beginning, len(whole) + 1):
        folder = written(tmp_path / str(cut), whole[:cut])
        file, loaded = open_transcript(folder, SESSION)
        seq = loaded.fold.last_seq
        again = [event for event in events(2) if event.seq > seq]
        file.append([encode_event(event) for event in again])
        file.close()
        found = read_transcript(folder, SESSION)
        assert [record.event for record in found.records] == events(2)
        assert found.damage == ()
        kept = b"".join(path.read_bytes() for path in folder.glob("torn-*"))
        assert kept == (b"" if cut >= len(whole) - 1 else whole[beginning:cut])


def test_making_a_file_fit_twice_changes_nothing_the_second_time(tmp_path: Path) -> None:
    folder = written(tmp_path / "s", transcript(2)[:-7] + b"\0\0\0")
    open_transcript(folder, SESSION)[0].close()
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    open_transcript(folder, SESSION)[0].close()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_a_file_of_a_newer_format_can_be_read_and_not_continued(tmp_path: Path) -> None:
    newer = transcript(1).replace(b'"version":1', b'"version":2', 1)
    folder = written(tmp_path / "s", newer)
    assert load(folder, SESSION).fold.last_seq == len(events(1))
    with pytest.raises(TranscriptUnreadable, match="newer"):
        open_transcript(folder, SESSION)
    assert (folder / FILE_NAME).read_bytes() == newer


def test_a_file_of_a_newer_format_with_a_header_nobody_knows_is_read_in_pages_and_never_written(tmp_path: Path) -> None:
    header = b'{"format":"enginehouse.transcript","version":2,"session":["new"]}'
    newer = header + transcript(3)[transcript(3).index(b"\n") :]
    folder = written(tmp_path / "s", newer)
    loaded = load(folder, SESSION)
    assert [item.event for item in page_after(folder, SESSION, 5, loaded.index.after(5, PAGE_EVENTS))] == events(3)[5:]
    assert [item.event for item in page_after(folder, SESSION, 5)] == events(3)[5:]
    with pytest.raises(TranscriptUnreadable, match="newer"):
        open_transcript(folder, SESSION)
    assert (folder / FILE_NAME).read_bytes() == newer


def test_a_page_of_a_file_without_a_header_begins_with_the_first_event(tmp_path: Path) -> None:
    folder = written(tmp_path / "s", transcript(1)[transcript(1).index(b"\n") + 1 :])
    assert [item.event for item in page_after(folder, SESSION, 0)] == events(1)


def test_a_page_of_a_file_that_is_not_what_the_index_knew_is_read_with_care(tmp_path: Path) -> None:
    folder = written(tmp_path / "s", b"\0\n" + transcript(2))
    where = load(folder, SESSION).index.after(4, PAGE_EVENTS)
    (folder / FILE_NAME).write_bytes(b"something else\n" + transcript(2))
    assert [item.event for item in page_after(folder, SESSION, 4, where)] == events(2)[4:]


def test_whoever_asks_all_the_time_whether_it_is_written_keeps_no_writer_out(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    TranscriptFile.create(folder, SESSION).close()
    stop, answers = threading.Event(), set[bool]()

    def ask() -> None:
        while not stop.is_set():
            answers.add(is_written(folder))

    asking = [threading.Thread(target=ask), threading.Thread(target=ask)]
    for thread in asking:
        thread.start()
    try:
        for _ in range(2_000):
            TranscriptFile.open(folder, SESSION).close()
    finally:
        stop.set()
        for thread in asking:
            thread.join()
    assert False in answers


def test_a_full_disk_leaves_whole_groups_only_and_writing_goes_on_when_there_is_space(small_disk: Path) -> None:
    file = TranscriptFile.create(small_disk / "s", SESSION)
    lines = [encode_event(event) for event in events(1)]
    groups = 0
    with pytest.raises(TranscriptUnavailable, match="full"):
        while True:
            file.append(lines)
            groups += 1
    assert groups > 10
    written_lines = (small_disk / "s" / FILE_NAME).read_bytes().split(b"\n")
    assert written_lines[1:] == [*lines * groups, b""]
    assert not file.lost
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    file.append(lines)
    file.close()


def test_creating_on_a_full_disk_leaves_nothing_behind(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 256 * 1024)
    with pytest.raises(TranscriptUnavailable, match="full"):
        TranscriptFile.create(small_disk / "s", SESSION)
    assert not (small_disk / "s").exists()


class FailingDisk(TranscriptFile):
    """A real file on a disk whose syncs fail."""

    def _sync(self) -> None:
        raise OSError(errno.EIO, "Input/output error")


def test_after_an_input_output_error_this_writer_never_writes_again(tmp_path: Path) -> None:
    TranscriptFile.create(tmp_path / "s", SESSION).close()
    before = (tmp_path / "s" / FILE_NAME).read_bytes()
    file = FailingDisk.open(tmp_path / "s", SESSION)
    with pytest.raises(TranscriptUnavailable, match="Input/output error"):
        file.append([b"{}"])
    with pytest.raises(TranscriptUnavailable, match="open the session again"):
        file.append([b"{}"])
    file.close()
    assert (tmp_path / "s" / FILE_NAME).read_bytes() == before


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = written(tmp_path / "s", b"")
    (folder / FILE_NAME).unlink()
    victim = tmp_path / "victim"
    victim.write_bytes(transcript(1))
    (folder / FILE_NAME).symlink_to(victim)
    with pytest.raises(TranscriptUnavailable):
        TranscriptFile.open(folder, SESSION)
