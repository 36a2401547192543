"""What the engine says of itself, of a provider that refuses, and of a machine that lacks its packages."""

import gc
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from enginehouse_engines.openai_compatible import NAME, create
from enginehouse_engines.openai_compatible.client import DEFAULT_BASE_URL, ModelClient, proxy_for
from enginehouse_engines.openai_compatible.options import Options, options_of, options_schema
from enginehouse_engines.openai_compatible.provider_errors import ProviderErrors, retry_after_s
from enginehouse_protocol.capabilities import EngineAbilities, ModelInfo
from enginehouse_protocol.engine import Access, EngineHome, Provider, Secret
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.events import StepStarted, UsageUpdated
from model_server import ModelServer, fault, hang_up, reply, stall

from .conftest import KEY, Start

pytestmark = pytest.mark.anyio


def access(base_url: str, *, key: str | None = KEY, **options: Any) -> Access:
    return Access(
        provider=Provider(name="here", base_url=base_url, options=options),
        secret=None if key is None else Secret("OPENAI_API_KEY", key),
    )


async def problem_of(home: EngineHome, given: Access) -> str:
    with anyio.fail_after(10):
        async with create(home) as engine:
            description = await engine.describe(given)
    assert description.models == ()
    assert description.problem is not None
    assert KEY not in description.problem
    return description.problem


async def failed_turn(live: Start, script: Any, **how: Any) -> EngineError:
    """The error a turn against this script ends with. It names the address, never the key."""
    async with live(script, options={"max_retries": 0}, **how) as it:
        with pytest.raises(EngineError) as caught:
            await it.port.run(it.session, "go")
        assert (how.get("base_url") or it.server.base_url) in str(caught.value)
        assert KEY not in str(caught.value)
        assert len(it.port.all(StepStarted)) == 1
        counted = [UsageUpdated(scope="request")] if caught.value.code == "provider.cut_stream" else []
        assert it.port.all(UsageUpdated) == counted, "refused: nothing; no answer at all: nobody knows"
    return caught.value


# --- describe ---------------------------------------------------------------------------------------------------------


async def test_a_server_is_described_by_what_it_lists(home: EngineHome) -> None:
    async with ModelServer(reply(), models=("b", "a"), api_key=KEY) as server, create(home) as engine:
        description = await engine.describe(access(server.base_url))
    assert (description.name, description.problem) == (NAME, None)
    assert description.models == (ModelInfo(name="b"), ModelInfo(name="a"))
    assert description.version.startswith("openai ")
    assert description.abilities == EngineAbilities(edited_input=True, counts_steps=True, images=True)
    assert description.options_schema == options_schema()


async def test_a_wrong_key_is_a_problem_that_says_what_to_check(home: EngineHome) -> None:
    async with ModelServer(reply(), api_key="sk-another-key-entirely") as server:
        problem = await problem_of(home, access(server.base_url))
    assert server.base_url in problem
    assert "Incorrect API key provided." in problem
    assert "check the API key" in problem


@pytest.mark.parametrize(
    "base_url, words",
    [
        ("http://127.0.0.1:9/v1", "cannot be reached"),
        ("http://no-such-host.invalid/v1", "cannot be resolved"),
        ("ftp://example.org", "not a web address"),
        ("localhost:8080", "not a web address"),
        ("http://[broken", "not a web address"),
        ("http://127.0.0.1:port/v1", "not a web address"),
        ("http://exa mple/v1", ""),
        ("http://.../v1", ""),
        ("", DEFAULT_BASE_URL),
    ],
)
async def test_an_address_that_is_wrong_is_a_problem_that_names_it(home: EngineHome, base_url: str, words: str) -> None:
    if not base_url:
        # Without an address it is OpenAI's own; looking there needs no network.
        client = ModelClient(Access(), Options())
        await client.aclose()
        assert client.base_url == words
        return
    problem = await problem_of(home, access(base_url, connect_timeout_s=3.0))
    assert base_url in problem
    assert words in problem


