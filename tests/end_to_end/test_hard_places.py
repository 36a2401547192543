"""Profiles where it is hard to keep one: a full disk, a read-only one, strange names, no home, two at once.

Rule: what a person reads is one line that says what is wrong and what to do, and nothing that was there is lost.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S, Ended, Person
from model_server import call, hold, reply

FULL = r"no space left|disk is full"
SMALL_DISK = "size=1m"
READING = (
    ("sessions", "list"),
    ("sessions", "check"),
    ("permissions", "list"),
    ("permissions", "explain", "ls"),
    ("profile", "path"),
    ("engines",),
)
STRANGE = "Prüf stand 🧰 'n\"$HOME"


def test_a_full_disk_refuses_a_new_session_and_asks_the_model_nothing(
    meet: Introduction, small_disk: Path, run: tuple[str, ...]
) -> None:
    person = meet(reply("Hi."))
    person.keeps_profile_at(small_disk / "profile")
    with _full(small_disk):
        refused = person.runs(*run, "hello")
        _one_clear_line(refused, FULL)
        assert refused.code != 0
        assert meet.asked() == []
    assert person.runs(*run, "hello").out == "Hi.\n"
    assert person.runs("sessions", "check").code == 0


def test_a_full_disk_refuses_the_next_message_and_keeps_what_was_said(
    meet: Introduction, small_disk: Path, run: tuple[str, ...]
) -> None:
    person = meet([reply("One."), reply("Two.")])
    person.keeps_profile_at(small_disk / "profile")
    assert person.runs("permissions", "allow", "execute(pytest *)").code == 0
    assert person.runs(*run, "first").code == 0
    session_id = person.session_id()
    before = person.runs("sessions", "events", session_id).out_bytes
    rules = (person.profile / "permissions.toml").read_bytes()
    with _full(small_disk):
        longer_than_a_page = b"word " * 2_000  # what is left of the record's last page can still be written
        refused = person.runs(*run, "-c", "second", typed=longer_than_a_page)
        assert refused.code in (1, 2)
        _one_clear_line(refused, FULL)
        assert len(meet.asked()) == 1
        for arguments in (*READING, ("sessions", "show", session_id), ("sessions", "events", session_id)):
            assert person.runs(*arguments).code == 0, arguments
        assert person.runs("sessions", "events", session_id).out_bytes == before
        assert person.runs("hub", "stop").code == 0
        with _full(small_disk):  # again: what the hub had in its run-time folder is free now
            for arguments in (("sessions", "rename", session_id, "A title"), ("permissions", "deny", "fetch")):
                not_kept = person.runs(*arguments)
                assert not_kept.code in (1, 2), arguments
                _one_clear_line(not_kept, FULL)
        assert (person.profile / "permissions.toml").read_bytes() == rules
    again = person.runs(*run, "-c", "second")
    assert (again.code, again.out) == (0, "Two.\n"), again.err
    assert person.runs("sessions", "events", session_id).out_bytes.startswith(before)
    assert person.runs("sessions", "check").code == 0


def test_a_disk_that_fills_in_mid_turn_stops_the_turn_before_anything_unrecorded_happens(
    meet: Introduction, small_disk: Path, run: tuple[str, ...]
) -> None:
    """Nothing runs that is not on record, and what was shown is on record."""
    touch = call("bash", {"command": "touch made.txt"})
    longer_than_a_page = "I make it. " * 1_000  # what is left of the record's last page can still be written
    makes = reply(deltas=[longer_than_a_page, hold("full")], calls=[touch])
    person = meet([reply(calls=[call("list_dir", {})]), makes, reply("Made.")])
    person.keeps_profile_at(small_disk / "profile")
    with person.starts(*run, "--json", "--mode", "yolo", "make it") as process:
        meet.server.reached("full", PATIENCE_S)
        with _full(small_disk):
            meet.server.release("full")
            out, err = process.communicate(timeout=PATIENCE_S)
    ended = Ended(process.returncode, "", err.decode(), out)
    assert ended.code == 1
    _one_clear_line(ended, FULL)
    assert not (person.project / "made.txt").exists()
    assert person.alive() == []

    session_id = person.session_id()
    assert person.runs("sessions", "events", session_id).out_bytes.startswith(ended.durable)
    again = person.runs(*run, "-c", "--mode", "yolo", "go on")
    assert (again.code, again.out) == (0, "Made.\n"), again.err
    assert (person.project / "made.txt").exists()
    assert person.runs("sessions", "events", session_id).out_bytes.startswith(ended.durable)
    assert person.runs("sessions", "check").code == 0


def test_a_read_only_profile_can_be_read_and_says_what_to_do(meet: Introduction, read_only: "ReadOnly") -> None:
    person = meet([reply("One."), reply("Two.")])
    assert person.runs("permissions", "allow", "execute(pytest *)").code == 0
    assert person.runs("run", "first").code == 0
    session_id = person.session_id()
    before = {path: path.read_bytes() for path in person.profile.rglob("*") if path.is_file()}
    with read_only(person.profile):
        for arguments in (("run", "second"), ("run", "-c", "second"), ("permissions", "deny", "fetch")):
            refused = person.runs(*arguments)
            assert (refused.code, refused.out) == (2, ""), arguments
            _one_clear_line(refused, "ENGINEHOUSE_PROFILE")
            assert str(person.profile) in refused.err
            assert "read-only" in refused.err or "permission denied" in refused.err
        assert len(meet.asked()) == 1
        for arguments in (*READING, ("sessions", "show", session_id), ("sessions", "events", session_id)):
            read = person.runs(*arguments)
            assert (read.code, read.err) == (0, ""), (arguments, read)
        assert session_id in person.runs("sessions", "list").out
        assert "execute(pytest *)" in person.runs("permissions", "list").out
        checked = person.runs("profile", "check")
        assert (checked.code, "cannot be written" in checked.out) == (1, True)
    assert {path: path.read_bytes() for path in person.profile.rglob("*") if path.is_file()} == before
    assert person.runs("run", "-c", "second").out == "Two.\n"


def test_a_read_only_profile_that_was_never_used_says_so_too(person: Person, read_only: "ReadOnly") -> None:
    empty = person.home / "empty"
    empty.mkdir(mode=0o700)
    person.keeps_profile_at(empty / "profile")
    with read_only(empty):
        refused = person.runs("run", "--engine", "rehearsal", "hello")
        assert (refused.code, refused.out) == (2, "")
        _one_clear_line(refused, "ENGINEHOUSE_PROFILE")
        for arguments in READING[:-1]:
            assert person.runs(*arguments).code == 0, arguments


def test_spaces_umlauts_quotes_and_emoji_in_every_path(meet: Introduction) -> None:
    write = call("write_file", {"path": f"{STRANGE}.txt", "content": "made\n"})
    look = call("bash", {"command": "ls > listed.txt"})
    person = meet([reply(calls=[write, look]), reply("Made."), reply("Still here.")])
    person.keeps_profile_at(person.home / f"{STRANGE} profile" / STRANGE)
    person.project = person.project.rename(person.home / f"{STRANGE} project")
    person.environment |= {f"XDG_{name}_HOME": str(person.home / STRANGE / name) for name in ("DATA", "STATE", "CACHE")}
    assert person.runs("permissions", "allow", "execute(ls *)").code == 0
    made = person.runs("run", "--mode", "yolo", "make it")
    assert (made.code, made.out) == (0, "Made.\n"), made.err
    assert (person.project / f"{STRANGE}.txt").read_text() == "made\n"
    assert f"{STRANGE}.txt" in (person.project / "listed.txt").read_text()
    assert person.newest_session()["directory"] == str(person.project)
    assert person.runs("profile", "path").out == f"{person.profile}\n"
    assert person.runs("profile", "check").code == 0
    assert person.runs("run", "-c", "still there?").out == "Still here.\n"
    assert person.runs("doctor").code == 0


def test_without_a_home_a_named_profile_works_and_an_unnamed_one_is_asked_for(meet: Introduction) -> None:
    person = meet([reply(calls=[call("bash", {"command": "echo home=$HOME."})]), reply("Hi.")])
    del person.environment["HOME"]
    assert person.runs("run", "--mode", "yolo", "hello").out == "Hi.\n"
    assert "home=" in meet.asked()[-1].tool_results[0].text
    del person.environment["ENGINEHOUSE_PROFILE"]
    for arguments in (("run", "hello"), ("sessions", "list"), ("profile", "path"), ("permissions", "list")):
        refused = person.runs(*arguments)
        assert (refused.code, refused.out) == (2, ""), arguments
        _one_clear_line(refused, "set HOME, or set ENGINEHOUSE_PROFILE")
    person.environment["HOME"] = ""
    _one_clear_line(person.runs("run", "hello"), "set HOME, or set ENGINEHOUSE_PROFILE")


def test_of_two_runs_without_a_hub_that_start_at_once_one_has_the_profile_and_the_other_says_which(
    meet: Introduction,
) -> None:
    person = meet(reply(deltas=["Half ", hold("middle"), "whole."]))
    with person.starts("run", "--no-hub", "one") as one, person.starts("run", "--no-hub", "two") as two:
        meet.server.reached("middle", PATIENCE_S)
        runs, refused = (one, two) if one.poll() is None else (two, one)
        _, err = refused.communicate(timeout=PATIENCE_S)
        assert refused.returncode == 2
        assert b"`enginehouse run` (pid " in err
        assert [info["state"] for info in person.runs("sessions", "list", "--json").events] == ["running"]
        meet.server.release("middle")
        out, _ = runs.communicate(timeout=PATIENCE_S)
    assert (runs.returncode, out) == (0, b"Half whole.\n")
    assert len(person.runs("sessions", "list", "--json").out.splitlines()) == 1


def _one_clear_line(ended: Ended, says: str) -> None:
    lines = [line for line in ended.err.splitlines() if re.search(says, line, re.IGNORECASE)]
    assert len(lines) == 1, ended.err
    assert "Traceback" not in ended.err
    assert "something went wrong inside" not in ended.err


# --- disks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """One megabyte of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"{SMALL_DISK},mode=0700", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True, timeout=PATIENCE_S)


@contextmanager
def _full(disk: Path) -> Iterator[None]:
    """Not one byte is left on `disk` until this ends."""
    filler = disk / f"filler-{len(list(disk.iterdir()))}"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    try:
        yield
    finally:
        filler.unlink()


class ReadOnly:
    """Makes a folder read-only for as long as a block lasts: remounted for root, whom modes do not bind."""

    @contextmanager
    def __call__(self, folder: Path) -> Iterator[None]:
        if os.geteuid() == 0:
            _mount("--bind", str(folder), str(folder))
            undo = ["umount", "--lazy", str(folder)]
            try:
                _mount("-o", "remount,ro,bind", str(folder))
                yield
            finally:
                subprocess.run(undo, check=True, capture_output=True, timeout=PATIENCE_S)
            return
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        for each in folders:
            each.chmod(0o500)
        try:
            yield
        finally:
            for each in folders:
                each.chmod(0o700)


@pytest.fixture
def read_only() -> ReadOnly:
    return ReadOnly()


def _mount(*arguments: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    try:
        ended = subprocess.run(["mount", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except OSError as error:
        pytest.skip(f"mount cannot be run: {error}")
    if ended.returncode:
        pytest.skip(f"this machine allows no mounts: {ended.stderr.strip()}")
