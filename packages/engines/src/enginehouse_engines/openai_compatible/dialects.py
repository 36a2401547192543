"""Which replies go back with their reasoning, and whether images go at all: servers differ, and each is sure that the
others are wrong.

Rule: data, not code. A dialect is a name that is recorded in every step's header, so a prompt can be built again with
what was known then. What a server is not known to want is decided by what it sent: reasoning that came with tool calls
goes back with them, under the field it came in.
"""

from typing import Literal
from urllib.parse import urlsplit

SendsReasoning = Literal["never", "with_calls", "always"]
DIALECT = "chat_completions"
"""With calls: what most servers that think between tool calls want, and the others ignore."""
NEVER = "chat_completions-reasoning"
ALWAYS = "chat_completions+reasoning"
NO_IMAGES = "-images"
"""The end of a dialect's name when the model gets words in place of images."""
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Where servers put it. The first that holds text counts: some send the same text twice."""

_SENDS: dict[str, SendsReasoning] = {DIALECT: "with_calls", NEVER: "never", ALWAYS: "always"}
_NAMED: dict[SendsReasoning, str] = {how: name for name, how in _SENDS.items()}
_BY_HOST: dict[str, SendsReasoning] = {
    "api.openai.com": "never",
    "openai.azure.com": "never",
    "api.mistral.ai": "never",  # refuses fields it does not know
    "api.groq.com": "never",  # the same
    "api.deepseek.com": "with_calls",  # refuses a turn that goes on without it
    "api.moonshot.ai": "with_calls",
    "api.moonshot.cn": "with_calls",
    "openrouter.ai": "with_calls",
    "aliyuncs.com": "with_calls",
    "api.z.ai": "always",  # keeps its thinking over turns
    "bigmodel.cn": "always",
    "api.minimax.io": "always",
    "api.minimaxi.com": "always",
}


def sends_reasoning(dialect: str) -> SendsReasoning:
    """What a recorded dialect means. An unknown one is another version's, which is said elsewhere."""
    return _SENDS.get(dialect.removesuffix(NO_IMAGES), "with_calls")


def sends_images(dialect: str) -> bool:
    return not dialect.endswith(NO_IMAGES)


def dialect_of(
    base_url: str,
    chosen: Literal["auto"] | SendsReasoning,
    *,
    recorded: str | None = None,
    refused: bool = False,
    images: bool = True,
) -> str:
    """The dialect to speak: what the person chose, else what the server was seen to refuse, else what is known of it.

    `recorded` is the one the session spoke last: a refusal is not forgotten when a session is opened again. `images`
    is about the model to be asked and decided by the caller.
    """
    return _reasoning(base_url, chosen, recorded, refused) + ("" if images else NO_IMAGES)


def _reasoning(base_url: str, chosen: Literal["auto"] | SendsReasoning, recorded: str | None, refused: bool) -> str:
    if refused:
        return NEVER
    if chosen != "auto":
        return _NAMED[chosen]
    if recorded is not None and recorded.removesuffix(NO_IMAGES) == NEVER:
        return NEVER
    host = f".{urlsplit(base_url).hostname or ''}"
    return next((_NAMED[how] for known, how in _BY_HOST.items() if host.endswith(f".{known}")), DIALECT)
