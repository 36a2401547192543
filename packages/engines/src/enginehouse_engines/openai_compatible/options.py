"""What a provider's profile may say to this engine.

Rule: every field has a default that works with any Chat Completions server; an unknown field is an error, not a wish.
"""

from typing import Annotated, Literal

import msgspec

from enginehouse_engines.openai_compatible.provider_options import ProviderOptions, without_references
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.permissions import JsonObject

OURS = frozenset({"model", "messages", "tools", "stream", "stream_options", "reasoning_effort", "n"})
"""Fields of the request body that the engine fills itself."""
CONNECT_S = 10.0
FIRST_BYTE_S = 300.0
"""A local server reads the whole prompt before it says its first word; that may take minutes."""
IDLE_S = 120.0
TOTAL_S = 3600.0
MAX_RETRIES = 6
RETRY_WAIT_S = 0.5
MAX_RETRY_WAIT_S = 120.0
"""Longer than every limit that counts by the minute; who asks for more wants the person to know."""
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Options(ProviderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    connect_timeout_s: Annotated[Seconds, msgspec.Meta(description="how long connecting may take")] = CONNECT_S
    first_byte_timeout_s: Annotated[
        Seconds, msgspec.Meta(description="how long the server may take until the first byte of its answer")
    ] = FIRST_BYTE_S
    idle_timeout_s: Annotated[
        Seconds, msgspec.Meta(description="how long an answer may stand still; keep-alive comments count as a sign")
    ] = IDLE_S
    total_timeout_s: Annotated[Seconds, msgspec.Meta(description="how long one answer may take in all")] = TOTAL_S
    max_retries: Annotated[
        int, msgspec.Meta(ge=0, le=20, description="how often one request may be sent again in all; 0: never")
    ] = MAX_RETRIES
    retry_wait_s: Annotated[
        Seconds, msgspec.Meta(description="the wait before the first retry; it doubles with each, up to 30 s")
    ] = RETRY_WAIT_S
    max_retry_wait_s: Annotated[
        Seconds, msgspec.Meta(description="the longest wait a server may ask for; beyond it the turn fails and says so")
    ] = MAX_RETRY_WAIT_S
    ask_usage: Annotated[
        bool, msgspec.Meta(description="whether to ask for token counts; false for servers that refuse the field")
    ] = True
    send_reasoning: Annotated[
        Literal["auto", "never", "with_calls", "always"],
        msgspec.Meta(
            description="which replies go back with the reasoning they came with, under the field it came in; "
            "auto: what is known of this server, else those with tool calls"
        ),
    ] = "auto"
    request: Annotated[
        JsonObject, msgspec.Meta(description="further fields of the request body, for example temperature")
    ] = {}  # noqa: RUF012 msgspec makes a new one each time


def options_of(provider: Provider | None) -> Options:
    """The provider's options.

    Raises:
        EngineError: they are not what the schema says.
    """
    if provider is None:
        return Options()
    try:
        options = msgspec.convert(provider.options, Options)
    except msgspec.ValidationError as error:
        raise EngineError(
            f"the options of provider {provider.name!r} are wrong: {error}", code="engine.options_invalid"
        ) from error
    if (problem := options.header_problem()) is not None:
        raise EngineError(
            f"the options of provider {provider.name!r} are wrong: {problem}", code="engine.options_invalid"
        )
    if taken := sorted(OURS & options.request.keys()):
        raise EngineError(
            f"the options of provider {provider.name!r} are wrong: `request` may not set {', '.join(taken)}",
            code="engine.options_invalid",
        )
    return options


def options_schema() -> JsonObject:
    """JSON Schema of the options, without references."""
    return without_references(msgspec.json.schema(Options))
