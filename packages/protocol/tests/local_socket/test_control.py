"""Asking a service how it is, and asking it to end."""

import os
import signal

import anyio
import pytest

from enginehouse_protocol.errors import AccessRefused, ServiceUnavailable
from enginehouse_protocol.local_socket import Edition, Lifetime, Place, Span, Status, ask_to_stop, holder_of, status

from .conftest import Ask, Launches, Reach, Serving, gone

pytestmark = pytest.mark.anyio


async def test_a_service_that_does_not_run_has_no_status_and_nothing_is_made(place: Place) -> None:
    assert await status(place) is None
    assert await ask_to_stop(place) == "not_running"
    assert not place.folder.exists()


async def test_status_tells_who_runs_and_whether_it_is_in_use(place: Place, serving: Serving, reach: Reach) -> None:
    busy: list[bool] = []
    edition = Edition(version="7.0", protocol=Span(min=50, max=60))  # status needs no common protocol
    async with serving(place, edition=edition, busy=lambda: bool(busy)):
        holder = holder_of(place)
        assert holder is not None
        expected = Status(
            pid=os.getpid(), version="7.0", since_ms=holder.since_ms, answers=True, idle=True, connections=0
        )
        assert await status(place) == expected
        busy.append(True)
        found = await status(place)
        assert found is not None
        assert (found.idle, found.connections) == (False, 0)
        busy.clear()
        async with reach(place, edition):
            found = await status(place)
            assert found is not None
            assert (found.idle, found.connections) == (False, 1)


async def test_a_service_that_starts_or_hangs_has_the_status_its_lock_tells(place: Place) -> None:
    with Lifetime.acquire(place, "1.0") as lifetime:
        assert await status(place) == Status(
            pid=os.getpid(), version="1.0", since_ms=lifetime.holder.since_ms, answers=False
        )


async def test_a_stopped_service_is_there_but_does_not_answer(place: Place, launch: Launches, reach: Reach) -> None:
    with anyio.fail_after(30):
        async with reach(place, start=launch(place)) as connection:
            os.kill(connection.pid, signal.SIGSTOP)
            try:
                found = await status(place, deadline_s=0.3)
                with pytest.raises(
                    ServiceUnavailable, match=f"runs as process {connection.pid} and did not end within"
                ):
                    await ask_to_stop(place, deadline_s=0.3)
            finally:
                os.kill(connection.pid, signal.SIGCONT)
    assert found is not None
    assert (found.pid, found.answers, found.idle) == (connection.pid, False, None)


async def test_a_service_asked_to_stop_has_ended_when_that_returns(
    place: Place, launch: Launches, reach: Reach
) -> None:
    with anyio.fail_after(30):
        async with reach(place, start=launch(place)) as connection:
            assert await ask_to_stop(place) == "stopped"
            assert holder_of(place) is None
        await gone(connection.pid)
    assert "ended: asked" in place.log.read_text()


async def test_one_in_use_ends_only_if_that_is_meant(place: Place, launch: Launches, reach: Reach, ask: Ask) -> None:
    with anyio.fail_after(30):
        async with reach(place, start=launch(place)) as connection:
            assert await ask_to_stop(place, only_if_idle=True) == "busy"
            assert await ask(connection, "still here") == "still here"
            await ask(connection, "busy")
        assert await ask_to_stop(place, only_if_idle=True) == "busy"
        assert await ask_to_stop(place) == "stopped"


async def test_an_idle_service_agrees_to_end(place: Place, serving: Serving) -> None:
    with anyio.fail_after(10):
        async with serving(place) as served, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: ask_to_stop(place, only_if_idle=True, deadline_s=5))
            await served.ended.wait()
            tasks.cancel_scope.cancel()  # this process keeps the lock, so it would wait on
    assert served.ending == "asked"


async def test_a_folder_that_is_not_private_is_refused(place: Place) -> None:
    place.folder.mkdir()
    place.folder.chmod(0o755)
    with pytest.raises(AccessRefused, match="has mode 0755"):
        await status(place)
    with pytest.raises(AccessRefused, match="has mode 0755"):
        await ask_to_stop(place)


async def test_a_wrong_token_is_no_right_to_ask(place: Place, serving: Serving) -> None:
    async with serving(place) as served:
        place.token.write_text("0" * 64)
        for asking in (status, ask_to_stop):
            with anyio.fail_after(5), pytest.raises(AccessRefused, match="the token is not the one"):
                await asking(place)
        assert served.ending is None
