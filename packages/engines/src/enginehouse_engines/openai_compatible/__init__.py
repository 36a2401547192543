"""Any model behind a Chat Completions server, with tools of our own.

Rule: importing this is cheap. What is heavy is imported when the engine is entered.
"""

from enginehouse_engines.openai_compatible.engine import NAME, OpenAICompatible
from enginehouse_protocol.engine import Engine, EngineHome

__all__ = ["NAME", "create"]


def create(home: EngineHome) -> Engine:
    """The factory the app registers under `NAME`."""
    return OpenAICompatible(home)
