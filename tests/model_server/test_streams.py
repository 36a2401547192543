"""What goes over the wire: replies, holds, cuts, faults, as the real SDK hears them."""

from typing import Any, cast

import anyio
import msgspec
import openai
import pytest
from anyio.abc import SocketStream

from model_server import (
    ModelServer,
    Reply,
    Usage,
    breaking,
    call,
    cut,
    end,
    error_event,
    fault,
    hang_up,
    hold,
    in_order,
    keep_alive,
    pause,
    raw,
    reply,
    stall,
    verbatim,
)
from model_server.client import HELLO, Heard, address, chat, events, exchange, hear, hear_into, sdk

pytestmark = pytest.mark.anyio


async def test_the_sdk_hears_the_text_the_reasoning_the_calls_and_the_usage_of_a_reply() -> None:
    answer = reply(
        "I look, then I speak.",
        reasoning="Which file?",
        calls=[call("bash", {"command": "ls -la | head"}), call("read", '{"path": "ä"}', fragment_size=1)],
        usage=Usage(prompt=120, completion=30, cached=100),
    )
    with anyio.fail_after(5):
        async with ModelServer(answer) as server:
            heard = await hear(server.base_url)
            chunks = heard.chunks
    assert heard == Heard(
        text="I look, then I speak.",
        reasoning="Which file?",
        calls={
            0: ("call_1_0", "bash", '{"command":"ls -la | head"}'),
            1: ("call_1_1", "read", '{"path": "ä"}'),
        },
        finish_reason="tool_calls",
        usage=(120, 30),
        chunks=chunks,
    )


async def test_parallel_calls_may_come_fragment_by_fragment_in_turn() -> None:
    answer = reply(
        calls=[call("one", '{"a": 1}', fragment_size=3), call("two", '{"b": 22222}', fragment_size=3)],
        interleave=True,
    )
    with anyio.fail_after(5):
        async with ModelServer(answer) as server:
            heard = await hear(server.base_url)
            whole = await exchange(server, chat(HELLO, stream=True))
    assert heard.calls == {0: ("call_1_0", "one", '{"a": 1}'), 1: ("call_1_1", "two", '{"b": 22222}')}
    order = [event["choices"][0]["delta"]["tool_calls"][0]["index"] for event in events(whole)[1:-1]]
    assert order == [0, 1, 0, 1, 0, 1, 0, 1, 1]


async def test_a_stream_has_a_role_first_a_finish_reason_late_usage_only_when_asked_for_and_done_last() -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply(deltas=["He", "llo"])) as server:
            plain = await exchange(server, chat(HELLO, stream=True))
            counted = await exchange(server, chat(HELLO, stream=True, stream_options={"include_usage": True}))
    deltas = [(event["choices"][0]["delta"], event["choices"][0]["finish_reason"]) for event in events(plain)]
    assert deltas == [
        ({"role": "assistant", "content": "", "refusal": None}, None),
        ({"content": "He"}, None),
        ({"content": "llo"}, None),
        ({}, "stop"),
    ]
    assert all("usage" not in event for event in events(plain))
    assert plain.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert [event["usage"] is None for event in events(counted)] == [True, True, True, True, False]
    assert events(counted)[-1]["choices"] == []


async def test_without_stream_the_answer_is_one_document() -> None:
    with anyio.fail_after(5):
        async with (
            ModelServer(reply("Hello there", calls=[call("bash", "{}")])) as server,
            sdk(server.base_url) as client,
        ):
            answer = await client.chat.completions.create(model="scripted", messages=cast(Any, HELLO))
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello there", "tool_calls")
    assert [each.id for each in choice.message.tool_calls or []] == ["call_1_0"]
    assert answer.usage is not None


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_http_chunks_fall_where_the_script_says_also_inside_a_character(size: int) -> None:
    with anyio.fail_after(10):
        async with ModelServer(reply("Grüße, 世界 🙂", split=size)) as server:
            assert (await hear(server.base_url)).text == "Grüße, 世界 🙂"
            response = await exchange(server, chat(HELLO, stream=True))
    body, sizes = response.partition(b"\r\n\r\n")[2], list[int]()
    while body:
        head, _, rest = body.partition(b"\r\n")
        sizes.append(int(head, 16))
        body = rest[sizes[-1] + 2 :]
    assert sizes[-1] == 0
    assert set(sizes[:-2]) <= {size}


async def test_five_thousand_deltas_arrive_whole() -> None:
    with anyio.fail_after(20):
        async with ModelServer(reply(deltas=["word "] * 5000)) as server:
            response = await exchange(server, chat(HELLO, stream=True))
    assert len(events(response)) == 5002


async def test_a_hold_freezes_the_stream_exactly_there_until_it_is_released() -> None:
    heard = Heard()
    with anyio.fail_after(5):
        async with (
            ModelServer(reply(deltas=["before", hold("mid"), " after"])) as server,
            sdk(server.base_url) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(hear_into, heard, client, HELLO)
            await server.reached("mid")
            assert server.chats[0].outcome == "open"
            server.release("mid")
            await server.quiet()
    assert (heard.text, server.chats[0].outcome) == ("before after", "complete")


async def test_what_stands_before_a_hold_has_reached_the_client() -> None:
    with anyio.fail_after(5):
        async with (
            ModelServer(reply(deltas=["before", hold("mid")])) as server,
            sdk(server.base_url) as client,
        ):
            stream: Any = await client.chat.completions.create(model="scripted", messages=cast(Any, HELLO), stream=True)
            texts = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
            await stream.close()
    assert texts == ["", "before"]


async def test_a_client_that_leaves_a_stalled_answer_is_seen_to_leave() -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply(deltas=["a", stall()])) as server:
            with anyio.move_on_after(0.2):
                await hear(server.base_url)
            await server.quiet()
    assert server.chats[0].outcome == "client_left"


