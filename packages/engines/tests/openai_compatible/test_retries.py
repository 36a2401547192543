"""Requests that are sent again: how often, after how long, what a person sees of it, and that the prompt stays."""

import itertools
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.streams.tls
import pytest

from enginehouse_engines.openai_compatible.client import ModelClient
from enginehouse_engines.openai_compatible.options import Options
from enginehouse_engines.openai_compatible.provider_errors import ProviderError
from enginehouse_engines.openai_compatible.retries import MOST, Retries, Retry
from enginehouse_protocol.engine import Access, Provider
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.events import (
    MessageAssistant,
    MessageDelta,
    MessageReset,
    Notice,
    StepStarted,
    ToolResult,
    TurnCompleted,
    UsageUpdated,
)
from enginehouse_protocol.settings import SessionSettings
from model_server import assert_prefix_chain, call, cut, fault, hang_up, in_order, reply, stall, steps, with_faults

from .conftest import KEY, Live, Start
from .rebuilding import rebuilt

pytestmark = pytest.mark.anyio
PATIENT = {"retry_wait_s": 3600.0}
UNKNOWN = UsageUpdated(scope="request")


def error(code: str, *, retry_after_s: float | None = None, retries: int | None = None) -> ProviderError:
    made = ProviderError("it broke", code=code, retry_after_s=retry_after_s)
    made.retries = retries
    return made


def waits(retries: Retries, *errors: ProviderError) -> list[float | None]:
    found = [retries.after(each) for each in errors]
    return [None if retry is None else retry.wait_s for retry in found]


def no_chance() -> float:
    return 0.5


# --- when, and after how long -----------------------------------------------------------------------------------------


def test_the_wait_doubles_with_every_retry_up_to_half_a_minute() -> None:
    retries = Retries(Options(retry_wait_s=1.0, max_retries=20), no_chance)
    found = waits(retries, *[error("provider.rate_limited", retries=20)] * 8)
    assert found == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_no_two_sessions_come_back_at_the_same_time() -> None:
    early, late = (Retries(Options(retry_wait_s=1.0), lambda chance=chance: chance) for chance in (0.0, 1.0))
    assert waits(early, error("provider.overloaded")) == [0.75]
    assert waits(late, error("provider.overloaded")) == [1.25]


@pytest.mark.parametrize("code", sorted(MOST))
def test_every_fault_has_its_own_bound(code: str) -> None:
    found = waits(Retries(Options(max_retries=20), no_chance), *[error(code)] * 21)
    assert [wait is not None for wait in found] == [True] * MOST[code] + [False] * (21 - MOST[code])


def test_all_faults_together_have_one() -> None:
    retries = Retries(Options(max_retries=3), no_chance)
    faults = [error(code) for code in ("provider.timeout", "provider.cut_stream", "provider.server_error")]
    assert None not in waits(retries, *faults)
    assert retries.after(error("provider.rate_limited")) is None


@pytest.mark.parametrize(
    "code", ["provider.unauthorized", "provider.quota", "provider.tls", "provider.context_exceeded"]
)
def test_what_waiting_cannot_mend_is_not_tried_again(code: str) -> None:
    assert Retries(Options()).after(error(code)) is None


@pytest.mark.parametrize("asked, wait", [(0.0, 0.0), (7.0, 7.0), (120.0, 120.0), (120.5, None)])
def test_a_server_that_asks_for_a_wait_gets_it_up_to_a_limit(asked: float, wait: float | None) -> None:
    assert waits(Retries(Options()), error("provider.rate_limited", retry_after_s=asked)) == [wait]


def test_a_retry_knows_its_number_and_how_many_there_may_be() -> None:
    retries = Retries(Options(max_retries=6), no_chance)
    assert retries.after(error("provider.server_error")) == Retry(wait_s=0.5, number=1, most=4)
    assert retries.after(error("provider.timeout")) == Retry(wait_s=1.0, number=2, most=3)
    assert retries.after(error("provider.server_error")) == Retry(wait_s=2.0, number=3, most=5)


# --- what a person sees -----------------------------------------------------------------------------------------------


async def test_a_retry_is_said_before_its_wait_with_what_and_how_long(live: Start) -> None:
    async with live(in_order(fault(503, "Too many of you", headers={"retry-after": "0.01"}), reply("yes"))) as it:
        await it.port.run(it.session, "go")
        (notice,) = it.port.all(Notice)
        assert (notice.level, notice.code) == ("warning", "provider.retry")
        assert notice.text == (
            f"{it.server.base_url}: HTTP 503: Too many of you; it asks to wait 0.01 s. "
            "Sending the request again in 0.01 s (1 of 6)."
        )
        assert len(it.port.all(StepStarted)) == 1, "the same bytes again are the same step"


