"""Servers of models on this machine: found, told apart, and never waited for."""

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from enginehouse_engines.openai_compatible.discovery import LocalServer, local_servers, usual_addresses
from enginehouse_engines.openai_compatible.known_providers import KNOWN
from model_server import ModelServer, reply

pytestmark = pytest.mark.anyio


def test_the_usual_addresses_are_of_this_machine_alone() -> None:
    assert usual_addresses() == tuple(f"http://127.0.0.1:{port}/v1" for port in (11434, 1234, 8080, 8000))


async def test_a_server_that_lists_models_is_found_and_nothing_else_is() -> None:
    with anyio.fail_after(10):
        async with ModelServer(reply("hi"), models=("one", "two")) as serving:
            found = await local_servers([serving.base_url, "http://127.0.0.1:9/v1"])
            assert [(server.base_url, server.models) for server in found] == [(serving.base_url, ("one", "two"))]
            assert "authorization" not in serving.requests[0].headers


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html",
        b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data": 1}',
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/v1/models\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
)
async def test_what_is_no_server_of_models_is_passed_over(answer: bytes) -> None:
    assert await _found_at(answer) == []


@pytest.mark.parametrize(
    "owner,name",
    [("library", "ollama"), ("llamacpp", "llamacpp"), ("vllm", "vllm"), ("organization_owner", "lmstudio")],
)
async def test_a_server_is_told_by_what_it_says_of_its_models_wherever_it_listens(owner: str, name: str) -> None:
    body = b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"%s"}]}' % owner.encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert [server.known for server in await _found_at(head + body)] == [KNOWN[name]]


async def test_a_silent_server_is_not_waited_for() -> None:
    assert await _found_at(None) == []


async def _found_at(answer: bytes | None) -> list[LocalServer]:
    """What is found where each connection gets this answer; None: none at all."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            if answer is None:
                await anyio.sleep_forever()
            else:
                await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    found: list[LocalServer] = []
    with anyio.fail_after(10):
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            found += await local_servers([f"http://127.0.0.1:{port}/v1"])
            tasks.cancel_scope.cancel()
    return found
