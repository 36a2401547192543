"""What a client makes of the server: through the provider's own SDK, and over a bare socket.

Rule: what the real SDK puts together from a stream is the measure; bytes come from the socket.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
import openai

from model_server.server import ModelServer

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]


@asynccontextmanager
async def sdk(base_url: str, api_key: str = "any") -> AsyncIterator[openai.AsyncOpenAI]:
    client = openai.AsyncOpenAI(
        base_url=base_url,
        api_key=api_key,
        max_retries=0,
        http_client=openai.DefaultAioHttpClient(trust_env=False),
    )
    async with client:
        yield client


class Heard(msgspec.Struct):
    """What a client puts together from a stream."""

    text: str = ""
    reasoning: str = ""
    calls: dict[int, tuple[str, str, str]] = msgspec.field(default_factory=dict[int, tuple[str, str, str]])
    finish_reason: str | None = None
    usage: tuple[int, int] | None = None
    chunks: int = 0


async def hear(base_url: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> Heard:
    heard = Heard()
    async with sdk(base_url) as client:
        await hear_into(heard, client, messages or HELLO, **options)
    return heard


async def hear_into(heard: Heard, client: openai.AsyncOpenAI, messages: Any, **options: Any) -> None:
    options.setdefault("stream_options", {"include_usage": True})
    stream: Any = await client.chat.completions.create(model="scripted", messages=messages, stream=True, **options)
    async for chunk in stream:
        heard.chunks += 1
        if chunk.usage is not None:
            assert chunk.choices == []
            heard.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            heard.text += choice.delta.content or ""
            heard.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            heard.finish_reason = choice.finish_reason or heard.finish_reason
            for part in choice.delta.tool_calls or []:
                id_, name, arguments = heard.calls.get(part.index, ("", "", ""))
                heard.calls[part.index] = (
                    id_ or part.id or "",
                    name or part.function.name or "",
                    arguments + (part.function.arguments or ""),
                )


def address(base_url: str) -> tuple[str, int]:
    url = urlsplit(base_url)
    return url.hostname or "", url.port or 0


async def exchange(server: ModelServer, body: Any, path: str = "/v1/chat/completions") -> bytes:
    """Send one POST over a bare socket and return every byte that comes back."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    host, port = address(server.base_url)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    received = b""
    async with await anyio.connect_tcp(host, port) as stream:
        await stream.send(head.encode() + content)
        async for data in stream:
            received += data
    return received


def chat(messages: Any, **options: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": messages, **options}


def asked(*rounds: str) -> list[dict[str, Any]]:
    """A conversation in which each of these calls (its id) was made and answered."""
    messages = list(HELLO)
    for id_ in rounds:
        function = {"name": "bash", "arguments": "{}"}
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": id_, "type": "function", "function": function}],
            }
        )
        messages.append({"role": "tool", "tool_call_id": id_, "content": "ok"})
    return messages


def events(response: bytes) -> list[Any]:
    """The events of a raw response whose HTTP chunks each hold one."""
    body = response.partition(b"\r\n\r\n")[2]
    data = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(each) for each in data if each != b"[DONE]"]
