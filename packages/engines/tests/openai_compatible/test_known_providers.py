"""What is known of servers: that it fits together, how effort is sent, what a request costs."""

from urllib.parse import urlsplit

import pytest

from enginehouse_engines.openai_compatible.accounting import accounted, cost_usd
from enginehouse_engines.openai_compatible.effort_forms import EFFORT_FIELDS, EffortForm, effort_fields
from enginehouse_engines.openai_compatible.known_providers import (
    KNOWN,
    ModelFacts,
    Price,
    facts_of,
    recognised,
)
from enginehouse_engines.openai_compatible.options import Options, options_of
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.events import UsageUpdated
from enginehouse_protocol.permissions import JsonObject

ELEVEN = "openai openrouter deepseek qwen glm mistral groq ollama lmstudio llamacpp vllm".split()


def test_the_servers_people_use_are_known() -> None:
    assert list(KNOWN) == ELEVEN


@pytest.mark.parametrize("name", ELEVEN)
def test_a_known_server_is_told_by_its_address_unless_it_is_on_ones_own_machine(name: str) -> None:
    known = KNOWN[name]
    host = urlsplit(known.base_url).hostname
    assert known.local == (host == "127.0.0.1")
    assert recognised(known.base_url) is (None if known.local else known)
    assert recognised("http://127.0.0.1:1/v1", name) is known
    assert (known.key_variable is None) == known.local


def test_a_host_that_only_ends_alike_is_not_recognised() -> None:
    assert recognised("https://notopenrouter.ai/api/v1") is None
    assert recognised("https://eu.openrouter.ai/api/v1") is KNOWN["openrouter"]
    assert recognised("http://[") is None


@pytest.mark.parametrize(
    "form,effort,expected",
    [
        ("reasoning_effort", "high", {"reasoning_effort": "high"}),
        ("reasoning_effort", "off", {"reasoning_effort": "none"}),
        ("reasoning_object", "low", {"reasoning": {"effort": "low"}}),
        ("thinking_type", "none", {"thinking": {"type": "disabled"}}),
        ("thinking_type", "on", {"thinking": {"type": "enabled"}}),
        ("thinking_type", "max", {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
        ("enable_thinking", "none", {"enable_thinking": False}),
        ("enable_thinking", "high", {"enable_thinking": True}),
        ("enable_thinking", "8192", {"enable_thinking": True, "thinking_budget": 8192}),
        ("template", "none", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("template", "high", {"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "high"}}),
        (
            "template_and_effort",
            "low",
            {"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "low"}, "reasoning_effort": "low"},
        ),
    ],
)
def test_an_effort_is_sent_in_the_fields_of_its_server(form: EffortForm, effort: str, expected: JsonObject) -> None:
    assert effort_fields(form, effort) == expected
    assert set(expected) <= EFFORT_FIELDS
    assert effort_fields(form, None) == {}


def test_the_persons_form_goes_before_the_known_one_and_an_unknown_server_gets_the_plain_one() -> None:
    deepseek = KNOWN["deepseek"].base_url
    assert Options().effort(deepseek, "none") == {"thinking": {"type": "disabled"}}
    assert Options(effort_form="reasoning_effort").effort(deepseek, "none") == {"reasoning_effort": "none"}
    assert Options().effort("https://models.example.com/v1", "low") == {"reasoning_effort": "low"}
    assert Options(server="llamacpp").efforts("http://127.0.0.1:9/v1") == KNOWN["llamacpp"].efforts
    assert Options().efforts("http://127.0.0.1:9/v1") is None


def test_what_the_person_says_of_a_model_goes_before_what_is_known() -> None:
    said = ModelFacts(context_window=7, price=Price(input=2.0))
    assert facts_of(KNOWN["openai"], "gpt-4.1-mini", said) == ModelFacts(
        context_window=7, output_reserve=32_768, images=True, price=Price(input=2.0)
    )
    assert facts_of(None, "x") == ModelFacts()
    assert facts_of(KNOWN["openai"], "a-model-of-tomorrow") == ModelFacts()


def test_a_machine_of_ones_own_costs_nothing_and_everybody_elses_prices_are_unknown() -> None:
    used = UsageUpdated(scope="request", input_tokens=100, output_tokens=10)
    assert cost_usd(used, facts_of(KNOWN["ollama"], "any").price) == 0.0
    assert cost_usd(used, facts_of(KNOWN["openai"], "gpt-5").price) is None


def test_a_cost_is_made_of_known_numbers_only() -> None:
    price = Price(input=2.0, cached_input=0.5, output=10.0)
    used = UsageUpdated(scope="request", input_tokens=1_000_000, cached_input_tokens=400_000, output_tokens=100_000)
    assert cost_usd(used, price) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.1 * 10)
    assert cost_usd(used, Price(input=2.0, output=10.0)) == pytest.approx(2 + 1)
    assert cost_usd(used, Price(input=2.0)) is None
    assert cost_usd(UsageUpdated(scope="request", input_tokens=5), price) is None


def test_what_the_server_says_of_cost_and_window_stands() -> None:
    facts = ModelFacts(context_window=100, price=Price(input=1.0, output=1.0))
    said = UsageUpdated(scope="request", input_tokens=1, output_tokens=1, cost_usd=0.5, context_window=9)
    assert accounted(said, facts, 50) == said
    silent = UsageUpdated(scope="request", input_tokens=1, output_tokens=1)
    assert accounted(silent, facts, 50).context_window == 100
    assert accounted(silent, ModelFacts(), 50).context_window == 50


@pytest.mark.parametrize(
    "options,problem",
    [
        ({"server": "nobody"}, "server"),
        ({"headers": {"X Y": "1"}}, "'X Y'"),
        ({"headers": {"X-Name": "a\r\nAuthorization: b"}}, "'X-Name'"),
        ({"headers": {"Host": "elsewhere"}}, "not the person's"),
        ({"ca_file": "relative.pem"}, "ca_file"),
        ({"models": {"m": {"context_window": 0}}}, "context_window"),
        ({"models": {"m": {"price": {"input": -1.0}}}}, "input"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: JsonObject, problem: str) -> None:
    with pytest.raises(EngineError, match=problem):
        options_of(Provider(name="p", options=options))
