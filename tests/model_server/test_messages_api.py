"""The Messages API's words: what a client reads from the socket, and what the script reads from a request."""

from typing import Any

import anyio
import msgspec
import pytest

from model_server import ChatRequest, MessagesRequest, MessagesServer, Usage, call, cut, fault, reply
from model_server.client import exchange

pytestmark = pytest.mark.anyio

HELLO: dict[str, Any] = {
    "model": "claude-plum",
    "max_tokens": 100,
    "stream": True,
    "messages": [{"role": "user", "content": "Hello"}],
}
PATH = "/v1/messages?beta=true"


def events(answer: bytes) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line[6:]) for line in answer.split(b"\n") if line.startswith(b"data: ")]


async def asked(server: MessagesServer, body: Any) -> bytes:
    with anyio.fail_after(5):
        async with server:
            return await exchange(server, body, PATH)


async def test_a_reply_is_blocks_in_order_between_a_start_and_a_stop() -> None:
    answer = reply(
        "I look.", reasoning="Which?", calls=[call("Bash", {"command": "ls"})], usage=Usage(prompt=9, completion=4)
    )
    heard = events(await asked(MessagesServer(answer), HELLO))
    assert heard[0]["message"]["usage"]["input_tokens"] == 9
    starts = [each["content_block"]["type"] for each in heard if each["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    assert [each["index"] for each in heard if each["type"] == "content_block_stop"] == [0, 1, 2]
    deltas = [each["delta"] for each in heard if each["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "I look."
    assert msgspec.json.decode("".join(delta.get("partial_json", "") for delta in deltas)) == {"command": "ls"}
    assert heard[-2]["delta"]["stop_reason"] == "tool_use"
    assert heard[-2]["usage"] == {"output_tokens": 4}
    assert heard[-1] == {"type": "message_stop"}


async def test_usage_can_be_left_out_and_a_stream_can_break() -> None:
    heard = events(await asked(MessagesServer(reply(deltas=["half", cut(), "whole"], usage="omit")), HELLO))
    assert "usage" not in heard[0]["message"]
    assert heard[-1]["delta"]["text"] == "half"


async def test_without_stream_it_is_one_document() -> None:
    answer = await asked(MessagesServer(reply("hi")), HELLO | {"stream": False})
    message = msgspec.json.decode(answer.split(b"\r\n\r\n", 1)[1])
    assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": "hi"}], "end_turn")


@pytest.mark.parametrize(
    "server, body, status, kind",
    [
        (MessagesServer(fault(529, "too much")), HELLO, 529, "api_error"),
        (MessagesServer(reply("hi"), api_key="plum"), HELLO, 401, "authentication_error"),
        (MessagesServer(reply("hi")), {"model": "x"}, 400, "invalid_request_error"),
    ],
    ids=["a fault", "another key", "no messages"],
)
async def test_a_refusal_has_the_shape_of_this_api(
    server: MessagesServer, body: dict[str, Any], status: int, kind: str
) -> None:
    answer = await asked(server, body)
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert msgspec.json.decode(answer.split(b"\r\n\r\n", 1)[1])["error"]["type"] == kind


async def test_the_script_sees_results_steps_and_texts_of_this_apis_requests() -> None:
    seen: list[MessagesRequest] = []

    def script(request: ChatRequest) -> Any:
        assert isinstance(request, MessagesRequest)
        seen.append(request)
        return reply("hi")

    use = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a.txt"}]}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "text", "text": "I look"}, use]},
        {"role": "user", "content": [result]},
    ]
    tools = [{"name": "Bash", "input_schema": {}}]
    await asked(MessagesServer(script), HELLO | {"messages": messages, "tools": tools, "system": "be kind"})
    request = seen[0]
    assert request.tool_results == [("toolu_1", "a.txt")]
    assert (request.steps_taken, request.steps_this_turn, request.tool_names) == (1, 1, ["Bash"])
    assert (request.system_text, request.first_user_text) == ("be kind", "go")
    assert request.all_text == "go\nI look\n\na.txt"