@pytest.mark.parametrize("path", ["/v1/nothing", ""])
async def test_a_path_that_has_no_models_is_a_problem(home: EngineHome, path: str) -> None:
    async with ModelServer(reply()) as server:
        base_url = server.base_url.removesuffix("/v1") + path
        assert "many end in /v1" in await problem_of(home, access(base_url))


@pytest.mark.parametrize("key", ["sk-ü", "sk a", "sk\x00a"])
async def test_a_key_no_key_can_be_is_a_problem(home: EngineHome, key: str) -> None:
    problem = await problem_of(home, access("http://127.0.0.1:9/v1", key=key))
    assert "API key" in problem
    assert key not in problem


async def test_a_password_in_the_address_is_not_repeated(home: EngineHome) -> None:
    problem = await problem_of(home, access("http://ada:hunter2@127.0.0.1:9/v1?key=hunter2"))
    assert problem.startswith("http://127.0.0.1:9/v1: has a password in it")
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    "base_url, shown",
    [
        ("ada:hunter2@host/v1", "host/v1"),
        ("ada:hun@ter2@host", "host"),
        ("htp://ada:hunter2@host/v1", "htp://host/v1"),
        ("http://ada:hun/ter2@host/v1", "http://host/v1"),
        ("http://ada:hun?ter2@host/v1", "http://…"),
        ("http://:hunter2@host/v1#hunter2", "http://host/v1"),
        ("host:80:80/v1?key=hunter2@x", "…"),
    ],
)
async def test_a_login_in_what_is_no_address_is_not_repeated_either(
    home: EngineHome, base_url: str, shown: str
) -> None:
    problem = await problem_of(home, access(base_url))
    assert problem.startswith(f"{shown}: ")
    assert not any(part in problem for part in ("ada", "hun", "ter2"))


async def test_options_nobody_knows_are_a_problem(home: EngineHome) -> None:
    assert "timeout" in await problem_of(home, access("http://127.0.0.1:9/v1", timeout=3))
    assert "messages, model" in await problem_of(
        home, access("http://127.0.0.1:9/v1", request={"model": "x", "messages": []})
    )


async def test_a_server_whose_certificate_nobody_trusts_is_a_problem(home: EngineHome) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)

    async def not_tls(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    problem = ""
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, not_tls)
        problem = await problem_of(home, access(f"https://127.0.0.1:{port}/v1"))
        tasks.cancel_scope.cancel()
    assert "no trusted connection" in problem


def test_the_schema_of_the_options_is_the_options() -> None:
    schema = options_schema()
    assert schema["type"] == "object"
    assert list(schema["properties"]) == [
        *("server", "effort_form", "headers", "proxy", "ca_file", "models"),
        "connect_timeout_s",
        "first_byte_timeout_s",
        "idle_timeout_s",
        "total_timeout_s",
        "max_retries",
        "retry_wait_s",
        "max_retry_wait_s",
        "ask_usage",
        "send_reasoning",
        "request",
    ]
    assert schema["additionalProperties"] is False
    assert "$ref" not in str(schema)
    assert options_of(None) == Options()


# --- a provider that refuses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status, code, provider_code",
    [
        (400, "provider.bad_request", None),
        (400, "provider.context_exceeded", "context_length_exceeded"),
        (401, "provider.unauthorized", None),
        (402, "provider.quota", None),
        (403, "provider.forbidden", None),
        (404, "provider.not_found", "model_not_found"),
        (408, "provider.timeout", None),
        (409, "provider.conflict", None),
        (413, "provider.too_large", None),
        (413, "provider.context_exceeded", "context_length_exceeded"),
        (418, "provider.bad_request", None),
        (422, "provider.bad_request", None),
        (429, "provider.rate_limited", None),
        (429, "provider.quota", "insufficient_quota"),
        (500, "provider.server_error", None),
        (502, "provider.server_error", None),
        (503, "provider.overloaded", None),
        (529, "provider.overloaded", None),
    ],
)
async def test_each_refusal_has_its_code_and_the_providers_words(
    live: Start, status: int, code: str, provider_code: str | None
) -> None:
    error = await failed_turn(live, fault(status, "Words of the provider", code=provider_code))
    assert (error.code, error.http_status) == (code, status)
    assert "Words of the provider" in str(error)


