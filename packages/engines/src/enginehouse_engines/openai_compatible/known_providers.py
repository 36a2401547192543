"""What is known of the servers people use, as data. One that is not here works too; it is then asked and told less.

Rule: only what does not change by the month stands here. A server's own list of models goes before it, and the
person's file before both. A price that nobody told us is unknown, never nothing: lists of prices grow old without
anybody noticing, so there are none here but that of a machine of one's own.
"""

import fnmatch
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from enginehouse_engines.openai_compatible.effort_forms import EffortForm

Usage = Literal["asked", "always", "unknown"]
"""Whether a stream ends with token counts: when asked for, always, or nobody knows."""


Dollars = Annotated[float, msgspec.Meta(ge=0)]
Tokens = Annotated[int, msgspec.Meta(gt=0)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars for a million tokens. None is unknown."""

    input: Dollars | None = None
    cached_input: Dollars | None = None
    output: Dollars | None = None


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of one model. None is unknown."""

    context_window: Tokens | None = None
    """Tokens, prompt and reply together."""
    output_reserve: Tokens | None = None
    """Tokens to leave free for the reply."""
    images: bool | None = None
    price: Price = Price()


class KnownProvider(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    base_url: str
    hosts: tuple[str, ...] = ()
    """By which an address is recognised, with everything below them."""
    key_variable: str | None = None
    """Where people keep the key; None: it needs none."""
    keys_page: str = ""
    """Where a person gets one."""
    local: bool = False
    """It runs on a machine of one's own: nobody bills for it."""
    effort: EffortForm = "reasoning_effort"
    efforts: tuple[str, ...] = ("none", "minimal", "low", "medium", "high", "xhigh")
    usage: Usage = "asked"
    models: tuple[tuple[str, ModelFacts], ...] = ()
    """Pattern of the name → what is known; the first that matches counts."""


_NO_PRICE_LIST = Price(input=0.0, cached_input=0.0, output=0.0)
_SWITCH = ("none", "on")


KNOWN: dict[str, KnownProvider] = {
    known.name: known
    for known in (
        KnownProvider(
            name="openai",
            title="OpenAI",
            base_url="https://api.openai.com/v1",
            hosts=("api.openai.com",),
            key_variable="OPENAI_API_KEY",
            keys_page="https://platform.openai.com/api-keys",
            models=(
                ("gpt-5*", ModelFacts(context_window=400_000, output_reserve=128_000, images=True)),
                ("gpt-4.1*", ModelFacts(context_window=1_047_576, output_reserve=32_768, images=True)),
                ("gpt-4o*", ModelFacts(context_window=128_000, output_reserve=16_384, images=True)),
                ("o[34]*", ModelFacts(context_window=200_000, output_reserve=100_000)),
            ),
        ),
        KnownProvider(
            name="openrouter",
            title="OpenRouter",
            base_url="https://openrouter.ai/api/v1",
            hosts=("openrouter.ai",),
            key_variable="OPENROUTER_API_KEY",
            keys_page="https://openrouter.ai/keys",
            effort="reasoning_object",
        ),
        KnownProvider(
            name="deepseek",
            title="DeepSeek",
            base_url="https://api.deepseek.com/v1",
            hosts=("api.deepseek.com",),
            key_variable="DEEPSEEK_API_KEY",
            keys_page="https://platform.deepseek.com/api_keys",
            effort="thinking_type",
            efforts=("none", "low", "high", "max"),
            models=(("deepseek-v4*", ModelFacts(context_window=1_000_000)),),
        ),
        KnownProvider(
            name="qwen",
            title="Qwen (Alibaba Cloud Model Studio)",
            base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            hosts=("aliyuncs.com",),
            key_variable="DASHSCOPE_API_KEY",
            keys_page="https://modelstudio.console.alibabacloud.com",
            effort="enable_thinking",
            efforts=(*_SWITCH, "1024", "8192", "32768"),
        ),
        KnownProvider(
            name="glm",
            title="GLM (Z.ai)",
            base_url="https://api.z.ai/api/paas/v4",
            hosts=("api.z.ai", "bigmodel.cn"),
            key_variable="ZAI_API_KEY",
            keys_page="https://z.ai/manage-apikey/apikey-list",
            effort="thinking_type",
            efforts=(*_SWITCH, "low", "high", "max"),
            usage="always",
            models=(
                ("glm-4.6*", ModelFacts(context_window=204_800)),
                ("glm-4.5*", ModelFacts(context_window=131_072)),
            ),
        ),
        KnownProvider(
            name="mistral",
            title="Mistral",
            base_url="https://api.mistral.ai/v1",
            hosts=("api.mistral.ai",),
            key_variable="MISTRAL_API_KEY",
            keys_page="https://console.mistral.ai/api-keys",
            efforts=("none", "high"),
            usage="always",
        ),
        KnownProvider(
            name="groq",
            title="Groq",
            base_url="https://api.groq.com/openai/v1",
            hosts=("api.groq.com",),
            key_variable="GROQ_API_KEY",
            keys_page="https://console.groq.com/keys",
            efforts=("none", "default", "low", "medium", "high"),
        ),
        KnownProvider(
            name="ollama",
            title="Ollama",
            base_url="http://127.0.0.1:11434/v1",
            local=True,
            efforts=("none", "low", "medium", "high"),
        ),
        KnownProvider(
            name="lmstudio",
            title="LM Studio",
            base_url="http://127.0.0.1:1234/v1",
            local=True,
            efforts=("low", "medium", "high"),
        ),
        KnownProvider(
            name="llamacpp",
            title="llama.cpp",
            base_url="http://127.0.0.1:8080/v1",
            local=True,
            effort="template",
            efforts=(*_SWITCH, "low", "medium", "high"),
        ),
        KnownProvider(
            name="vllm",
            title="vLLM",
            base_url="http://127.0.0.1:8000/v1",
            local=True,
            effort="template_and_effort",
            efforts=(*_SWITCH, "low", "medium", "high"),
        ),
    )
}


def recognised(base_url: str, named: str | None = None) -> KnownProvider | None:
    """The server a person named, else the one this address is known for. One's own machine has no name to go by."""
    if named is not None:
        return KNOWN.get(named)
    try:
        host = f".{urlsplit(base_url).hostname or ''}"
    except ValueError:
        return None
    return next((known for known in KNOWN.values() if any(host.endswith(f".{name}") for name in known.hosts)), None)


def facts_of(known: KnownProvider | None, model: str, said: ModelFacts | None = None) -> ModelFacts:
    """What is known of a model: what the person said, else what stands here."""
    found = ModelFacts()
    if known is not None:
        # A gateway puts the maker's name in front.
        name = model.rpartition("/")[2]
        found = next((facts for pattern, facts in known.models if fnmatch.fnmatchcase(name, pattern)), found)
        if known.local:
            found = msgspec.structs.replace(found, price=_NO_PRICE_LIST)
    if said is None:
        return found
    return ModelFacts(
        context_window=found.context_window if said.context_window is None else said.context_window,
        output_reserve=found.output_reserve if said.output_reserve is None else said.output_reserve,
        images=found.images if said.images is None else said.images,
        price=Price(
            input=found.price.input if said.price.input is None else said.price.input,
            cached_input=found.price.cached_input if said.price.cached_input is None else said.price.cached_input,
            output=found.price.output if said.price.output is None else said.price.output,
        ),
    )
