"""What an engine can do, as data. A screen offers only what stands here; nothing is assumed.

Rule: a field enters with the first code that reads it. Abilities that *do* something become
facets of `EngineSession`, never methods that refuse.
"""

import msgspec

from enginehouse_protocol.ids import EngineName
from enginehouse_protocol.permissions import JsonObject


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    context_window: int | None = None
    images: bool | None = None
    """Whether it takes images; None: nobody knows."""


class EngineAbilities(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds for an engine whoever's account it uses. Known without asking anybody: opening needs it at once."""

    edited_input: bool = False
    """Whether an edited tool input is what runs. Where False, core turns an edit into a deny that proposes it."""
    counts_steps: bool = False
    """Whether it keeps `TurnLimits.max_steps` itself. Where False, core interrupts."""
    native_resume: bool = False
    """Whether it has a store of its own that `Resume` can load. Where False, it reads the history."""
    images: bool = False
    """Whether a message may hold images. Where False, core refuses one that does."""


class EngineDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Found by asking the engine, never by knowing its name."""

    name: EngineName
    title: str
    """For people: `OpenAI-compatible model`."""
    version: str
    problem: str | None = None
    """Why it cannot be used now and what to do; None when it can."""
    models: tuple[ModelInfo, ...] = ()
    efforts: tuple[str, ...] = ()
    abilities: EngineAbilities = EngineAbilities()
    options_schema: JsonObject = {}
    """JSON Schema of the provider profile's `options`."""
