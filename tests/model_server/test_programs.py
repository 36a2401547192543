"""How a script chooses its answers, in this process, in a thread and in a process of its own."""

import os
import sys
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import openai
import pytest

from model_server import (
    ChatRequest,
    ModelServer,
    Reply,
    Script,
    breaking,
    by_first_user,
    by_history,
    call,
    cut,
    end,
    fault,
    hold,
    in_order,
    reply,
    server_in_process,
    server_in_thread,
    stall,
    steps,
    with_faults,
)
from model_server.client import HELLO, TOOLS, Heard, address, asked, chat, exchange, hear, hear_into, sdk

pytestmark = pytest.mark.anyio


async def test_steps_go_on_where_the_request_stands_whoever_asks() -> None:
    program = steps(2, lambda k: f"echo {k}", final="done")
    with anyio.fail_after(5):
        async with ModelServer(program) as server:
            first = await hear(server.base_url, asked())
            again = await hear(server.base_url, asked())
            second = await hear(server.base_url, asked("a"))
            last = await hear(server.base_url, asked("a", "b"))
    assert first.calls == again.calls == {0: ("call_1_0", "bash", '{"command":"echo 1"}')}
    assert second.calls == {0: ("call_2_0", "bash", '{"command":"echo 2"}')}
    assert (last.text, last.calls) == ("done", {})


async def test_steps_per_turn_begin_anew_with_each_message_of_the_user() -> None:
    program = steps(1, lambda k: f"echo {k}", per_turn=True)
    with anyio.fail_after(5):
        async with ModelServer(program) as server:
            ended = await hear(server.base_url, asked("a"))
            anew = await hear(server.base_url, [*asked("a"), {"role": "user", "content": "Once more"}])
    assert (ended.calls, len(anew.calls)) == ({}, 1)


async def test_a_list_is_played_by_history_and_says_so_when_it_has_no_more() -> None:
    with anyio.fail_after(5):
        async with ModelServer([reply(calls=[call("bash", "{}")]), reply("two")]) as server:
            assert (await hear(server.base_url, asked("a"))).text == "two"
            with pytest.raises(openai.BadRequestError, match="the script has 2 answers, number 3"):
                await hear(server.base_url, asked("a", "b"))


async def test_conversations_are_told_apart_and_served_side_by_side() -> None:
    script = by_first_user({"slow": reply(deltas=["s", hold("slow")]), "fast": reply("quick")})
    with anyio.fail_after(5):
        async with ModelServer(script) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(hear, server.base_url, [{"role": "user", "content": "be slow"}])
            await server.reached("slow")
            assert (await hear(server.base_url, [{"role": "user", "content": "be fast"}])).text == "quick"
            server.release("slow")
            with pytest.raises(openai.BadRequestError, match="no script for"):
                await hear(server.base_url)


async def test_a_fault_happens_once_and_the_script_goes_on() -> None:
    script = with_faults(reply("fine"), {1: fault(500), 2: breaking(after=1, by=end())})
    with anyio.fail_after(5):
        async with ModelServer(script) as server:
            with pytest.raises(openai.InternalServerError):
                await hear(server.base_url)
            assert (await hear(server.base_url)).text == ""
            assert (await hear(server.base_url)).text == "fine"


async def test_a_program_sees_what_the_request_holds() -> None:
    seen: list[ChatRequest] = []

    def program(request: ChatRequest) -> Reply:
        seen.append(request)
        return reply("ok")

    messages = [{"role": "system", "content": [{"type": "text", "text": "Be brief"}]}, *asked("a", "b")]
    with anyio.fail_after(5):
        async with ModelServer(program) as server:
            await exchange(server, chat(messages, tools=TOOLS))
    [request] = seen
    assert (request.system_text, request.first_user_text, request.last_user_text) == (
        "Be brief",
        "Hello",
        "Hello",
    )
    assert [tuple(each) for each in request.tool_results] == [("a", "ok"), ("b", "ok")]
    assert (request.steps_taken, request.assistant_messages, request.tool_names) == (2, 2, ["bash"])


