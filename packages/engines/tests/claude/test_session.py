"""Turns of the real CLI: nobody waits for ever, nothing is lost, and what was set is what the model is asked with."""

import os
import signal
import zlib
from typing import Any

import anyio
import pytest

from enginehouse_protocol.content import Image, Text, content_text
from enginehouse_protocol.engine import Resume
from enginehouse_protocol.errors import NativeSessionLost, SettingRefused
from enginehouse_protocol.events import (
    EngineBody,
    MessageDelta,
    MessageUser,
    NativeUpdated,
    Notice,
    ToolDetached,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.ids import new_message_id
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import RecordingPort
from model_server import Answer, ChatRequest, Usage, call, fault, hold, reply, stall

from .conftest import MODEL, SCRIPTED, Live, Opener, Setup
from .processes import clis

pytestmark = pytest.mark.anyio

PROMISE_S = 2.0


async def interrupted(it: Live, port: RecordingPort, when: Any, text: str = "go") -> None:
    """A turn that is interrupted once `when` returns, and ends in time."""
    async with anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def turn() -> None:
            assert (await port.run(it.session, text)).stop == "interrupted"
            ended.set()

        tasks.start_soon(turn)
        await when()
        with anyio.fail_after(PROMISE_S):
            await port.interrupt(it.session)
            await ended.wait()


async def test_an_interrupt_during_a_retry_ends_the_turn(live: Opener) -> None:
    """The provider is ill and the CLI would wait minutes for it."""
    async with live(fault(529), Setup(options={"max_retries": 10})) as it:
        await interrupted(it, it.port, lambda: it.port.heard(Notice, deadline_s=15))
        it.server.script = reply("here")
        assert (await it.port.run(it.session, "and now?")).stop == "end"


async def test_a_cli_that_has_stopped_answering_is_ended_and_the_next_turn_resumes(live: Opener) -> None:
    async with live(reply(deltas=["half ", stall()], flush_each=True)) as it:

        async def frozen() -> None:
            await it.port.heard(MessageDelta, deadline_s=15)
            for process in clis():
                os.kill(process.pid, signal.SIGSTOP)

        await interrupted(it, it.port, frozen, "remember the plum")
        it.server.script = reply("here")
        assert (await it.port.run(it.session, "and now?")).stop == "end"
        assert "remember the plum" in it.said()


class SlowPort(RecordingPort):
    """A view that takes 5 ms an event."""

    async def emit(self, body: EngineBody) -> None:
        await anyio.sleep(0.005)
        await super().emit(body)


async def test_a_slow_view_gets_every_word_in_fewer_pieces(live: Opener) -> None:
    words = [f"w{number} " for number in range(5000)]
    port = SlowPort()
    async with live(reply(deltas=words), Setup(port=port)) as it:
        assert (await port.run(it.session, "go")).stop == "end"
    assert port.texts() == ["".join(words)]
    deltas = port.all(MessageDelta)
    assert "".join(delta.text for delta in deltas) == "".join(words)
    assert len(deltas) < 2500


async def test_with_a_slow_view_an_interrupt_still_keeps_its_promise(live: Opener) -> None:
    port = SlowPort()
    async with live(reply(deltas=[*(f"w{number} " for number in range(5000)), stall()]), Setup(port=port)) as it:
        await interrupted(it, port, lambda: port.heard(MessageDelta, count=20, deadline_s=15))


async def test_a_line_of_twenty_megabytes_is_read_whole(live: Opener) -> None:
    """Trap: the SDK's own reader gives up at one."""
    big = "plum" * 5_000_000
    async with live(reply(deltas=[big])) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert it.port.texts() == [big]
        it.server.script = reply("still here")
        assert (await it.port.run(it.session, "and now?")).stop == "end"


async def test_work_that_ends_while_nobody_speaks_asks_for_a_turn_and_is_told_in_it(live: Opener) -> None:
    """A background command: detached, its result owed, and the CLI speaks up by itself when it has ended."""

    def answer(request: ChatRequest) -> Answer:
        if "task-notification" in str(request.messages[-1]):
            return reply("it has ended")
        if request.steps_this_turn:
            return reply("it runs")
        wait = "until test -e stop; do sleep 0.05; done; echo over"
        return reply(calls=[call("Bash", {"command": wait, "run_in_background": True})])

    async with live(answer) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        use = it.port.all(ToolUse)[0]
        assert [detached.call_id for detached in it.port.all(ToolDetached)] == [use.call_id]
        assert it.port.all(ToolResult) == []
        (it.workspace.directory / "stop").touch()
        origin = await it.port.heard_request(deadline_s=15)
        assert (await it.port.run(it.session, origin=origin)).stop == "end"
        assert it.port.texts() == ["it runs", "it has ended"]
        assert [result.call_id for result in it.port.all(ToolResult)] == [use.call_id]
        assert (await it.port.run(it.session, origin=origin)).stop == "end", "nothing is left to say"


async def test_a_session_left_before_its_own_turn_came_says_only_what_it_owes(live: Opener) -> None:
    def answer(request: ChatRequest) -> Answer:
        if "task-notification" in str(request.messages[-1]):
            return reply("it has ended", calls=[call("Bash", {"command": "touch more"})])
        if request.steps_this_turn:
            return reply("it runs")
        wait = "until test -e stop; do sleep 0.05; done"
        return reply(calls=[call("Bash", {"command": wait, "run_in_background": True})])

    async with live(answer) as it:
        await it.port.run(it.session, "go")
        (it.workspace.directory / "stop").touch()
        await it.port.heard_request(deadline_s=15)
    assert it.port.texts() == ["it runs"]
    assert it.port.open_uses == []
    assert len(it.port.all(ToolUse)) == 1


async def test_a_turn_of_ours_comes_first_when_the_cli_has_something_to_say(live: Opener) -> None:
    """Trap: whoever waits for idle while `run` waits for it waits for ever. It is said inside our turn."""
    asked = anyio.Event()

    def answer(request: ChatRequest) -> Answer:
        last = str(request.messages[-1])
        if "and you?" in last:
            return reply("I am fine")
        if "task-notification" in last:
            asked.set()
            return reply(deltas=["it has ", hold("mine"), "ended"], flush_each=True)
        if request.steps_this_turn:
            return reply("it runs")
        wait = "until test -e stop; do sleep 0.05; done"
        return reply(calls=[call("Bash", {"command": wait, "run_in_background": True})])

    async with live(answer) as it:
        await it.port.run(it.session, "go")
        (it.workspace.directory / "stop").touch()
        origin = await it.port.heard_request(deadline_s=15)
        async with anyio.create_task_group() as tasks:
            ended = anyio.Event()

            async def turn() -> None:
                assert (await it.port.run(it.session, "and you?")).stop == "end"
                ended.set()

            tasks.start_soon(turn)
            await it.port.heard(MessageDelta, lambda delta: "it has" in delta.text)
            it.server.release("mine")
            with anyio.fail_after(10):
                await ended.wait()
        assert it.port.texts()[-2:] == ["it has ended", "I am fine"]
        assert (await it.port.run(it.session, origin=origin)).stop == "end"


async def test_model_and_effort_are_switched_while_the_session_lives(live: Opener) -> None:
    """Trap: the CLI answers a switch with a message of its own, which is nobody's turn."""
    async with live(reply("hi"), Setup(settings=SessionSettings(model="opus", effort="low"))) as it:
        await it.port.run(it.session, "go")
        assert await it.session.apply(SessionSettings(model="sonnet", effort="high")) == "now"
        await it.port.run(it.session, "go on")
        with pytest.raises(SettingRefused, match="low, medium"):
            await it.session.apply(SessionSettings(model="opus", effort="enormous"))
        await it.port.run(it.session, "go on")
        assert it.port.requested_turns == []
        bodies = [request.json or {} for request in it.server.chats]
    assert [("opus" in body["model"], body["output_config"]["effort"]) for body in bodies] == [
        (True, "low"),
        (False, "high"),
        (False, "high"),
    ]
    assert "sonnet" in bodies[2]["model"]


async def test_taking_a_setting_back_opens_the_session_again(live: Opener) -> None:
    """The CLI would not go back to what its profile says but to its own default."""
    async with live(reply("hi"), Setup(settings=SessionSettings(model=MODEL, effort="low"))) as it:
        assert await it.session.apply(SessionSettings(model=MODEL)) == "reopen"


async def test_a_session_resumed_by_its_id_keeps_it_and_counts_only_what_is_new(live: Opener) -> None:
    """Trap: the CLI's totals go on over a resume."""
    usage = Usage(prompt=100, completion=7)
    async with live(reply("noted", usage=usage)) as it:
        await it.port.run(it.session, "the word is plum")
        native = it.port.all(NativeUpdated)[-1]
        assert native.turn_ref
    port = RecordingPort(it.port.history)
    async with live(reply("plum", usage=usage), Setup(start=Resume(native_id=native.native_id), port=port)) as it:
        await port.run(it.session, "which word?")
        assert "the word is plum" in it.said()
    assert {updated.native_id for updated in port.all(NativeUpdated)} == {native.native_id}
    assert [(used.input_tokens, used.output_tokens) for used in port.all(UsageUpdated)] == [(100, 7)]


@pytest.mark.parametrize("native_id", ["00000000-0000-4000-8000-000000000000", "--help", "plum"])
async def test_an_id_the_cli_does_not_know_is_lost_and_never_an_option(live: Opener, native_id: str) -> None:
    with pytest.raises(NativeSessionLost):
        async with live(reply("hi"), Setup(start=Resume(native_id=native_id))):
            pytest.fail("it opened")


async def test_a_picture_reaches_the_model(live: Opener) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    pixels = zlib.compress(b"\x00\xff\x00\x00" * 1)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes([0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0]))
    png += chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    message = MessageUser(
        message_id=new_message_id(),
        content=(Text(text="what is it?"), Image(media_type="image/png", data=png)),
    )
    async with live(reply("a dot")) as it:
        assert (await it.port.run(it.session, message)).stop == "end"
        content = (it.server.chats[0].json or {})["messages"][-1]["content"]
    assert [block["source"]["media_type"] for block in content if block["type"] == "image"] == ["image/png"]


