"""The rehearsal engine: plays a script, offline, with real tools and no model. Start with `engine`."""

from enginehouse_engines.rehearsal.engine import RehearsalEngine, create

__all__ = ["RehearsalEngine", "create"]