async def test_shown_text_is_taken_back_when_something_better_comes_and_not_before(live: Start) -> None:
    answers = in_order(reply(deltas=["half ", cut()]), hang_up(), reply("whole"))
    async with live(answers) as it:
        await it.port.run(it.session, "go")
        told = [body for body in it.port.bodies if isinstance(body, MessageDelta | MessageReset | Notice)]
        assert [type(body) for body in told] == [MessageDelta, Notice, Notice, MessageReset, MessageDelta]
        first, reset, second = told[0], told[3], told[4]
        assert isinstance(first, MessageDelta)
        assert isinstance(reset, MessageReset)
        assert isinstance(second, MessageDelta)
        assert reset.message_id == first.message_id != second.message_id
        assert "closed the connection" in reset.reason
        assert [message.message_id for message in it.port.all(MessageAssistant)] == [second.message_id]


async def test_a_cut_attempt_cost_nobody_knows_what_and_the_next_is_counted(live: Start) -> None:
    async with live(in_order(reply(deltas=["half ", cut()]), fault(500), reply("whole"))) as it:
        await it.port.run(it.session, "go")
        cut_one, whole = it.port.all(UsageUpdated)
        assert cut_one == UNKNOWN
        assert whole.output_tokens is not None


async def test_a_reply_of_calls_alone_takes_back_what_was_shown(live: Start) -> None:
    answers = in_order(reply(deltas=["half ", cut()]), reply(calls=[call("list_dir", {})]), reply("done"))
    async with live(answers) as it:
        await it.port.run(it.session, "go")
        assert len(it.port.all(MessageReset)) == 1
        assert it.port.texts() == ["done"]


# --- a wait is no prison ----------------------------------------------------------------------------------------------


async def test_an_interrupt_ends_a_wait_at_once_and_keeps_what_was_shown(live: Start) -> None:
    async with live(in_order(reply(deltas=["half ", cut()]), reply("yes")), options=PATIENT) as it:
        ended: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def turn() -> None:
                ended.append((await it.port.run(it.session, "go")).stop)

            tasks.start_soon(turn)
            await it.port.heard(Notice)
            tasks.cancel_scope.deadline = anyio.current_time() + 2
            await it.port.interrupt(it.session)
        assert ended == ["interrupted"]
        (message,) = it.port.all(MessageAssistant)
        assert (message.text, message.complete) == ("half ", False)
        assert it.port.all(UsageUpdated) == [UNKNOWN], "once, although the attempt ended twice"
        await it.port.run(it.session, "are you there?")
        assert it.port.texts()[-1] == "yes"
        assert_prefix_chain(it.server.chats)
        rebuilt(it.port.history.events, [request.body for request in it.server.chats])


async def test_an_interrupt_in_a_second_attempt_keeps_what_the_first_showed(live: Start) -> None:
    answers = in_order(reply(deltas=["half ", cut()]), reply("late", before=[stall()]), reply("yes"))
    async with live(answers) as it:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.port.run, it.session, "go")
            await it.server.received(2)
            await it.port.interrupt(it.session)
        assert [(message.text, message.complete) for message in it.port.all(MessageAssistant)] == [("half ", False)]
        assert it.port.all(UsageUpdated) == [UNKNOWN, UNKNOWN], "one for each attempt"


# --- the prompt -------------------------------------------------------------------------------------------------------


async def test_a_session_full_of_faults_has_one_extra_request_for_each_and_an_exact_prefix(live: Start) -> None:
    faults: dict[int, Any] = {
        2: fault(500),
        4: fault(429, headers={"retry-after": "0"}),
        6: reply(deltas=["half ", cut()]),
        8: reply(deltas=["half ", stall()]),
        10: reply(calls=[call("bash", '{"command": "echo')]),
        12: hang_up(),
    }
    async with live(with_faults(steps(8, lambda k: f"echo {k}"), faults), options={"idle_timeout_s": 0.5}) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert len(it.server.chats) == 9 + len(faults) - 1, "the cut arguments were one of the eight steps"
        assert_prefix_chain(it.server.chats)
        rebuilt(it.port.history.events, [request.body for request in it.server.chats])
        statuses = [result.status for result in it.port.all(ToolResult)]
        assert (statuses.count("ok"), statuses.count("error")) == (7, 1)
        again = [a.body for a, b in itertools.pairwise(it.server.chats) if a.body == b.body]
        assert len(again) == len(faults) - 1, "cut arguments are the model's to mend: no retry"


