"""The CLI, or what stands in front of it, is killed: the turn ends honestly and the next one goes on from there."""

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

import anyio
import psutil
import pytest

from enginehouse_engines.claude import process
from enginehouse_protocol.conformance.opened import is_running, until
from enginehouse_protocol.content import content_text
from enginehouse_protocol.errors import EngineExited
from enginehouse_protocol.events import (
    MessageAssistant,
    MessageDelta,
    MessageReset,
    PermissionDecided,
    PermissionRequested,
    ToolResult,
)
from enginehouse_protocol.testing.answers import allow, never
from model_server import Answer, ChatRequest, call, reply, stall

from .conftest import Live, Opener
from .pids import translate
from .processes import clis, fronts, kill

pytestmark = pytest.mark.anyio

Victims = Callable[[], list[psutil.Process]]


@pytest.fixture(params=["cli in a namespace", "front of a namespace"])
def victims(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Victims:
    """Who is killed, and in which of both ways it is contained."""
    who = {"cli": clis, "front": fronts, "keeper": fronts}[request.param.split()[0]]
    if "keeper" in request.param:
        monkeypatch.setattr(process, "namespace", lambda: "")  # as where the kernel refuses them
    elif not process.namespace():
        pytest.skip("this machine has no bwrap that may make PID namespaces")
    return who


def script(first: Answer) -> Callable[[ChatRequest], Answer]:
    """`first` to who says "go"; the word to who asks afterwards."""

    def answer(request: ChatRequest) -> Answer:
        return reply("here again") if "and now?" in str(request.messages) else first

    return answer


async def killed(it: Live, victims: Victims, when: Callable[[], Awaitable[object]]) -> None:
    """A turn in which they are killed as soon as `when` returns; then an ordinary one that knows the first."""
    async with anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def turn() -> None:
            with pytest.raises(EngineExited):
                await it.port.run(it.session, "go, said Ada")
            ended.set()

        tasks.start_soon(turn)
        await when()
        kill(victims())
        with anyio.fail_after(5):
            await ended.wait()
    await goes_on(it)


async def goes_on(it: Live) -> None:
    it.port.policy = allow
    with anyio.fail_after(20):
        assert (await it.port.run(it.session, "and now?")).stop == "end"
    assert it.port.texts()[-1] == "here again"
    assert "go, said Ada" in it.said()
    assert it.port.open_uses == []


async def test_kill_9_while_the_model_speaks_takes_the_shown_text_back(live: Opener, victims: Victims) -> None:
    async with live(script(reply(deltas=["half ", "a pear", stall()], flush_each=True))) as it:
        await killed(it, victims, lambda: it.port.heard(MessageDelta))
    shown = {delta.message_id for delta in it.port.all(MessageDelta)}
    kept = {message.message_id for message in it.port.all(MessageAssistant)}
    assert shown - kept == {reset.message_id for reset in it.port.all(MessageReset)} != set()


@pytest.mark.parametrize(
    "victims", ["cli in a namespace", "front of a namespace", "cli under a keeper", "keeper"], indirect=True
)
async def test_kill_9_while_a_tool_runs_leaves_its_use_unknown_and_nothing_running(
    live: Opener, victims: Victims
) -> None:
    command = "setsid tail -f /dev/null & echo $$ $! > pids.new; mv pids.new pids.inner; tail -f /dev/null"
    async with (
        live(script(reply(calls=[call("Bash", {"command": command})]))) as it,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(translate, it.workspace.directory)
        file = it.workspace.directory / "pids"
        await killed(it, victims, lambda: until(file.exists, deadline_s=15))
        assert [result.status for result in it.port.all(ToolResult)] == ["unknown"]
        pids = [int(pid) for pid in file.read_text().split()]
        assert len(pids) == 2
        if victims is fronts and not process.namespace():
            for pid in pids:  # the known gap of a keeper that is killed itself: nothing is left to end what detached
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(is_running(pid) for pid in pids))
        tasks.cancel_scope.cancel()


async def test_kill_9_while_a_person_is_asked_cancels_the_question(live: Opener, victims: Victims) -> None:
    async with live(script(reply(calls=[call("Bash", {"command": "touch ran"})]))) as it:
        it.port.policy = never
        await killed(it, victims, lambda: it.port.heard(PermissionRequested, deadline_s=15))
        assert not (it.workspace.directory / "ran").exists()
    assert [decided.by for decided in it.port.all(PermissionDecided)] == ["expiry"]
    assert [result.status for result in it.port.all(ToolResult)] == ["unknown"]


async def test_kill_9_between_turns_is_noticed_by_nobody(live: Opener, victims: Victims) -> None:
    async with live(script(reply("noted"))) as it:
        assert (await it.port.run(it.session, "go, said Ada")).stop == "end"
        kill(victims())
        await until(lambda: clis() == [])
        await goes_on(it)
    assert it.port.texts() == ["noted", "here again"]
    assert [content_text(result.content) for result in it.port.all(ToolResult)] == []
