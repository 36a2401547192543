"""What a provider's options change in a real session and on the wire."""

import json
import shutil
import ssl
import subprocess
from pathlib import Path

import anyio
import anyio.streams.tls
import pytest
from anyio.abc import SocketAttribute, SocketStream

from enginehouse_engines.openai_compatible import create
from enginehouse_engines.openai_compatible.client import ModelClient
from enginehouse_engines.openai_compatible.options import Options
from enginehouse_protocol.capabilities import ModelInfo
from enginehouse_protocol.engine import Access, EngineHome, Provider, Secret
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.events import UsageUpdated
from enginehouse_protocol.settings import SessionSettings
from model_server import ModelServer, Usage, reply

from .conftest import KEY, Start

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "options,effort,fields",
    [
        ({}, "low", {"reasoning_effort": "low"}),
        ({"server": "deepseek"}, "none", {"thinking": {"type": "disabled"}}),
        ({"server": "qwen"}, "on", {"enable_thinking": True}),
        ({"server": "llamacpp"}, "none", {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"server": "llamacpp", "effort_form": "reasoning_object"}, "high", {"reasoning": {"effort": "high"}}),
        ({"server": "deepseek"}, None, {}),
    ],
)
async def test_an_effort_reaches_the_server_in_its_own_fields(
    live: Start, options: dict[str, object], effort: str | None, fields: dict[str, object]
) -> None:
    ours = ("thinking", "enable_thinking", "chat_template_kwargs", "reasoning", "reasoning_effort")
    server = ModelServer(reply("Fine."), tolerated=ours)
    async with live(server, settings=SessionSettings(model="scripted", effort=effort), options=options) as it:
        await it.port.run(it.session, "hello")
        body = it.server.chats[0].json or {}
    assert {name: body[name] for name in ours if name in body} == fields


async def test_a_request_is_priced_and_the_context_has_a_size_where_both_are_known(live: Start) -> None:
    facts = {"scripted": {"context_window": 32_768, "price": {"input": 2.0, "cached_input": 1.0, "output": 4.0}}}
    answer = reply("Fine.", usage=Usage(prompt=1_000, completion=100, cached=400))
    async with live(answer, options={"models": facts}) as it:
        await it.port.run(it.session, "hello")
        (usage,) = it.port.all(UsageUpdated)
    assert usage.cost_usd == pytest.approx((600 * 2 + 400 * 1 + 100 * 4) / 1e6)
    assert (usage.context_window, usage.context_tokens) == (32_768, 1_100)


async def test_headers_of_the_person_are_sent_beside_the_key(live: Start) -> None:
    async with live(
        reply("Fine."), options={"headers": {"X-Title": "Enginehouse", "HTTP-Referer": "https://e.example"}}
    ) as it:
        await it.port.run(it.session, "hello")
        headers = it.server.chats[0].headers
    assert (headers["x-title"], headers["http-referer"]) == ("Enginehouse", "https://e.example")
    assert headers["authorization"] == f"Bearer {KEY}"


async def test_the_words_for_effort_and_the_sizes_of_models_are_those_that_are_known(home: EngineHome) -> None:
    options = {"server": "llamacpp", "models": {"one": {"context_window": 9_000}}}
    with anyio.fail_after(10):
        async with ModelServer(reply("Fine."), models=("one", "two")) as server, create(home) as engine:
            provider = Provider(name="p", base_url=server.base_url, options=options)
            description = await engine.describe(Access(provider=provider))
    assert description.efforts == ("none", "on", "low", "medium", "high")
    assert description.models == (ModelInfo(name="one", context_window=9_000), ModelInfo(name="two"))


async def test_the_proxy_of_the_options_is_used_also_for_what_the_variables_leave_direct() -> None:
    asked: list[bytes] = []

    async def proxy(stream: SocketStream) -> None:
        async with stream:
            asked.append(await stream.receive())
            await stream.send(b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    provider = Provider(name="p", base_url="http://models.example.com/v1")
    client = ModelClient(
        Access(provider=provider, environment={"NO_PROXY": "*"}), Options(proxy=f"http://127.0.0.1:{port}")
    )
    with anyio.fail_after(10):
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, proxy)
            with pytest.raises(EngineError):
                await client.models()
            await client.aclose()
            tasks.cancel_scope.cancel()
    assert asked
    assert asked[0].startswith(b"GET http://models.example.com/v1/models ")


async def test_a_private_authority_of_the_options_is_trusted_beside_the_machines_own(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("this machine has no openssl to make a certificate with")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    argv = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
    ]
    argv += [
        "-subj",
        "/CN=models",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(argv, capture_output=True, timeout=30, check=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    body = json.dumps({"data": [{"id": "private"}]}).encode()

    async def answer(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            await stream.receive()
            head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            await stream.send(head + body)

    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    base_url = f"https://127.0.0.1:{plain.extra(SocketAttribute.local_port)}/v1"
    access = Access(provider=Provider(name="p", base_url=base_url), secret=Secret("KEY", KEY))
    client = ModelClient(access, Options(ca_file=str(certificate)))
    with anyio.fail_after(10):
        async with anyio.streams.tls.TLSListener(plain, context) as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, answer)
            assert [model.name for model in await client.models()] == ["private"]
            await client.aclose()
            tasks.cancel_scope.cancel()


def test_a_private_authority_whose_file_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(EngineError, match=r"options\.ca_file"):
        ModelClient(
            Access(provider=Provider(name="p", base_url="https://h.example/v1")),
            Options(ca_file=str(tmp_path / "ca.pem")),
        )
