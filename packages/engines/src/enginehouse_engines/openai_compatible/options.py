"""What a provider's profile may say to this engine.

Rule: every field has a default that works with any Chat Completions server; an unknown field is an error, not a wish.
"""

from typing import Annotated

import msgspec

from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.permissions import JsonObject

OURS = frozenset({"model", "messages", "tools", "stream", "stream_options", "reasoning_effort", "n"})
"""Fields of the request body that the engine fills itself."""
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    connect_timeout_s: Annotated[Seconds, msgspec.Meta(description="how long connecting may take")] = 10.0
    idle_timeout_s: Annotated[
        Seconds, msgspec.Meta(description="how long the server may send nothing, the first byte included")
    ] = 120.0
    ask_usage: Annotated[
        bool, msgspec.Meta(description="whether to ask for token counts; false for servers that refuse the field")
    ] = True
    request: Annotated[
        JsonObject, msgspec.Meta(description="further fields of the request body, for example temperature")
    ] = {}


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
    if taken := sorted(OURS & options.request.keys()):
        raise EngineError(
            f"the options of provider {provider.name!r} are wrong: `request` may not set {', '.join(taken)}",
            code="engine.options_invalid",
        )
    return options


def options_schema() -> JsonObject:
    """JSON Schema of the options, without references."""
    schema = msgspec.json.schema(Options)
    return schema["$defs"]["Options"]
