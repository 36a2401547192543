"""Certifications over real HTTP: of a server that can everything, and of servers that lack something."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from enginehouse_engines.openai_compatible.certify import CHECKS, Certificate, Finding, certified
from enginehouse_engines.openai_compatible.options import Options
from enginehouse_protocol.engine import Access, Provider, Secret
from enginehouse_protocol.errors import EngineError
from model_server import Answer, ChatRequest, ModelServer, Script, fault, verbatim

from . import obliging

pytestmark = pytest.mark.anyio
KEY = "sk-test-0123456789abcdef"


async def certificate_of(
    script: Script, *, model: str | None = "scripted", models: Sequence[str] = ("scripted",)
) -> Certificate:
    tolerated = ("reasoning_content", "enginehouse_unknown_field")
    with anyio.fail_after(30):
        async with ModelServer(script, api_key=KEY, models=models, tolerated=tolerated) as serving:
            provider = Provider(name="tested", base_url=serving.base_url)
            found = await certified(Access(provider=provider, secret=Secret("KEY", KEY)), Options(), model)
            assert serving.problems == []
    return found


def finding(certificate: Certificate, name: str) -> Finding:
    return next(found for found in certificate.findings if found.name == name)


def not_working(certificate: Certificate) -> dict[str, str]:
    return {found.name: found.outcome for found in certificate.findings if found.outcome != "works"}


async def test_a_server_that_can_everything_passes_every_check_but_what_its_list_leaves_out() -> None:
    certificate = await certificate_of(obliging.oblige)
    assert not_working(certificate) == {"window": "missing"}
    assert certificate.usable
    assert certificate.requests < 30
    assert [found.name for found in certificate.findings] == [check.name for check in CHECKS]


def test_there_are_enough_checks_each_with_a_name_of_its_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS) >= 40


@pytest.mark.parametrize(
    "change,expected",
    [
        (obliging.without_counts, {"usage": "missing", "usage_once": "skipped", "usage_cache": "missing"}),
        (obliging.stop_instead_of_calls, {"call_finish": "tolerated"}),
        (obliging.one_call_at_a_time, {"parallel": "missing", "parallel_results": "skipped"}),
        (obliging.without_pictures, {"image": "missing", "image_seen": "skipped"}),
        (obliging.refusing('"reasoning_effort"', "unknown field reasoning_effort"), {"effort": "missing"}),
        (obliging.refusing('"max_tokens"', "use max_completion_tokens"), {"length": "missing"}),
        (obliging.refusing("enginehouse_unknown_field", "extra fields"), {"unknown_field": "tolerated"}),
        (obliging.refusing('"stream_options"', "stream_options is not known"), {"usage_asked": "tolerated"}),
        (obliging.refusing('"reasoning_content"', "reasoning_content?"), {"reasoning_back": "tolerated"}),
        (obliging.refusing('"content":""', "content must not be empty"), {"empty_result": "tolerated"}),
    ],
)
async def test_what_is_missing_or_odd_is_said_and_an_agent_can_still_work(
    change: Callable[[Any, ChatRequest], Answer], expected: dict[str, str]
) -> None:
    certificate = await certificate_of(obliging.but(change))
    found = not_working(certificate)
    assert {name: found.get(name) for name in expected} == expected
    assert certificate.usable


@pytest.mark.parametrize(
    "change,name,words",
    [
        (obliging.without_calls, "call", "no tool call came"),
        (obliging.no_results, "result", "jinja: unknown role tool"),
        (obliging.broken_arguments, "arguments", "no JSON object"),
        (obliging.a_small_context, "long_prompt", "read 2048"),
        (obliging.refusing('"tools"', "tools are not supported"), "call", "tools are not supported"),
    ],
)
async def test_without_working_tools_or_room_no_agent_can_work_and_the_servers_words_say_why(
    change: Callable[[Any, ChatRequest], Answer], name: str, words: str
) -> None:
    certificate = await certificate_of(obliging.but(change))
    assert finding(certificate, name).outcome == "broken"
    assert words in finding(certificate, name).about
    assert not certificate.usable


@pytest.mark.parametrize(
    "script,words",
    [
        (fault(500, "out of memory"), "out of memory"),
        (verbatim(b"<html><title>Welcome to nginx</title></html>"), "Welcome to nginx"),
        (verbatim(b'data: {"error": {"message": "model not loaded"}}\n\n'), "model not loaded"),
    ],
)
async def test_a_server_that_does_not_answer_is_asked_nothing_more(script: Script, words: str) -> None:
    certificate = await certificate_of(script)
    assert finding(certificate, "answers").outcome == "broken"
    assert words in finding(certificate, "answers").about
    assert {found.outcome for found in certificate.findings if found.group == "tools"} == {"skipped"}
    assert certificate.requests <= 2


async def test_an_answer_without_a_stream_is_tolerated() -> None:
    whole = b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant",'
    body = whole + b'"content":"PINEAPPLE"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}'
    certificate = await certificate_of(verbatim(body, headers={"content-type": "application/json"}))
    assert finding(certificate, "stream").outcome == "tolerated"
    assert finding(certificate, "instructions").outcome == "works"


async def test_the_key_is_in_no_finding_also_where_the_server_repeats_it() -> None:
    certificate = await certificate_of(obliging.but(lambda _, __: fault(400, f"I do not like {KEY}")))
    assert KEY not in str(certificate)
    assert "«secret:KEY»" in finding(certificate, "answers").about


async def test_of_several_models_one_has_to_be_chosen_and_of_one_it_is_taken() -> None:
    with pytest.raises(EngineError, match="lists: one, two; say it with --model"):
        await certificate_of(obliging.oblige, model=None, models=("one", "two"))
    assert (await certificate_of(obliging.oblige, model=None)).model == "scripted"


async def test_a_busy_server_is_asked_again() -> None:
    seen: list[int] = []

    def busy_at_first(request: ChatRequest) -> Answer:
        seen.append(request.number)
        return fault(429, headers={"retry-after": "0"}) if len(seen) == 1 else obliging.oblige(request)

    assert (await certificate_of(busy_at_first)).usable
