"""What a session is set to: model, effort, mode. `None` always means "nothing was said", never a default."""

from typing import Literal

import msgspec

Mode = Literal["plan", "default", "accept_edits", "yolo"]
"""How much happens unasked; see the matrix in docs/architecture.md, section 7."""


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model: str | None = None
    effort: str | None = None
    mode: Mode | None = None

    def updated(self, change: "SessionSettings") -> "SessionSettings":
        """These settings with everything `change` says laid over them."""
        return SessionSettings(
            model=self.model if change.model is None else change.model,
            effort=self.effort if change.effort is None else change.effort,
            mode=self.mode if change.mode is None else change.mode,
        )
