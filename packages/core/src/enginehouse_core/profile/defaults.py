"""What a run starts from when the command line says nothing: the environment, then `settings.toml`.

Rule: None means "nothing was said" and stays None; no default is made up here that an engine could take for a
choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.errors import UsageError
from enginehouse_protocol.settings import Mode, SessionSettings

MODES: tuple[Mode, ...] = ("plan", "default", "accept_edits", "yolo")
EXPIRES_AFTER_S = 86_400
"""How long a permission request waits for an answer: a day, so that an evening's question is there in the
morning."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    engine: str | None = None
    provider: str | None = None
    session: SessionSettings = field(default_factory=SessionSettings)
    expires_after_s: int = EXPIRES_AFTER_S
    max_steps: int | None = None


def parse_mode(text: str) -> Mode:
    """The mode a person wrote, as `accept-edits` or `accept_edits`. Raises `ValueError` naming those there
    are."""
    mode = text.replace("-", "_")
    if mode not in MODES:
        raise ValueError(f"must be one of {', '.join(each.replace('_', '-') for each in MODES)}, not {text!r}")
    return mode


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # reading it will say what is the matter
    return True


def defaults(folders: Folders, environment: Mapping[str, str]) -> Defaults:
    """`ENGINEHOUSE_ENGINE|_MODEL|_EFFORT|_MODE`, else the profile's settings. An empty one says nothing.

    Blocks.

    Raises:
        UsageError: `ENGINEHOUSE_MODE` is no mode.
        ProfileInvalid: `settings.toml` cannot be understood.
    """
    base = Defaults()
    if _is_there(folders.settings):
        from enginehouse_core.profile.settings import (
            read_settings,  # pydantic, for those who have such a file
        )

        base = read_settings(folders).as_defaults()
    mode: Mode | None = None
    if text := environment.get("ENGINEHOUSE_MODE"):
        try:
            mode = parse_mode(text)
        except ValueError as error:
            raise UsageError(f"ENGINEHOUSE_MODE {error}") from error
    said = SessionSettings(
        model=environment.get("ENGINEHOUSE_MODEL") or None,
        effort=environment.get("ENGINEHOUSE_EFFORT") or None,
        mode=mode,
    )
    return Defaults(
        engine=environment.get("ENGINEHOUSE_ENGINE") or base.engine,
        provider=base.provider,
        session=base.session.updated(said),
        expires_after_s=base.expires_after_s,
        max_steps=base.max_steps,
    )
