"""Reading the CLI's output: whose a frame is, what happens to what cannot be read, and what waits for whom."""

import json
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from subprocess import PIPE

import anyio
import pytest

from enginehouse_engines.claude.depth import LIMIT, shallow
from enginehouse_engines.claude.outbox import Outbox
from enginehouse_engines.claude.process import Cli
from enginehouse_engines.claude.saying import Emit, Said
from enginehouse_engines.claude.stream import MAX_LINE_BYTES, Stream
from enginehouse_protocol.errors import EngineError, EngineExited
from enginehouse_protocol.events import MessageAssistant, MessageDelta
from enginehouse_protocol.ids import MessageId, ReplyId

pytestmark = pytest.mark.anyio

LOG = logging.getLogger("test.claude")


@dataclass
class Reading:
    stream: Stream
    frames: list[bytes] = field(default_factory=list[bytes])


@asynccontextmanager
async def reading(program: str) -> AsyncGenerator[Reading]:
    """A Python program in the CLI's place. `say(frame)` writes one line."""
    prelude = "import json, sys\ndef say(frame):\n    print(json.dumps(frame), flush=True)\n"
    frames: list[bytes] = []
    with anyio.fail_after(20):
        process = await anyio.open_process(
            [sys.executable, "-c", prelude + program], stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        cli = Cli(process, LOG)
        stream = Stream(cli, frames.append, LOG)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cli.listen_to_complaints)
            yield Reading(stream, frames)
            cli.kill()
            tasks.cancel_scope.cancel()
        stream.close()
        await process.aclose()


async def test_control_frames_go_one_way_and_all_others_the_other_as_they_came() -> None:
    program = """
say({"type": "system", "subtype": "init"})
say({"type": "control_request", "request_id": "1", "request": {"subtype": "can_use_tool"}})
print("[SandboxDebug] no frame")
say({"type": "plum", "unheard": "of"})
"""
    async with reading(program) as it:
        await it.stream.read()
        control = [frame async for frame in it.stream.control]
    assert [json.loads(frame)["type"] for frame in it.frames] == ["system", "plum"]
    assert [frame["request_id"] for frame in control] == ["1"]


async def test_an_answer_to_us_does_not_wait_behind_content_nobody_has_taken() -> None:
    program = """
asked = json.loads(sys.stdin.readline())
for number in range(2000):
    say({"type": "stream_event", "number": number})
say({"type": "control_response",
     "response": {"subtype": "success", "request_id": asked["request_id"], "response": {"heard": asked["request"]}}})
sys.stdin.read()
"""
    async with reading(program) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(it.stream.read)
        answer = await it.stream.request("set_model", deadline_s=10, model="plum")
        assert answer == {"heard": {"subtype": "set_model", "model": "plum"}}
        assert len(it.frames) == 2000
        tasks.cancel_scope.cancel()


async def test_a_refusal_is_an_error_with_the_clis_words() -> None:
    program = """
asked = json.loads(sys.stdin.readline())
say({"type": "control_response",
     "response": {"subtype": "error", "request_id": asked["request_id"], "error": "no plums"}})
sys.stdin.read()
"""
    async with reading(program) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(it.stream.read)
        with pytest.raises(EngineError, match="no plums"):
            await it.stream.request("set_model", deadline_s=10)
        tasks.cancel_scope.cancel()


async def test_a_stream_that_ends_is_a_dead_client_and_says_what_was_on_stderr() -> None:
    """Trap: the reason is only there, and who waits must not wait on."""
    program = 'sys.stdin.readline(); print("cannot find the plums", file=sys.stderr); sys.exit(3)'
    async with reading(program) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(it.stream.read)
        with pytest.raises(EngineExited, match="status 3: cannot find the plums"):
            await it.stream.request("set_model", deadline_s=10)
        with pytest.raises(EngineExited):
            await it.stream.send({"type": "user"})
        tasks.cancel_scope.cancel()


async def test_a_line_that_does_not_end_is_a_dead_client_too() -> None:
    """Trap: a reader that gives up while its process lives leaves a session that is silent for ever."""
    program = f'sys.stdout.write("{{" + "x" * {MAX_LINE_BYTES}); sys.stdout.flush(); sys.stdin.read()'
    async with reading(program) as it:
        assert "64 MiB" in await it.stream.read()


async def test_a_lone_surrogate_in_an_input_does_not_lose_the_question_about_it() -> None:
    program = r"""
print('{"type":"control_request","request_id":"1","request":{"input":{"command":"echo \\ud800"}}}')
"""
    async with reading(program) as it:
        await it.stream.read()
        control = [frame async for frame in it.stream.control]
    assert [frame["request"]["input"]["command"] for frame in control] == ["echo \ud800"]
    assert it.frames == []


def test_a_frame_nested_too_deeply_is_cut_and_everything_beside_the_depth_is_kept() -> None:
    deep = b'{"type":"x","in":' + b'{"a":' * 9000 + b"1" + b"}" * 9000 + b',"text":"{[\\"}","out":[1,{"b":2}]}'
    cut = json.loads(shallow(deep))
    assert (cut["type"], cut["text"], cut["out"]) == ("x", '{["}', [1, {"b": 2}])
    levels, inner = 1, cut["in"]
    while inner is not None:
        levels, inner = levels + 1, inner["a"]
    assert levels == LIMIT
    wide = json.dumps({"list": [{"n": n} for n in range(500)]}).encode()
    assert shallow(wide) == wide


def delta(text: str, message: str = "m") -> Said:
    return Emit(body=MessageDelta(message_id=MessageId(message), text=text))


def whole(text: str) -> Said:
    return Emit(body=MessageAssistant(message_id=MessageId("m"), reply_id=ReplyId("r"), text=text))


async def test_what_waits_is_merged_and_an_interrupt_drops_what_only_passes_by() -> None:
    outbox = Outbox()
    for number in range(1000):
        outbox.put([delta(f"{number} ")])
    outbox.put([whole("all")])
    first = await outbox.take()
    assert isinstance(first, Emit) and isinstance(first.body, MessageDelta)
    assert first.body.text.startswith("0 1 2 ")
    outbox.put([delta("late"), whole("again")])
    outbox.drop()
    assert [await outbox.take(), await outbox.take()] == [whole("all"), whole("again")]


async def test_few_deltas_pass_one_by_one_as_they_came() -> None:
    outbox = Outbox()
    outbox.put([delta("a"), delta("b")])
    assert [await outbox.take(), await outbox.take()] == [delta("a"), delta("b")]