@pytest.mark.parametrize(
    "body, words",
    [
        (b'{"detail": "Not like this"}', "Not like this"),
        (b'{"error": "Just text"}', "Just text"),
        (b'[{"error": {"message": "In a list"}}]', "In a list"),
        (b"upstream request timeout", "upstream request timeout"),
        (b"<html><head><title>Bad gateway</title></head><body><h1>nginx</h1></body></html>", ": Bad gateway nginx;"),
        (b'{"error": {"message": "Provider returned error", "metadata": {"raw": "GPU lost"}}}', "error: GPU lost"),
        (b'{"error": {"error": {"message": "Within"}}}', ": Within;"),
        (b'{"code": 1113, "msg": "No balance"}', ": No balance;"),
        (b"", "without an explanation"),
        (b'{"error": {"message": "Your key %b is wrong"}}' % KEY.encode(), "«secret:OPENAI_API_KEY»"),
    ],
)
async def test_an_explanation_in_any_shape_is_found_and_the_key_hidden(live: Start, body: bytes, words: str) -> None:
    error = await failed_turn(live, fault(400, body=body))
    assert words in str(error)


async def test_a_wait_the_provider_asks_for_is_passed_on(live: Start) -> None:
    assert (await failed_turn(live, fault(429, headers={"retry-after": "7"}))).retry_after_s == 7


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:30 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:30 GMT"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:30 -0000"}, 30.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_a_wait_is_understood_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, now_s=60.0) == seconds


async def test_a_redirect_is_not_followed_with_the_key(live: Start) -> None:
    async with ModelServer(reply("elsewhere")) as elsewhere:
        target = f"{elsewhere.base_url}/chat/completions"
        error = await failed_turn(live, fault(307, headers={"location": target}))
        assert error.code == "provider.redirected"
        assert target in str(error)
        assert elsewhere.requests == []


async def test_a_server_that_hangs_up_is_said_to(live: Start) -> None:
    assert (await failed_turn(live, hang_up())).code == "provider.cut_stream"


@pytest.mark.parametrize(
    "name, words",
    [
        ("scripted", "set a larger options.first_byte_timeout_s in the profile's providers/scripted.toml"),
        ("environment", "in the profile, in providers/<name>.toml, with a larger options.first_byte_timeout_s"),
    ],
)
async def test_a_silent_server_is_an_error_that_says_where_to_set_more_patience(name: str, words: str) -> None:
    body = b'{"model":"scripted","stream":true,"messages":[{"role":"user","content":"hi"}]}'
    async with ModelServer(reply(before=[stall()])) as server:
        provider = Provider(name=name, base_url=server.base_url, options={"first_byte_timeout_s": 0.2})
        client = ModelClient(Access(provider=provider), options_of(provider))
        with anyio.fail_after(5), pytest.raises(EngineError) as caught:
            async with client.answer(body) as chunks:
                async for _ in chunks:
                    pass
        await client.aclose()
    assert caught.value.code == "provider.timeout"
    assert words in str(caught.value)


async def test_a_server_that_is_not_there_is_said_not_to_be(live: Start) -> None:
    error = await failed_turn(live, reply(), base_url="http://127.0.0.1:9/v1")
    assert error.code == "provider.unreachable"
    assert "is it running" in str(error)


def test_long_words_are_shortened() -> None:
    message = str(ProviderErrors("http://here", None).make("provider.error", "x" * 5000))
    assert len(message) < 700


# --- what goes over the wire ------------------------------------------------------------------------------------------


async def test_only_the_given_key_is_sent_and_nothing_from_our_own_environment(
    home: EngineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "from-the-environment")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Custom: from-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with ModelServer(reply()) as server, create(home) as engine:
        for key in (KEY, f"  {KEY}\n", None):
            description = await engine.describe(access(server.base_url, key=key))
            assert description.problem is None
        first, second, third = (request.headers for request in server.requests)
    assert first["authorization"] == second["authorization"] == f"Bearer {KEY}"
    assert "authorization" not in third
    assert "from-the-environment" not in str([first, second, third])


