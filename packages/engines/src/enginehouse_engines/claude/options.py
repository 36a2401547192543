"""The words of a provider profile for this engine, and what they are when nobody says anything.

Rule: what is unknown here is refused with its name. By default Claude is the person's own: their login, their settings,
their folder.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.permissions import JsonObject


@dataclass(frozen=True, kw_only=True)
class Options:
    executable: str = ""
    """Path of a `claude` to use; empty: the one that comes with the SDK."""
    isolated: bool = False
    """Keep this provider's sessions and settings in a folder of the profile, apart from the person's own Claude."""
    project_settings: bool = False
    """Also load what the project says (`.claude/settings.json`, `CLAUDE.md`, hooks): only for a project you trust."""
    max_retries: int | None = None
    """How often Claude repeats a failed request; None: as often as it thinks right."""


_DESCRIPTIONS: Final = {
    "executable": "Path of a `claude` to use instead of the one that comes with the SDK.",
    "isolated": "Keep sessions, settings and login of this provider apart from the person's own Claude.",
    "project_settings": "Also load the project's own settings, memory and hooks. Only for projects you trust.",
    "max_retries": "How often a failed request is repeated.",
}
_TYPES: Final = {
    "executable": {"type": "string"},
    "isolated": {"type": "boolean"},
    "project_settings": {"type": "boolean"},
    "max_retries": {"type": "integer", "minimum": 0},
}


def options_schema() -> JsonObject:
    """JSON Schema of the provider's `options`."""
    properties = {name: {**kind, "description": _DESCRIPTIONS[name]} for name, kind in _TYPES.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def options_of(provider: Provider | None) -> Options:
    """Raises `EngineError` for an option there is not, or one of another type."""
    given: dict[str, Any] = dict(provider.options) if provider is not None else {}
    name = provider.name if provider is not None else ""
    known = {field.name for field in fields(Options)}
    if unknown := sorted(set(given) - known):
        raise _wrong(name, f"has unknown options: {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    for option, value in given.items():
        wanted = {"string": str, "boolean": bool, "integer": int}[str(_TYPES[option]["type"])]
        if not isinstance(value, wanted) or (wanted is int and (isinstance(value, bool) or value < 0)):
            raise _wrong(name, f"option {option}: {value!r} is no {_TYPES[option]['type']}")
    if given.get("executable") and not Path(given["executable"]).is_absolute():
        raise _wrong(name, "option executable: it must be an absolute path")
    return Options(**given)


def _wrong(name: str, problem: str) -> EngineError:
    return EngineError(f"provider {name!r} {problem}", code="provider.bad_options")
