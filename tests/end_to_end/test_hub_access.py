"""A run-time folder, a token or a version that is not ours: refused in one line that says what to do.

Rule: real processes; what is wrong is made wrong on the disk, or by another service in the hub's place.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S, Person, hub_status, one_line, until
from enginehouse.hub_place import hub_place
from enginehouse_core.profile.folders import Folders
from model_server import reply

HELLO = ("run", "hello")


@pytest.fixture
def person(meet: Introduction) -> Person:
    """Somebody whose model always answers the same."""
    return meet(reply("Hi."))


def test_a_folder_others_may_write_to_is_refused(person: Person) -> None:
    assert person.runs(*HELLO).code == 0
    folder = person.profile / "run"
    for mode, says in ((0o777, "other users may write to it"), (0o755, "has mode 0755")):
        folder.chmod(mode)
        _refused(person, says, f"chmod 700 {folder}")
        assert "✗ hub" in person.runs("doctor").out
    folder.chmod(0o700)
    assert person.runs(*HELLO).code == 0


def test_a_folder_that_is_a_link_is_refused(person: Person) -> None:
    person.profile.mkdir(mode=0o700)
    elsewhere = person.home / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (person.profile / "run").symlink_to(elsewhere)
    _refused(person, "is a symbolic link", str(person.profile / "run"))
    assert list(elsewhere.iterdir()) == []


def test_a_wrong_token_is_refused_and_the_hub_replaces_what_was_tampered_with(person: Person) -> None:
    assert person.runs(*HELLO).code == 0
    place = hub_place(Folders.of(person.environment))
    was = place.token.stat()
    place.token.write_text("0" * 64 + "\n")
    os.utime(place.token, ns=(was.st_atime_ns, was.st_mtime_ns))  # or the hub itself would notice within seconds
    _refused(person, "token", str(place.token))
    place.token.unlink()
    until(lambda: person.hubs() == [])  # no client could find it any more, so it makes room
    assert person.runs(*HELLO).code == 0


OLD_HUB = """
import sys
from pathlib import Path
import anyio
from enginehouse_protocol.local_socket import Edition, Place, Span, serve
async def on_connection(stream, guest): await anyio.sleep_forever()
place = Place(Path(sys.argv[1]), "hub", stop_hint="enginehouse hub stop")
edition = Edition(version=sys.argv[2], protocol=Span(min=1, max=1))
print(anyio.run(lambda: serve(place, edition, on_connection, idle_after_s=None, busy=lambda: sys.argv[3] == "busy")))
"""


@contextmanager
def _another_hub(person: Person, version: str, how: str) -> "Iterator[subprocess.Popen[bytes]]":
    person.profile.mkdir(mode=0o700, exist_ok=True)
    argv = [sys.executable, "-c", OLD_HUB, str(person.profile / "run"), version, how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            until(lambda: person.runs("hub", "status").code == 0)
            yield process
        finally:
            process.kill()


def test_an_older_hub_that_is_idle_is_replaced(person: Person) -> None:
    with _another_hub(person, "0.0.1", "idle") as old:
        assert "0.0.1" in person.runs("doctor").out
        assert person.runs(*HELLO).code == 0
        assert old.communicate(timeout=PATIENCE_S)[0] == b"asked\n"
    assert hub_status(person)["pid"] == person.hubs()[0].pid


@pytest.mark.parametrize(
    "version,how,says",
    [("0.0.1", "busy", "it is in use"), ("99.0", "idle", "it is newer: update this program")],
)
def test_another_version_that_is_busy_or_newer_is_left_alone_and_named(
    person: Person, version: str, how: str, says: str
) -> None:
    with _another_hub(person, version, how) as other:
        refused = person.runs(*HELLO)
        one_line(refused, 1, f"runs as version {version}")
        assert says in refused.err
        assert "enginehouse hub stop" in refused.err
        told = hub_status(person)
        assert (told["version"], told["pid"], told["problem"] is not None) == (version, other.pid, True)
        assert person.runs("hub", "stop").code == 0
        assert other.wait(PATIENCE_S) == 0
    assert person.runs(*HELLO).code == 0


def _refused(person: Person, *says: str) -> None:
    refused = person.runs(*HELLO)
    one_line(refused, 2, says[0])
    assert all(each in refused.err for each in says), refused.err
