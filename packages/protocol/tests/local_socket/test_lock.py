"""One process per place, decided by the kernel alone."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from enginehouse_protocol.errors import ServiceRunning, ServiceUnavailable
from enginehouse_protocol.local_socket import Holder, Lifetime, Place, holder_of

HOLD = """
import sys
from pathlib import Path
from enginehouse_protocol.local_socket import Lifetime, Place
with Lifetime.acquire(Place(Path(sys.argv[1]), "echo"), "1.0"):
    print("held", flush=True)
    sys.stdin.read()
"""


def held_elsewhere(place: Place) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def test_a_second_service_is_refused_and_told_who_runs(place: Place) -> None:
    with held_elsewhere(place) as first:
        with pytest.raises(ServiceRunning, match=f"echo in {place.folder} is already running as process {first.pid}"):
            Lifetime.acquire(place, "1.0")
        assert first.stdin
        first.stdin.close()
        first.wait(5)
    with Lifetime.acquire(place, "2.0"):
        pass


def test_two_names_in_one_folder_are_two_services(place: Place) -> None:
    with Lifetime.acquire(place, "1.0"), Lifetime.acquire(Place(place.folder, "other"), "1.0"):
        pass


def test_the_lock_file_tells_who_holds_it(place: Place) -> None:
    assert holder_of(place) is None
    assert not place.folder.exists()
    with Lifetime.acquire(place, "1.0") as lifetime:
        found = holder_of(place)
        assert found == lifetime.holder
        assert found is not None
        assert (found.name, found.pid, found.version) == ("echo", os.getpid(), "1.0")
        assert found.since_ms > 0
        assert place.lock.stat().st_mode & 0o777 == 0o600
    assert holder_of(place) is None
    assert place.lock.exists()


def test_a_killed_service_leaves_nothing_in_the_way(place: Place) -> None:
    with held_elsewhere(place) as first:
        first.send_signal(signal.SIGKILL)
        first.wait(5)
    assert place.lock.read_bytes()
    assert holder_of(place) is None
    with Lifetime.acquire(place, "1.0"):
        pass


def test_the_text_of_an_earlier_holder_is_not_taken_for_the_present_one(place: Place) -> None:
    with held_elsewhere(place) as first:
        first.send_signal(signal.SIGKILL)
        first.wait(5)
    old = place.lock.read_bytes()
    with Lifetime.acquire(place, "1.0"):
        place.lock.write_bytes(old)
        assert holder_of(place) == Holder(name="echo")
        place.lock.write_bytes(b"\xff{")
        assert holder_of(place) == Holder(name="echo")


def test_those_who_only_look_never_keep_a_service_from_starting(place: Place) -> None:
    with Lifetime.acquire(place, "1.0"):
        pass
    enough = threading.Event()

    def look() -> None:
        while not enough.is_set():
            holder_of(place)

    watchers = [threading.Thread(target=look) for _ in range(4)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(50):
            with Lifetime.acquire(place, "1.0"):
                pass
    finally:
        enough.set()
        for watcher in watchers:
            watcher.join()


def test_a_program_the_service_starts_does_not_inherit_the_lock(place: Place) -> None:
    keeps_all = HOLD.replace(
        'print("held", flush=True)',
        'import subprocess; print(subprocess.Popen(["sleep", "60"], close_fds=False).pid, flush=True)',
    )
    with subprocess.Popen(
        [sys.executable, "-c", keeps_all, str(place.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout
        child = int(service.stdout.readline())
        try:
            service.kill()
            service.wait(5)
            os.kill(child, 0)
            with Lifetime.acquire(place, "1.0"):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_can_neither_release_nor_keep_the_lock(place: Place) -> None:
    # A copy made by `fork` shares the lock. Run apart: forking a process with threads is a warning of its own.
    script = """
import os, sys
from pathlib import Path
from enginehouse_protocol.local_socket import Lifetime, Place, holder_of
place = Place(Path(sys.argv[1]), "echo")
lifetime = Lifetime.acquire(place, "1.0")
if os.fork() == 0:
    lifetime.release()
    os._exit(0)
os.wait()
print("after the child released:", holder_of(place).pid == os.getpid())
stay, go = os.pipe()
if (child := os.fork()) == 0:
    os.close(go)
    os.read(stay, 1)
    os._exit(0)
lifetime.release()
print("while a child still has a copy:", holder_of(place))
os.close(go)
os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(place.folder)], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout == "after the child released: True\nwhile a child still has a copy: None\n"


def test_a_lock_file_that_was_removed_guards_nothing_and_that_is_noticed(place: Place) -> None:
    with Lifetime.acquire(place, "1.0") as lifetime:
        assert lifetime.is_ours()
        place.lock.unlink()
        assert not lifetime.is_ours()
        with Lifetime.acquire(place, "2.0") as second:
            assert (lifetime.is_ours(), second.is_ours()) == (False, True)


def test_a_lock_that_is_a_link_is_refused(place: Place, tmp_path: Path) -> None:
    place.check()
    (tmp_path / "victim").write_text("precious")
    place.lock.symlink_to(tmp_path / "victim")
    with pytest.raises(ServiceUnavailable, match=r"cannot open .*echo\.lock"):
        Lifetime.acquire(place, "1.0")
    assert (tmp_path / "victim").read_text() == "precious"
    place.lock.unlink()
