"""What a provider's file may say about the server itself: which one it is, how it is reached, what its models can do.

Rule: every field is optional; what is not said is known of the server, or unknown.
"""

import re
from typing import Annotated, Any, cast

import msgspec

from enginehouse_engines.openai_compatible.effort_forms import EffortForm, effort_fields
from enginehouse_engines.openai_compatible.known_providers import (
    KNOWN,
    KnownProvider,
    ModelFacts,
    Usage,
    facts_of,
    recognised,
)
from enginehouse_protocol.permissions import JsonObject

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS = frozenset({"authorization", "host", "content-length", "content-type", "accept", "accept-encoding", "cookie"})


class ProviderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: Annotated[
        Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(KNOWN)})$")] | None,
        msgspec.Meta(description=f"which server it is, where the address does not tell: {', '.join(KNOWN)}"),
    ] = None
    effort_form: Annotated[
        EffortForm | None,
        msgspec.Meta(description="in which fields the effort is sent; without it what is known of this server"),
    ] = None
    headers: Annotated[
        dict[str, str], msgspec.Meta(description="further HTTP headers; a key does not belong here")
    ] = {}
    proxy: Annotated[
        Annotated[str, msgspec.Meta(pattern="^https?://")] | None,
        msgspec.Meta(description="the proxy to use; without it HTTPS_PROXY counts"),
    ] = None
    ca_file: Annotated[
        Annotated[str, msgspec.Meta(pattern="^/")] | None,
        msgspec.Meta(description="certificates to trust besides the machine's own: the path of a PEM file"),
    ] = None
    models: Annotated[
        dict[str, ModelFacts],
        msgspec.Meta(description="what is known of a model: context_window, output_reserve, images, price"),
    ] = {}

    def known(self, base_url: str) -> KnownProvider | None:
        return recognised(base_url, self.server)

    def effort(self, base_url: str, effort: str | None) -> JsonObject:
        """The fields of a request that ask for this effort."""
        known = self.known(base_url)
        return effort_fields(self.effort_form or (known.effort if known else "reasoning_effort"), effort)

    def efforts(self, base_url: str) -> tuple[str, ...] | None:
        """The words to offer; None: nothing is known of this server."""
        known = self.known(base_url)
        return known.efforts if known else None

    def usage(self, base_url: str) -> Usage:
        known = self.known(base_url)
        return known.usage if known else "unknown"

    def facts(self, base_url: str, model: str) -> ModelFacts:
        return facts_of(self.known(base_url), model, self.models.get(model))

    def header_problem(self) -> str | None:
        """What is wrong with `headers`, without their values."""
        for name, value in self.headers.items():
            if _HEADER_NAME.fullmatch(name) is None or not value.isascii() or not value.isprintable():
                return f"the header {name!r} has characters no header can have"
            if name.lower() in _OURS:
                return f"the header {name!r} is not the person's to set"
        return None


def without_references(schema: JsonObject) -> JsonObject:
    """The definition of `Options` with every reference in it replaced by what it names. None of ours is recursive."""
    definitions: JsonObject = schema["$defs"]

    def resolved(value: Any) -> Any:
        match value:
            case {"$ref": str(name), **beside}:
                return {**resolved(definitions[name.rpartition("/")[2]]), **beside}
            case dict():
                return {key: resolved(item) for key, item in cast(JsonObject, value).items()}
            case list():
                return [resolved(item) for item in cast(list[Any], value)]
            case _:
                return value

    return resolved(definitions["Options"])
