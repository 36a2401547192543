"""Claude, by the real `claude` program. `create` makes the engine.

Rule: importing this package costs nothing: the vendor's SDK is imported when a session opens.
"""

from enginehouse_engines.claude.engine import Claude
from enginehouse_protocol.engine import Engine, EngineHome


def create(home: EngineHome) -> Engine:
    """The factory the app calls."""
    return Claude(home)