async def test_a_tool_that_is_not_there_is_an_error_the_model_sees_and_nobody_is_asked(live: Opener) -> None:
    script = [reply(calls=[call("Monitor", {"command": "ls"})]), reply("done")]
    async with live(script, Setup(settings=SCRIPTED)) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
    assert it.port.asked == []
    assert [result.status for result in it.port.all(ToolResult)] in (["error"], ["denied"])
    assert "Monitor" in content_text(it.port.all(ToolResult)[0].content)


async def test_a_first_turn_the_cli_never_saved_is_told_to_the_next_life_and_that_is_said(live: Opener) -> None:
    """Its id was announced, but its store does not have it: the session begins again instead of being lost for ever."""
    async with live(reply(deltas=["half ", stall()], flush_each=True)) as it:

        async def unsaved() -> None:
            await it.port.heard(MessageDelta, deadline_s=15)
            for process in clis():
                os.kill(process.pid, signal.SIGSTOP)
            for file in it.configuration.rglob("*.jsonl"):
                file.unlink()

        await interrupted(it, it.port, unsaved, "remember the plum")
        for file in it.configuration.rglob("*.jsonl"):
            file.unlink()
        it.server.script = reply("here")
        assert (await it.port.run(it.session, "and now?")).stop == "end"
        assert "remember the plum" in it.said()
        assert (await it.port.run(it.session, "and then?")).stop == "end"
    assert [notice.code for notice in it.port.all(Notice)] == ["claude.began_again"]
    assert len({updated.native_id for updated in it.port.all(NativeUpdated)}) == 2
