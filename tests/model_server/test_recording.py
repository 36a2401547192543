"""What the server remembers of its requests, and what comparing them shows."""

import anyio
import msgspec
import pytest

from model_server import ModelServer, RecordedRequest, assert_prefix_chain, gaps_ms, prefix_breaks, reply
from model_server.client import HELLO, chat, exchange

pytestmark = pytest.mark.anyio


def recorded(number: int, body: bytes) -> RecordedRequest:
    return RecordedRequest(number=number, method="POST", path="/", headers={}, body=body, arrived_ns=number)


async def test_every_request_is_kept_with_its_bytes_headers_and_times() -> None:
    body = msgspec.json.encode(chat(HELLO))
    with anyio.fail_after(5):
        async with ModelServer(reply("hi")) as server:
            await exchange(server, body)
            await exchange(server, b"{")
    first, second = server.chats
    assert (first.body, first.json, first.status, first.outcome) == (body, chat(HELLO), 200, "complete")
    assert (first.headers["host"], second.number, second.json, second.status) == ("x", 2, None, 400)
    assert first.first_byte_ns is not None
    assert first.completed_ns is not None
    assert first.arrived_ns <= first.first_byte_ns <= first.completed_ns < second.arrived_ns
    assert gaps_ms([first, second])[0] > 0


def test_a_growing_conversation_and_a_retry_keep_the_prefix() -> None:
    requests = [
        recorded(1, b'{"messages": [{"role": "user", "content": "A"}]}'),
        recorded(2, b'{"messages": [{"role": "user", "content": "A"}] , "stream": true}'),
        recorded(3, b'{"x": 1, "messages": [{"role": "user", "content": "A"}, {"role": "user"}]}'),
        recorded(4, b'{"messages": [{"role": "user", "content": "B"}]}'),
    ]
    assert prefix_breaks(requests) == []
    assert_prefix_chain(requests)


@pytest.mark.parametrize(
    "later, at",
    [
        (b'{"messages": [{"role":"user","content":"A"},{"role":"tool","content":"2"}]}', 57),
        (b'{"messages": [{"role":"user","content":"A"}]}', 30),
        (b'{"messages": [{"content":"A","role":"user"},{"role":"tool","content":"1"},{}]}', 3),
        (b'{"messages": [{"role": "user","content":"A"},{"role":"tool","content":"1"},{}]}', 9),
    ],
)
def test_a_changed_shortened_or_respelled_history_is_a_break(later: bytes, at: int) -> None:
    earlier = recorded(1, b'{"messages": [{"role":"user","content":"A"},{"role":"tool","content":"1"}]}')
    [found] = prefix_breaks([earlier, recorded(2, later)])
    assert (found.earlier, found.later, found.at) == (1, 2, at)
    with pytest.raises(AssertionError, match="request 2 leaves the messages of request 1"):
        assert_prefix_chain([earlier, recorded(2, later)])


def test_a_chain_of_one_request_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="no prefix to compare"):
        assert_prefix_chain([recorded(1, b'{"messages": []}')])
