"""`settings.toml`: what one person wants unless a command line or the environment says otherwise.

Rule: every key is optional, and an absent one says nothing.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from enginehouse_core.profile.defaults import EXPIRES_AFTER_S, MODES, Defaults, parse_mode
from enginehouse_core.profile.document import Document, Section, read_document
from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.settings import Mode, SessionSettings


def _mode(value: Any) -> Any:
    return parse_mode(value) if isinstance(value, str) else value


WrittenMode = Annotated[
    Mode,
    BeforeValidator(_mode),
    WithJsonSchema({"enum": sorted({*MODES, *(mode.replace("_", "-") for mode in MODES)}), "type": "string"}),
]
"""A mode in the spelling of the command line (`accept-edits`) or of the protocol (`accept_edits`)."""

Text = Annotated[str, Field(min_length=1)]


class PermissionSettings(Section):
    """How permission requests are treated."""

    expires_after_s: int = Field(
        default=EXPIRES_AFTER_S,
        ge=1,
        description="Seconds a request waits for an answer before it counts as a deny.",
    )


class TurnSettings(Section):
    """Limits of one turn."""

    max_steps: int | None = Field(default=None, ge=1, description="Model calls in one turn; without it no limit.")


class Settings(Document):
    """Settings of Enginehouse for one person."""

    engine: Text | None = Field(default=None, description="The engine a new session gets.")
    provider: Text | None = Field(
        default=None, description="The provider of a new session: the name of a file in providers/."
    )
    model: Text | None = Field(default=None, description="The model a new session gets.")
    effort: Text | None = Field(default=None, description="How hard the model thinks, in the engine's own words.")
    mode: WrittenMode | None = Field(default=None, description="How much happens without asking.")
    permissions: PermissionSettings = PermissionSettings()
    turns: TurnSettings = TurnSettings()

    def as_defaults(self) -> Defaults:
        return Defaults(
            engine=self.engine,
            provider=self.provider,
            session=SessionSettings(model=self.model, effort=self.effort, mode=self.mode),
            expires_after_s=self.permissions.expires_after_s,
            max_steps=self.turns.max_steps,
        )


def read_settings(folders: Folders) -> Settings:
    """The profile's settings, all unset without a file. Raises `ProfileInvalid`. Blocks."""
    return read_document(folders.settings, Settings) or Settings()
