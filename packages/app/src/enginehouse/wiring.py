"""The one place that knows which engines there are and puts them, core and hosts together.

Rule: an engine's module is imported when the engine is wanted, not before.
"""

from collections.abc import Mapping

from enginehouse_core.hub import Hub
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.engine_room import EngineFactory
from enginehouse_protocol.engine import Engine, EngineHome
from enginehouse_protocol.ids import EngineName


def _claude(home: EngineHome) -> Engine:
    from enginehouse_engines.claude import create

    return create(home)


def _openai_compatible(home: EngineHome) -> Engine:
    from enginehouse_engines.openai_compatible import create

    return create(home)


def _rehearsal(home: EngineHome) -> Engine:
    from enginehouse_engines.rehearsal import create

    return create(home)


FACTORIES: Mapping[EngineName, EngineFactory] = {
    EngineName("openai_compatible"): _openai_compatible,
    EngineName("claude"): _claude,
    EngineName("rehearsal"): _rehearsal,
}


FIRST_TURN = (
    "enginehouse_engines.openai_compatible",
    "enginehouse_engines.openai_compatible.client",
    "enginehouse_engines.openai_compatible.session",
    "httpcore2",  # which the client imports when it is made
)
"""The modules whose import the first turn on the default engine would wait for. Of other engines none: whoever does not
use them does not pay for them."""


def hub_of(folders: Folders, what: str) -> Hub:
    """The hub in this process. Entering it takes the profile's lock; `what` is what others are told that has it."""
    return Hub(folders=folders, factories=FACTORIES, what=what)
