"""What the server refuses, and what it must not refuse."""

from typing import Any

import anyio
import msgspec
import openai
import pytest

from model_server import ModelServer, reply
from model_server.client import HELLO, TOOLS, address, asked, chat, exchange, hear, sdk

pytestmark = pytest.mark.anyio

UNANSWERED = asked("a")[:-1]
TWICE = [
    *HELLO,
    {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}}] * 2,
    },
]
NOT_TEXT = [{"id": "a", "type": "function", "function": {"name": "x", "arguments": {}}}]


@pytest.mark.parametrize(
    "body, param",
    [
        (b"{", None),
        (b'{"model": "scripted", "messages": [{"role": "user", "content": "\xff"}]}', None),
        (b'{"model": "scripted", "temperature": NaN, "messages": []}', None),
        (b"[]", None),
        ({"messages": HELLO}, "model"),
        ({"model": "scripted"}, "messages"),
        (chat([]), "messages"),
        (chat(HELLO, colour="red"), "colour"),
        (chat(HELLO, stream_options={"include_usage": True}), "stream_options"),
        (chat(HELLO, stream="yes"), "stream"),
        (chat(HELLO, temperature=3), "temperature"),
        (chat(HELLO, tools=[]), "tools"),
        (chat(HELLO, tools=TOOLS * 2), "tools[1].function.name"),
        (chat(HELLO, tools=[{"type": "function", "function": {"name": "a b"}}]), "tools[0].function.name"),
        (chat(HELLO, tools=[{"type": "function", "function": None}]), "tools[0].function"),
        (chat(HELLO, tool_choice="auto"), "tool_choice"),
        (chat(["Hello"]), "messages[0]"),
        (chat([{"role": "wizard", "content": "x"}]), "messages[0].role"),
        (chat([{"role": "user"}]), "messages[0].content"),
        (chat([{"role": "user", "content": 5}]), "messages[0].content"),
        (chat([{"role": "user", "content": []}]), "messages[0].content"),
        (
            chat([{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]),
            "messages[0].content[0].type",
        ),
        (chat([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
        (chat([{"role": "user", "content": "x", "seq": 1}]), "messages[0].seq"),
        (chat([*HELLO, {"role": "assistant", "content": None}]), "messages[1].content"),
        (chat([*HELLO, {"role": "assistant", "content": "x", "tool_calls": []}]), "messages[1].tool_calls"),
        (chat(TWICE), "messages[1].tool_calls[1].id"),
        (
            chat([*HELLO, {"role": "assistant", "tool_calls": NOT_TEXT}]),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (chat(UNANSWERED), "messages[1].tool_calls"),
        (chat([*UNANSWERED, *HELLO]), "messages[1].tool_calls"),
        (chat([*HELLO, {"role": "tool", "tool_call_id": "a", "content": "x"}]), "messages[1].role"),
        (chat([*asked("a"), {"role": "tool", "tool_call_id": "a", "content": "x"}]), "messages[3].role"),
        (chat([*UNANSWERED, {"role": "tool", "tool_call_id": "b", "content": "x"}]), "messages[2].role"),
        (chat([*UNANSWERED, {"role": "tool", "content": "x"}]), "messages[2].tool_call_id"),
    ],
)
async def test_what_a_provider_refuses_is_refused_with_its_error_json(body: Any, param: str | None) -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply("never")) as server:
            response = await exchange(server, body)
    head, _, content = response.partition(b"\r\n\r\n")
    error = msgspec.json.decode(content)["error"]
    assert head.startswith(b"HTTP/1.1 400 ")
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"]


@pytest.mark.parametrize(
    "body",
    [
        chat(asked("a", "a")),  # providers repeat their ids from one message to the next
        chat([*HELLO, {"role": "assistant", "content": "x", "reasoning_content": "y"}, *HELLO]),
        chat(
            [
                {"role": "developer", "content": "x"},
                {"role": "user", "content": [{"type": "text", "text": "y"}]},
            ]
        ),
        chat(HELLO, tools=TOOLS, tool_choice="auto", parallel_tool_calls=True, temperature=1, max_tokens=5),
    ],
)
async def test_what_every_provider_accepts_is_accepted(body: Any) -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply("yes")) as server:
            response = await exchange(server, body)
    assert response.startswith(b"HTTP/1.1 200 OK\r\n"), response


async def test_models_are_listed_and_others_are_unknown() -> None:
    with anyio.fail_after(5):
        async with (
            ModelServer(reply("hi"), models=["small", "large"]) as server,
            sdk(server.base_url) as client,
        ):
            assert [model.id async for model in client.models.list()] == ["small", "large"]
            with pytest.raises(openai.NotFoundError) as error:
                await hear(server.base_url)
    assert error.value.code == "model_not_found"


async def test_a_wrong_key_is_refused_and_no_key_is_needed_when_none_is_set() -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply("hi"), api_key="right") as server:
            async with sdk(server.base_url, "wrong") as client:
                with pytest.raises(openai.AuthenticationError) as error:
                    await client.models.list()
            async with sdk(server.base_url, "right") as client:
                assert [model.id async for model in client.models.list()] == ["scripted"]
    assert error.value.code == "invalid_api_key"


async def test_an_unknown_path_is_not_found_and_noise_is_not_a_request() -> None:
    with anyio.fail_after(5):
        async with ModelServer(reply("hi")) as server:
            assert (await exchange(server, {}, "/v1/embeddings")).startswith(b"HTTP/1.1 404 ")
            host, port = address(server.base_url)
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(b"\x16\x03\x01 hello\r\n\r\n")
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
    assert [problem.split(":")[0] for problem in server.problems] == ["not HTTP"]
