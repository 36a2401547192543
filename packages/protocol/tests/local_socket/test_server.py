"""The service's side: who is let in, what a bad visitor can do (nothing), and how it ends."""

import json
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteStream

from enginehouse_protocol.errors import AccessRefused, ServiceRunning, ServiceUnavailable
from enginehouse_protocol.local_socket import Edition, Guest, Place, Span, connect, holder_of, serve, status

from .conftest import OURS, Reach, Serving

pytestmark = pytest.mark.anyio

NOBODY = 65_534


def hello(place: Place, **changes: object) -> dict[str, Any]:
    fields = {
        "type": "hello",
        "name": place.name,
        "token": place.token.read_text().strip(),
        "version": OURS.version,
        "protocol": {"min": 1, "max": 3},
        "want": "attach",
    }
    return {**fields, **changes}


async def say(place: Place, first_line: bytes) -> dict[str, Any]:
    """What a stranger who says this hears."""
    with anyio.fail_after(10):
        async with BufferedByteStream(await anyio.connect_unix(place.socket)) as stream:
            await stream.send(first_line)
            return json.loads(await stream.receive_until(b"\n", 4096))


async def say_hello(place: Place, **changes: object) -> dict[str, Any]:
    return await say(place, json.dumps(hello(place, **changes)).encode() + b"\n")


async def test_a_welcomed_client_has_a_plain_stream_from_the_first_byte(place: Place, serving: Serving) -> None:
    guests: list[Guest] = []

    async def talk_first(stream: ByteStream, guest: Guest) -> None:
        guests.append(guest)
        await stream.send(b"I speak first: ")
        await stream.send(await stream.receive())

    async with serving(place, talk_first):
        with anyio.fail_after(5):
            connection = await connect(place, OURS, start=None)
            async with connection.stream as stream:
                await stream.send(b"hi")
                heard = b""
                while len(heard) < 17:
                    heard += await stream.receive()
    assert heard == b"I speak first: hi"
    assert (connection.protocol, connection.version, connection.pid) == (3, "1.2.0", os.getpid())
    assert guests == [Guest(pid=os.getpid(), protocol=3, version="1.2.0")]


async def test_what_is_sent_right_behind_the_hello_is_not_lost(place: Place, serving: Serving) -> None:
    async with serving(place):
        with anyio.fail_after(5):
            async with BufferedByteStream(await anyio.connect_unix(place.socket)) as stream:
                await stream.send(json.dumps(hello(place)).encode() + b"\nearly")
                assert json.loads(await stream.receive_until(b"\n", 4096))["type"] == "welcome"
                assert await stream.receive_exactly(5) == b"early"


async def test_the_files_are_private_and_gone_at_the_end(place: Place, serving: Serving) -> None:
    async with serving(place):
        modes = {file.name: file.stat().st_mode & 0o777 for file in place.folder.iterdir()}
        assert modes == {"echo.sock": 0o600, "echo.token": 0o600, "echo.lock": 0o600}
        assert len(place.token.read_text().strip()) == 64
    assert [file.name for file in place.folder.iterdir()] == ["echo.lock"]


async def test_every_boot_has_a_token_of_its_own(place: Place, serving: Serving) -> None:
    async with serving(place):
        first = place.token.read_text()
    async with serving(place):
        assert place.token.read_text() != first
        assert (await say_hello(place, token=first.strip()))["code"] == "wrong_token"