@pytest.mark.parametrize(
    "base_url, environment, proxy",
    [
        ("https://api.example.org/v1", {}, None),
        ("https://api.example.org/v1", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.example.org/v1", {"https_proxy": "p:1"}, "http://p:1"),
        ("https://api.example.org/v1", {"HTTP_PROXY": "http://p:1"}, None),
        ("http://api.example.org/v1", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.example.org/v1", {"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.example.org/v1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example.org"}, None),
        ("https://api.example.org/v1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a, .example.org"}, None),
        ("https://api.example.org/v1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*.example.org"}, None),
        ("https://api.example.org/v1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
        ("https://api.example.org/v1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "ample.org,"}, "http://p:1"),
        ("http://models:8000/v1", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "models:8000"}, None),
        ("http://models:8001/v1", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "models:8000"}, "http://p:1"),
        ("http://localhost:8000/v1", {"HTTP_PROXY": "http://p:1"}, None),
    ],
)
def test_the_proxy_is_the_one_of_the_persons_environment(
    base_url: str, environment: dict[str, str], proxy: str | None
) -> None:
    assert proxy_for(base_url, environment) == proxy


async def test_a_proxy_is_really_used(home: EngineHome) -> None:
    async with ModelServer(reply(), models=("behind",)) as server, create(home) as engine:
        through = Access(
            provider=Provider(name="far", base_url="http://models.invalid/v1"),
            environment={"HTTP_PROXY": server.base_url.removesuffix("/v1")},
        )
        description = await engine.describe(through)
    assert (description.problem, description.models) == (None, (ModelInfo(name="behind"),))
    assert server.requests[0].headers["host"] == "models.invalid"


def test_a_file_of_certificates_that_is_none_is_said(tmp_path: Path) -> None:
    file = tmp_path / "certificates.pem"
    file.write_text("nothing")
    with pytest.raises(EngineError, match="SSL_CERT_FILE") as caught:
        ModelClient(Access(environment={"SSL_CERT_FILE": str(file)}), Options())
    assert caught.value.code == "provider.tls"
    assert isinstance(caught.value.__cause__, ssl.SSLError | OSError)


# --- the machine ------------------------------------------------------------------------------------------------------


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_engine_imports_nothing_heavy() -> None:
    code = (
        "import sys, enginehouse_engines.openai_compatible\n"
        "print([name for name in ('openai', 'aiohttp', 'httpx2', 'pydantic') if name in sys.modules])"
    )
    assert run_python(code).strip() == "[]"


def test_a_machine_without_the_packages_is_told_what_to_install() -> None:
    code = """
import logging, sys, pathlib, anyio
sys.modules["openai"] = None  # as if it were not installed
from enginehouse_engines.openai_compatible import create
from enginehouse_protocol.engine import Access, EngineHome, Fresh, Opening
from enginehouse_protocol.errors import EngineUnavailable
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing import RecordingPort, TempWorkspace

async def main():
    home = EngineHome(state=pathlib.Path("."), kept=list, log=logging.getLogger("x"))
    async with create(home) as engine:
        print((await engine.describe(Access())).problem)
        port = RecordingPort()
        opening = Opening(session_id=port.history.session_id, roots=(), start=Fresh(), settings=SessionSettings(),
            instructions="", access=Access(), port=port, workspace=None, history=port.history)
        try:
            async with engine.open(opening):
                print("opened")
        except EngineUnavailable as error:
            print(error.code, error)

anyio.run(main)
"""
    described, refused = run_python(code).splitlines()
    assert "pip install 'enginehouse-engines[openai-compatible]'" in described
    assert refused == f"engine.unavailable {described}"


async def test_a_closed_session_leaves_no_connection_open(live: Start) -> None:
    async with live(reply("hi")) as it:
        await it.port.run(it.session, "go")
    gc.collect()  # an unclosed session of aiohttp warns when it is collected, and every warning is an error here