async def test_a_script_that_raises_is_answered_with_400_and_remembered() -> None:
    def program(_: ChatRequest) -> Reply:
        raise KeyError("mistake")

    impossible = breaking(after=99, by=cut())(reply("short"))
    with anyio.fail_after(5):
        async with ModelServer(in_order(program, impossible)) as server:
            for _ in range(2):
                with pytest.raises(openai.BadRequestError, match="The script failed"):
                    await hear(server.base_url)
    assert server.problems[0] == "request 1: KeyError('mistake')"
    assert "cannot break after event 99" in server.problems[1]


async def test_a_failed_assertion_in_the_block_comes_out_as_itself() -> None:
    with pytest.raises(ZeroDivisionError):
        async with ModelServer(reply("hi")):
            raise ZeroDivisionError


async def test_leaving_the_block_closes_what_is_under_way() -> None:
    server = ModelServer(reply(deltas=["a", stall()]))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks, server:
            tasks.start_soon(expect_read_error, server.base_url)
            await server.received(1)
    assert server.chats[0].outcome == "cut"


async def expect_read_error(base_url: str) -> None:
    with pytest.raises(openai.APIConnectionError):
        await hear(base_url)


def script_file(folder: Path, source: str) -> Path:
    path = folder / "script.py"
    path.write_text(f"from model_server import *\nscript = {source}\n")
    return path


@pytest.mark.parametrize("where", ["thread", "process"])
async def test_a_server_elsewhere_answers_holds_and_tells_what_it_saw(where: str, tmp_path: Path) -> None:
    script: Script = by_history(reply(deltas=["be", hold("mid/ 1"), "fore"]))
    file = script_file(tmp_path, 'by_history(reply(deltas=["be", hold("mid/ 1"), "fore"]))')
    block = (
        server_in_thread(script, models=["scripted", "other"])
        if where == "thread"
        else server_in_process(file, models=["scripted", "other"])
    )
    with anyio.fail_after(30), block as server:
        heard = Heard()
        async with sdk(server.base_url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(hear_into, heard, client, HELLO)
            await anyio.to_thread.run_sync(server.reached, "mid/ 1")
            with pytest.raises(TimeoutError):
                await anyio.to_thread.run_sync(partial(server.quiet, within_s=0.05))
            await anyio.to_thread.run_sync(server.release, "mid/ 1")
        [request] = await anyio.to_thread.run_sync(server.quiet)
        [again] = await anyio.to_thread.run_sync(server.received, 1)
        assert await anyio.to_thread.run_sync(server.problems) == []
    assert heard.text == "before"
    assert (request, request.outcome, request.json) == (again, "complete", again.json)
    assert (request.json or {})["messages"] == HELLO


async def test_a_server_process_ends_with_whoever_started_it(tmp_path: Path) -> None:
    file = script_file(tmp_path, 'reply("hi")')
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import sys, time, pathlib, model_server\n"
        f"with model_server.server_in_process(pathlib.Path({str(file)!r})) as server:\n"
        "    print(server.base_url, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with anyio.fail_after(30):
        async with await anyio.open_process([sys.executable, str(starter)], env=environment) as process:
            assert process.stdout is not None
            host, port = address((await process.stdout.receive()).decode().strip())
            async with await anyio.connect_tcp(host, port) as stream:
                process.kill()
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()


async def test_the_command_announces_its_address_in_a_file_once_it_listens(tmp_path: Path) -> None:
    file, announced = script_file(tmp_path, 'reply("hi")'), tmp_path / "address.json"
    command = [sys.executable, "-m", "model_server", "--script", str(file), "--announce", str(announced)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with anyio.fail_after(30):
        async with await anyio.open_process(command, env=environment) as process:
            while not announced.exists():  # noqa: ASYNC110 - a shell script has no other way to wait for it
                await anyio.sleep(0.01)
            told = msgspec.json.decode(announced.read_bytes())
            assert told["pid"] == process.pid
            assert (await hear(told["base_url"])).text == "hi"
            process.terminate()