@pytest.mark.parametrize(
    "changes,code,words",
    [
        ({"token": "0" * 64}, "wrong_token", "not the one this service started with"),
        ({"token": "tökén"}, "wrong_token", "not the one"),
        ({"token": "", "protocol": {"min": 9, "max": 9}}, "wrong_token", "not the one"),
        ({"name": "other"}, "other_service", "this is echo, not other"),
        ({"want": "fly"}, "malformed_hello", "want"),
        ({"protocol": 3}, "malformed_hello", "protocol"),
        ({"type": "goodbye"}, "malformed_hello", "goodbye"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_stranger_is_refused_and_learns_nothing(
    place: Place, serving: Serving, changes: dict[str, object], code: str, words: str
) -> None:
    async with serving(place):
        answer = await say_hello(place, **changes)
    assert (answer["type"], answer["code"]) == ("refused", code)
    assert words in answer["message"]
    assert [answer[field] for field in ("version", "protocol", "pid")] == [None, None, None]


@pytest.mark.parametrize(
    "speaks,code", [((1, 1), "protocol_too_old"), ((7, 9), "protocol_too_new")], ids=["old", "new"]
)
async def test_a_client_without_a_common_protocol_is_told_what_is_spoken(
    place: Place, serving: Serving, speaks: tuple[int, int], code: str
) -> None:
    async with serving(place, edition=Edition(version="1.2.0", protocol=Span(min=4, max=5))):
        answer = await say_hello(place, protocol={"min": speaks[0], "max": speaks[1]})
    assert (answer["code"], answer["protocol"]) == (code, {"min": 4, "max": 5})
    assert (answer["version"], answer["pid"], answer["idle"]) == ("1.2.0", os.getpid(), True)
    assert "speaks protocol 4 to 5" in answer["message"]


async def test_a_newer_client_speaks_the_newest_protocol_both_know(place: Place, serving: Serving) -> None:
    async with serving(place):
        answer = await say_hello(place, protocol={"min": 2, "max": 8}, version="9", exact_version=False)
    assert (answer["type"], answer["protocol"]) == ("welcome", 3)


async def test_unknown_fields_of_a_later_client_are_ignored(place: Place, serving: Serving) -> None:
    async with serving(place):
        assert (await say_hello(place, mood="good"))["type"] == "welcome"


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\n", b"\xff\xfe\n", b"\n", b"[]\n", b"x" * 8192])
async def test_garbage_is_answered_and_hurts_nobody_else(place: Place, serving: Serving, garbage: bytes) -> None:
    async with serving(place):
        assert (await say(place, garbage))["code"] == "malformed_hello"
        assert (await say_hello(place))["type"] == "welcome"


async def test_a_mute_visitor_is_dropped_and_keeps_nobody_waiting(place: Place, serving: Serving) -> None:
    async with serving(place, hello_timeout_s=0.3):
        with anyio.fail_after(5):
            async with BufferedByteStream(await anyio.connect_unix(place.socket)) as mute:
                await mute.send(b'{"type":')
                assert (await say_hello(place))["type"] == "welcome"
                assert json.loads(await mute.receive_until(b"\n", 4096))["code"] == "hello_timeout"
                with pytest.raises(anyio.EndOfStream):
                    await mute.receive()


async def test_another_user_is_turned_away_before_a_byte_is_read(open_place: Place, serving: Serving) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    script = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
visitor = socket.socket(socket.AF_UNIX)
visitor.connect(sys.argv[1])
print(visitor.makefile().readline())
"""
    before = set(os.listdir("/proc/self/fd"))
    async with serving(open_place):
        open_place.folder.chmod(0o755)  # somebody opened the doors after the start
        open_place.socket.chmod(0o777)
        with anyio.fail_after(20):
            done = await anyio.run_process([sys.executable, "-c", script, str(open_place.socket)])
        answer = json.loads(done.stdout)
        open_place.folder.chmod(0o700)
        assert (await say_hello(open_place))["type"] == "welcome"
    assert (answer["code"], answer["message"]) == (
        "other_user",
        "this service belongs to user 0; another user cannot use it",
    )
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the listing itself


async def test_another_user_cannot_even_reach_the_socket(open_place: Place, serving: Serving) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    script = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    print("refused by the kernel")
"""
    async with serving(open_place):
        with anyio.fail_after(20):
            done = await anyio.run_process([sys.executable, "-c", script, str(open_place.socket)])
    assert done.stdout == b"refused by the kernel\n"


@pytest.mark.parametrize("kind", [RuntimeError, ExceptionGroup], ids=["error", "group"])
async def test_a_handler_that_fails_ends_its_own_connection_only(
    place: Place, serving: Serving, reach: Reach, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    async def fail_on_x(stream: ByteStream, guest: Guest) -> None:
        while True:
            heard = await stream.receive()
            if heard == b"x":
                if kind is ExceptionGroup:
                    raise ExceptionGroup("parts", [RuntimeError("one"), ValueError("two")])
                raise kind("this handler fails")
            await stream.send(heard)

    with anyio.fail_after(5):
        async with serving(place, fail_on_x), reach(place) as good, reach(place) as bad:
            await bad.stream.send(b"x")
            with pytest.raises(anyio.EndOfStream):
                await bad.stream.receive()
            await good.stream.send(b"still here")
            assert await good.stream.receive() == b"still here"
    failures = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in failures] == [
        f"a connection of process {os.getpid()} failed and was closed"
    ]
    assert failures[0].exc_info


async def test_a_client_that_just_goes_away_is_no_failure(
    place: Place, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def wait(stream: ByteStream, guest: Guest) -> None:
        await stream.receive()

    async with serving(place, wait):
        assert (await say_hello(place))["type"] == "welcome"
        await say(place, b"\n")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_more_connections_than_agreed_are_turned_away(place: Place, serving: Serving, reach: Reach) -> None:
    async with serving(place, connections_max=2), reach(place), reach(place):
        answer = await say(place, b"")
        assert (answer["code"], answer["message"]) == ("too_many_connections", "2 connections are open; close some")


async def test_the_token_is_in_no_log(place: Place, serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(place):
        token = place.token.read_text().strip()
        for changes in ({}, {"want": "fly"}, {"name": "other"}, {"version": 3}):
            answer = await say_hello(place, **changes)
            assert token not in json.dumps(answer)
    assert token not in caplog.text


async def test_an_idle_service_ends_and_removes_what_it_made(place: Place, serving: Serving, reach: Reach) -> None:
    with anyio.fail_after(10):
        async with serving(place, idle_after_s=0.3) as served:
            async with reach(place):
                await anyio.sleep(0.6)  # the time under test: twice as long as an idle service would live
                assert served.ending is None
            await served.ended.wait()
    assert served.ending == "idle"
    assert [file.name for file in place.folder.iterdir()] == ["echo.lock"]


async def test_a_busy_service_stays_and_so_does_one_that_cannot_tell(place: Place, serving: Serving) -> None:
    answers = [True, True, True, True]

    def busy() -> bool:
        if answers:
            return answers.pop()
        if not asked_in_vain:
            asked_in_vain.append(True)
            raise RuntimeError("cannot tell")
        return False

    asked_in_vain: list[bool] = []
    with anyio.fail_after(10):
        async with serving(place, idle_after_s=0.2, busy=busy) as served:
            await served.ended.wait()
    assert (served.ending, answers, asked_in_vain) == ("idle", [], [True])


async def test_a_mute_visitor_and_one_who_asks_for_status_do_not_keep_it_alive(place: Place, serving: Serving) -> None:
    with anyio.fail_after(10):
        async with (
            serving(place, idle_after_s=0.4, hello_timeout_s=0.1) as served,
            await anyio.connect_unix(place.socket),
        ):
            while served.ending is None:
                with anyio.move_on_after(0.1):
                    await served.ended.wait()
                if served.ending is None:
                    await status(place)
    assert served.ending == "idle"


async def test_stop_ends_the_handlers_and_then_returns(place: Place, serving: Serving, reach: Reach) -> None:
    ended: list[str] = []

    async def wait(stream: ByteStream, guest: Guest) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("handler")

    with anyio.fail_after(5):
        async with serving(place, wait) as served, reach(place) as connection:
            served.server.stop()
            served.server.stop()
            await served.ended.wait()
            assert (ended, served.ending) == (["handler"], "asked")
            assert not place.socket.exists()
            assert holder_of(place) is not None  # what the service owns is still to be closed
            with pytest.raises(anyio.EndOfStream):
                await connection.stream.receive()
    assert holder_of(place) is None


@pytest.mark.parametrize("file", ["echo.lock", "echo.sock", "echo.token", ""], ids=["lock", "socket", "token", "all"])
async def test_a_service_nobody_can_find_any_more_ends(place: Place, serving: Serving, file: str) -> None:
    with anyio.fail_after(10):
        async with serving(place, idle_after_s=0.4, busy=lambda: True) as served:
            for found in list(place.folder.iterdir()):
                if found.name == file or not file:
                    found.unlink()
            if not file:
                place.folder.rmdir()
            await served.ended.wait()
    assert served.ending == "displaced"


async def test_a_displaced_service_leaves_its_successors_files_alone(place: Place, serving: Serving) -> None:
    with anyio.fail_after(10):
        async with serving(place, idle_after_s=1, busy=lambda: True) as first:
            place.lock.unlink()
            async with serving(place):
                await first.ended.wait()
                assert first.ending == "displaced"
                assert (await say_hello(place))["type"] == "welcome"


async def test_a_second_service_refuses_to_start(place: Place, serving: Serving) -> None:
    async with serving(place):
        with pytest.raises(ServiceRunning, match=f"already running as process {os.getpid()}"):
            await serve(place, OURS, _nobody, idle_after_s=None, busy=lambda: False)
        assert (await say_hello(place))["type"] == "welcome"


async def test_serve_is_lock_and_server_in_one(place: Place) -> None:
    with anyio.fail_after(5):
        assert await serve(place, OURS, _nobody, idle_after_s=0.1, busy=lambda: False) == "idle"
    assert holder_of(place) is None


async def test_a_stale_socket_and_a_half_written_token_are_harmless(place: Place, serving: Serving) -> None:
    place.check()
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(place.socket))
    (place.folder / "echo.token.new").write_text("half")
    place.token.write_text("of an earlier boot")
    async with serving(place):
        assert (await say_hello(place))["type"] == "welcome"
    assert [file.name for file in place.folder.iterdir()] == ["echo.lock"]


async def test_something_else_in_the_place_of_the_socket_is_not_removed(place: Place, serving: Serving) -> None:
    place.check()
    place.socket.write_text("precious")
    with pytest.raises(AccessRefused, match=r"echo\.sock: is in the place of the socket and is none; move it away"):
        await serve(place, OURS, _nobody, idle_after_s=None, busy=lambda: False)
    assert place.socket.read_text() == "precious"
    assert not place.token.exists()
    assert holder_of(place) is None


async def test_a_folder_that_cannot_be_written_is_a_clear_error(place: Place) -> None:
    place.check()
    (place.folder / "echo.token.new").mkdir()
    with pytest.raises(ServiceUnavailable, match="cannot listen at"):
        await serve(place, OURS, _nobody, idle_after_s=None, busy=lambda: False)


@pytest.mark.parametrize("through_proc", [True, False], ids=["through /proc", "in a short folder"])
async def test_a_path_of_any_length_works(
    tmp_path: Path, serving: Serving, reach: Reach, monkeypatch: pytest.MonkeyPatch, through_proc: bool
) -> None:
    if through_proc and sys.platform != "linux":
        pytest.skip("/proc/self/fd is Linux's")
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    place = Place(tmp_path / ("x" * 120) / "run", "echo", through_proc=through_proc)
    async with serving(place):
        short = place.short_folder()
        monkeypatch.setattr("tempfile.tempdir", "/")  # the client's temporary folder may be another
        with anyio.fail_after(5):
            async with reach(place) as connection:
                await connection.stream.send(b"far")
                assert await connection.stream.receive() == b"far"
        if not through_proc:
            assert short is not None
            assert short.stat().st_mode & 0o777 == 0o700
            short.chmod(0o755)
            with pytest.raises(AccessRefused, match="has mode 0755"):
                await connect(place, OURS, start=None)
            short.chmod(0o700)
    assert short is None or not short.exists()
    assert [file.name for file in place.folder.iterdir()] == ["echo.lock"]
    with pytest.raises(ServiceUnavailable, match="not running"):
        await connect(place, OURS, start=None)


async def _nobody(stream: ByteStream, guest: Guest) -> None:
    raise AssertionError("nobody was to connect")
