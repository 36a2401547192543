"""Model, effort and mode while the CLI runs.

Rule: what cannot be had is refused before anything is changed. The CLI's own modes gate nothing, core does: only `plan`
is told to it, because planning exists there as a mode.
"""

from typing import Any, Final, cast

from enginehouse_engines.claude.stream import Stream
from enginehouse_protocol.capabilities import ModelInfo
from enginehouse_protocol.engine import Applied
from enginehouse_protocol.errors import EngineError, EngineExited, SettingRefused
from enginehouse_protocol.permissions import JsonObject
from enginehouse_protocol.settings import SessionSettings

_ANSWER_S: Final = 5.0


class Settings:
    """What one session is set to, and how its CLI is told."""

    def __init__(self, current: SessionSettings) -> None:
        self.current = current
        self._efforts: tuple[str, ...] = ()

    def offered(self, offers: JsonObject) -> None:
        """Take note of what the CLI answered when it was connected."""
        self._efforts = efforts_of(offers)

    async def apply(self, change: SessionSettings, stream: Stream | None) -> Applied:
        """`stream` None: nothing runs, and the next life begins with the new settings."""
        if change.model is not None and not change.model.strip():
            raise SettingRefused("a model needs a name")
        if change.effort is not None and self._efforts and change.effort not in self._efforts:
            raise SettingRefused(f"claude has no effort {change.effort!r}; it has: {', '.join(self._efforts)}")
        before = self.current
        taken_back = (before.model and change.model is None) or (before.effort and change.effort is None)
        if stream is None or taken_back:
            self.current = change
            return "reopen" if taken_back and stream is not None else "now"
        try:
            await self._tell(before, change, stream)
        except EngineExited:
            pass  # the next life begins with the new settings
        except EngineError as error:
            raise SettingRefused(str(error)) from error
        self.current = change
        return "now"

    async def _tell(self, before: SessionSettings, change: SessionSettings, stream: Stream) -> None:
        if change.model is not None and change.model != before.model:
            await stream.request("set_model", deadline_s=_ANSWER_S, model=change.model)
        if change.effort is not None and change.effort != before.effort:
            effort = {"effortLevel": change.effort}
            await stream.request("apply_flag_settings", deadline_s=_ANSWER_S, settings=effort)
        if (change.mode == "plan") != (before.mode == "plan"):
            mode = "plan" if change.mode == "plan" else "default"
            await stream.request("set_permission_mode", deadline_s=_ANSWER_S, mode=mode)


def models_of(offers: JsonObject) -> tuple[ModelInfo, ...]:
    """What can be chosen, without the CLI's own word for "whatever is best"."""
    names = [str(each.get("value", "")) for each in _models(offers)]
    return tuple(ModelInfo(name=name) for name in dict.fromkeys(names) if name not in ("", "default"))


def efforts_of(offers: JsonObject) -> tuple[str, ...]:
    """Every effort that some model has, from little to much."""
    levels = [level for each in _models(offers) for level in cast("list[str]", each.get("supportedEffortLevels") or [])]
    return tuple(dict.fromkeys(levels))


def _models(offers: JsonObject) -> list[dict[str, Any]]:
    models = offers.get("models")
    return cast("list[dict[str, Any]]", models) if isinstance(models, list) else []