async def test_a_pause_delays_and_may_come_before_the_status_line() -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply("a", before=[pause(0.05)])) as server:
            await hear(server.base_url)
    [request] = server.chats
    assert request.first_byte_ns is not None
    assert request.first_byte_ns - request.arrived_ns >= 45_000_000


@pytest.mark.parametrize(
    "script",
    [
        reply(deltas=["He", cut(), "llo"]),
        reply(deltas=["He", cut(b'data: {"id'), "llo"]),
        breaking(after=2, by=cut())(reply(deltas=["He", "llo"])),
        breaking(after=2, by=[keep_alive(), cut()])(reply(deltas=["He", "llo"])),
    ],
)
async def test_a_cut_ends_the_connection_in_mid_stream(script: Reply) -> None:
    heard = Heard()
    with anyio.fail_after(5):
        async with ModelServer(script) as server, sdk(server.base_url) as client:
            with pytest.raises(openai.APIConnectionError):
                await hear_into(heard, client, HELLO)
    assert (heard.text, server.chats[0].outcome) == ("He", "cut")


async def test_a_reset_drops_what_was_on_its_way() -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply(deltas=["He", hold("sent"), cut(reset=True)])) as server:
            host, port = address(server.base_url)
            content = msgspec.json.encode(chat(HELLO, stream=True))
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content)
                    + content
                )
                await server.reached("sent")
                server.release("sent")
                with pytest.raises(anyio.BrokenResourceError):
                    await read_to_the_end(stream)


async def read_to_the_end(stream: SocketStream) -> None:
    async for _ in stream:
        pass


async def test_an_error_object_inside_a_stream_raises_with_its_message() -> None:
    script = reply(deltas=["He", error_event("overloaded", code="busy"), end()])
    with anyio.fail_after(5):
        async with ModelServer(script) as server:
            with pytest.raises(openai.APIError, match="overloaded") as error:
                await hear(server.base_url)
    assert error.value.code == "busy"


async def test_a_malformed_event_reaches_the_client_as_it_is() -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply(deltas=["He", raw(b"data: {oops\n\n"), "llo"])) as server:
            response = await exchange(server, chat(HELLO, stream=True))
            with pytest.raises(ValueError, match="Expecting"):
                await hear(server.base_url)
    assert b"\r\n\r\nd\r\ndata: {oops\n\n\r\n" in response or b"\r\nd\r\ndata: {oops\n\n\r\n" in response


async def test_a_reply_that_ends_early_ends_cleanly_without_done() -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply(deltas=["He", end(), "llo"])) as server:
            heard = await hear(server.base_url)
            response = await exchange(server, chat(HELLO, stream=True))
    assert (heard.text, heard.finish_reason) == ("He", None)
    assert response.endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in response


async def test_faults_come_with_their_status_headers_and_body() -> None:
    script = in_order(
        fault(429, "slow down", code="rate_limit_exceeded", headers={"retry-after": "7"}),
        fault(502, body=b"<html>bad gateway</html>", headers={"content-type": "text/html"}),
        hang_up(),
    )
    with anyio.fail_after(5):
        async with ModelServer(script) as server:
            with pytest.raises(openai.RateLimitError, match="slow down") as limited:
                await hear(server.base_url)
            with pytest.raises(openai.InternalServerError) as broken:
                await hear(server.base_url)
            with pytest.raises(openai.APIConnectionError):
                await hear(server.base_url)
    assert (limited.value.code, limited.value.response.headers["retry-after"]) == ("rate_limit_exceeded", "7")
    assert broken.value.body == "<html>bad gateway</html>"
    assert [request.status for request in server.chats] == [429, 502, None]
    assert server.problems == []


async def test_a_stream_given_byte_by_byte_is_sent_as_it_is_and_ended_properly() -> None:
    with anyio.fail_after(5):
        async with ModelServer(verbatim(b"data: {", raw(b"odd"), headers={"content-type": "text/plain"})) as server:
            answer = await exchange(server, chat(HELLO, stream=True))
            split = ModelServer(verbatim(b"abc", b"d", split=2))
            async with split:
                pieces = await exchange(split, chat(HELLO, stream=True))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: text/plain" in head
    assert body == b"7\r\ndata: {\r\n3\r\nodd\r\n0\r\n\r\n"
    assert pieces.endswith(b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n")


async def test_a_stream_given_byte_by_byte_may_break_and_wait() -> None:
    with anyio.fail_after(5):
        async with ModelServer(verbatim(b"a", hold("more"), b"b", cut(b"c"))) as server:
            heard: list[bytes] = []
            async with anyio.create_task_group() as tasks:

                async def hear_it() -> None:
                    heard.append(await exchange(server, chat(HELLO, stream=True)))

                tasks.start_soon(hear_it)
                await server.reached("more")
                server.release("more")
            assert heard[0].endswith(b"1\r\na\r\n1\r\nb\r\n401\r\nc")
            assert server.chats[0].outcome == "cut"


async def test_what_is_no_http_is_sent_as_it_is_and_the_connection_closes() -> None:
    with anyio.fail_after(5):
        async with ModelServer(hang_up(after=b"SSH-2.0\r\n")) as server:
            assert await exchange(server, chat(HELLO, stream=True)) == b"SSH-2.0\r\n"
            assert server.chats[0].outcome == "cut"
