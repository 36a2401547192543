"""One process writes to a profile; everybody else is told who that is."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from enginehouse_core.profile.lock import ProfileLock, holder_of
from enginehouse_protocol.errors import ProfileLocked, ProfileUnwritable

HOLD = """
import sys
from pathlib import Path
from enginehouse_core.profile.lock import ProfileLock
lock = ProfileLock.acquire(Path(sys.argv[1]), "enginehouse run")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that holds the lock of `tmp_path` until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_a_second_process_is_refused_and_told_who_holds_the_profile(
    tmp_path: Path, holder: "subprocess.Popen[bytes]"
) -> None:
    with pytest.raises(ProfileLocked) as caught:
        ProfileLock.acquire(tmp_path, "enginehouse sessions delete")
    assert caught.value.path == str(tmp_path)
    assert re.fullmatch(rf"`enginehouse run` \(pid {holder.pid}, since \d\d:\d\d\)", caught.value.holder)
    assert holder_of(tmp_path) == caught.value.holder


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_killed_process_is_free_whatever_its_file_says(
    tmp_path: Path, holder: "subprocess.Popen[bytes]", end: signal.Signals
) -> None:
    holder.send_signal(end)
    holder.wait(timeout=10)
    assert str(holder.pid) in (tmp_path / "lock").read_text()
    assert holder_of(tmp_path) is None
    with ProfileLock.acquire(tmp_path, "enginehouse run"):
        assert f"pid {os.getpid()}," in (holder_of(tmp_path) or "")
    assert holder_of(tmp_path) is None


def test_the_lock_is_not_inherited_by_a_program_the_holder_starts(tmp_path: Path) -> None:
    lock = ProfileLock.acquire(tmp_path, "enginehouse run")
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lock.release()
        assert holder_of(tmp_path) is None
        ProfileLock.acquire(tmp_path, "enginehouse run").release()
    finally:
        child.kill()
        child.wait(timeout=10)


def test_another_part_of_the_same_process_is_refused_too_and_releasing_twice_is_harmless(tmp_path: Path) -> None:
    first = ProfileLock.acquire(tmp_path, "enginehouse run")
    with pytest.raises(ProfileLocked, match=f"pid {os.getpid()}"):
        ProfileLock.acquire(tmp_path, "enginehouse run")
    first.release()
    second = ProfileLock.acquire(tmp_path, "enginehouse run")
    first.release()
    assert holder_of(tmp_path) is not None
    second.release()


def test_a_file_removed_under_the_holder_does_not_make_two_holders_of_one_file(tmp_path: Path) -> None:
    with ProfileLock.acquire(tmp_path, "first"):
        (tmp_path / "lock").unlink()
        with ProfileLock.acquire(tmp_path, "second"), pytest.raises(ProfileLocked, match="second"):
            ProfileLock.acquire(tmp_path, "third")


def test_asking_who_holds_it_makes_nothing(tmp_path: Path) -> None:
    assert holder_of(tmp_path / "missing") is None
    assert holder_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_asking_never_costs_another_process_the_lock(tmp_path: Path) -> None:
    ask = (
        "import sys; from pathlib import Path; from enginehouse_core.profile.lock import holder_of\n"
        "print(flush=True)\nwhile True: holder_of(Path(sys.argv[1]))"
    )
    ProfileLock.acquire(tmp_path, "enginehouse run").release()
    asking = subprocess.Popen([sys.executable, "-c", ask, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert asking.stdout is not None
        asking.stdout.readline()
        for _ in range(200):
            ProfileLock.acquire(tmp_path, "enginehouse run").release()
    finally:
        asking.kill()
        asking.communicate(timeout=10)


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"pid": "x"}', "\x00" * 20])
def test_a_holder_whose_text_makes_no_sense_is_still_a_holder(tmp_path: Path, text: str) -> None:
    with ProfileLock.acquire(tmp_path, "enginehouse run"):
        (tmp_path / "lock").write_text(text)
        assert holder_of(tmp_path) == "another process"
        with pytest.raises(ProfileLocked, match="another process"):
            ProfileLock.acquire(tmp_path, "enginehouse run")


def test_a_process_number_that_was_given_away_is_not_blamed_without_a_doubt(tmp_path: Path) -> None:
    with ProfileLock.acquire(tmp_path, "enginehouse run"):
        told = json.loads((tmp_path / "lock").read_text())
        told["started"] = "1"
        (tmp_path / "lock").write_text(json.dumps(told))
        assert (holder_of(tmp_path) or "").endswith("; not visible from here)")


def test_the_day_is_said_when_it_was_another_one(tmp_path: Path) -> None:
    with ProfileLock.acquire(tmp_path, "enginehouse run"):
        told = json.loads((tmp_path / "lock").read_text())
        told["since_ms"] = 86_400_000 * 2
        (tmp_path / "lock").write_text(json.dumps(told))
        assert "since 1970-01-0" in (holder_of(tmp_path) or "")


def test_a_read_only_profile_refuses_the_lock_and_still_says_who_holds_it(
    tmp_path: Path, as_owner: Callable[[str, Path], str]
) -> None:
    ProfileLock.acquire(tmp_path, "enginehouse run").release()
    (tmp_path / "lock").chmod(0o400)
    tmp_path.chmod(0o500)
    code = """
from enginehouse_core.profile.lock import ProfileLock, holder_of
from enginehouse_protocol.errors import ProfileUnwritable
print(holder_of(path))
try:
    ProfileLock.acquire(path, "enginehouse run")
except ProfileUnwritable as error:
    print(error)
"""
    try:
        said = as_owner(code, tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert said.splitlines()[0] == "None"
    assert said.splitlines()[1].startswith(f"cannot write {tmp_path}: permission denied; make it writable")


def test_a_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(ProfileUnwritable):
        ProfileLock.acquire(tmp_path, "enginehouse run")
    assert (tmp_path / "victim").read_text() == "precious"