async def test_events_recorded_while_waiting_belong_to_the_next_step(live: Start) -> None:
    async with live(in_order(fault(500), reply("yes"), reply("and this?"))) as it:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.port.run, it.session, "go")
            await it.port.heard(Notice)
            it.port.record(Notice(level="info", code="other", text="said by core meanwhile"))
        await it.port.run(it.session, "more")
        assert it.server.chats[0].body == it.server.chats[1].body
        rebuilt(it.port.history.events, [request.body for request in it.server.chats])


async def test_a_list_of_models_is_asked_for_again_too(live: Start) -> None:
    document = b'{"data":[{"id":"scripted"}]}'
    answers = [b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"]
    answers += [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(document), document)]
    answers += [b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"]

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            while answers:
                await stream.receive()
                await stream.send(answers.pop(0))

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    base_url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
    async with live(reply(), base_url=base_url, settings=SessionSettings()) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        with pytest.raises(EngineError) as caught:
            await it.port.run(it.session, "go")
        assert caught.value.code == "provider.unauthorized", "the list came, and then the model's own answer"
        assert [notice.code for notice in it.port.all(Notice)] == ["provider.retry"]
        assert len(it.port.all(StepStarted)) == 1
        tasks.cancel_scope.cancel()
    await listener.aclose()


# --- servers that cannot be reached -----------------------------------------------------------------------------------


async def unreachable(it: Live) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await it.port.run(it.session, "go")
    assert KEY not in str(caught.value)
    assert it.port.all(UsageUpdated) == [], "nothing was sent, so nothing was counted"
    return caught.value


async def test_a_refused_connection_is_tried_twice_more_and_explained(live: Start) -> None:
    async with live(reply(), base_url="http://127.0.0.1:9/v1") as it:
        found = await unreachable(it)
        assert found.code == "provider.unreachable"
        assert "http://127.0.0.1:9/v1: cannot be reached" in str(found)
        assert "is it running, and is the base URL right?" in str(found)
        assert "tried again 2 times" in str(found)
        assert len(it.port.all(Notice)) == 2


async def test_a_server_that_comes_up_meanwhile_is_found(live: Start) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    address = listener.extra(anyio.abc.SocketAttribute.local_port)
    await listener.aclose()
    document = b'{"choices":[{"message":{"content":"here"},"finish_reason":"stop"}]}'

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(document), document))

    async with live(reply(), base_url=f"http://127.0.0.1:{address}/v1", options={"retry_wait_s": 0.5}) as it:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.port.run, it.session, "go")
            await it.port.heard(Notice)
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=address)
            tasks.start_soon(listener.serve, answer)
            await it.port.heard(TurnCompleted)
            tasks.cancel_scope.cancel()
        await listener.aclose()
        assert it.port.texts() == ["here"]


async def test_a_name_nobody_knows_is_explained(live: Start) -> None:
    async with live(reply(), base_url="http://no-such-host.invalid/v1", options={"max_retries": 1}) as it:
        found = await unreachable(it)
        assert (found.code, "its name cannot be resolved" in str(found)) == ("provider.unreachable", True)
        assert len(it.port.all(Notice)) == 1


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """One that nobody signed, for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("this machine has no openssl to make a certificate with")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "1", "-subj", "/CN=models", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = subprocess.run([*argv, "-keyout", key, "-out", certificate], capture_output=True, timeout=30, check=False)
    assert made.returncode == 0, made.stderr
    return certificate, key


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_certificate_nobody_signed_is_explained_and_one_the_person_names_is_trusted(
    certificate: tuple[Path, Path], trusted: bool
) -> None:
    file, key = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, key)

    async def answer(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 27\r\n\r\n")
            await stream.send(b'{"data":[{"id":"private"}]}')

    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    listener = anyio.streams.tls.TLSListener(plain, context)
    base_url = f"https://127.0.0.1:{plain.extra(anyio.abc.SocketAttribute.local_port)}/v1"
    provider = Provider(name="private", base_url=base_url)
    client = ModelClient(
        Access(provider=provider, environment={"SSL_CERT_FILE": str(file)} if trusted else {}), Options()
    )
    found: list[str] = []
    with anyio.fail_after(10):
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, answer)
            try:
                found += [model.name for model in await client.models()]
            except EngineError as error:
                found += [error.code, str(error)]
            await client.aclose()
            tasks.cancel_scope.cancel()
    if trusted:
        assert found == ["private"]
    else:
        assert found[0] == "provider.tls"
        assert found[1].startswith(f"{base_url}: no trusted connection: self-signed certificate; check the address")
        assert "SSL_CERT_FILE" in found[1]
