"""Calls the hooks of plugins.

Rule: each implementation is awaited by itself, under its own deadline, and its outcome collected whatever it was. What
a failure means is the caller's to say: for a gate *ask*, for everything else a notice.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, cast

import anyio
import pluggy

from enginehouse_core.foreign import call_foreign
from enginehouse_protocol.events import MessageUser, ToolUse
from enginehouse_protocol.hookspecs import (
    PROJECT_NAME,
    AddContext,
    BlockMessage,
    HookSpecs,
    SessionFacts,
    Tighten,
)
from enginehouse_protocol.permissions import Risk, Verdict

HOOK_DEADLINE_S = 30.0


class Outcome(NamedTuple):
    """What one implementation said. `problem` is set instead of `value` when it failed, hung or talked nonsense."""

    plugin: str
    value: Any
    problem: str = ""


class Hooks:
    """The registered plugins. Empty is the ordinary case and costs nothing."""

    def __init__(self, plugins: Sequence[object] = (), *, deadline_s: float = HOOK_DEADLINE_S) -> None:
        """Raises pluggy's PluginValidationError for an implementation that does not fit its specification."""
        self._deadline_s = deadline_s
        self._manager = pluggy.PluginManager(PROJECT_NAME)
        self._manager.add_hookspecs(HookSpecs)
        for plugin in plugins:
            self._manager.register(plugin)
        self._manager.check_pending()

    def before_send(self, session: SessionFacts, message: MessageUser) -> AsyncIterator[Outcome]:
        return self._outcomes(
            "session_before_send", (AddContext, BlockMessage), {"session": session, "message": message}
        )

    def gates(self, session: SessionFacts, use: ToolUse, verdict: Verdict, risk: Risk) -> AsyncIterator[Outcome]:
        arguments: dict[str, object] = {"session": session, "use": use, "verdict": verdict, "risk": risk}
        return self._outcomes("tool_gate", (Tighten,), arguments)

    async def _outcomes(
        self, hook: str, expected: tuple[type, ...], arguments: dict[str, object]
    ) -> AsyncIterator[Outcome]:
        for implementation in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            outcome = await self._call(implementation, expected, arguments)
            if outcome.problem or outcome.value is not None:
                yield outcome

    async def _call(
        self, implementation: pluggy.HookImpl, expected: tuple[type, ...], arguments: dict[str, object]
    ) -> Outcome:
        name = implementation.plugin_name
        try:
            with anyio.fail_after(self._deadline_s):
                call = cast("Callable[..., Awaitable[Any]]", implementation.function)
                given = [arguments[argument] for argument in implementation.argnames]
                value = await call_foreign(lambda: call(*given))
        except TimeoutError:
            return Outcome(name, None, f"no answer within {self._deadline_s:g} s")
        except Exception as error:  # noqa: BLE001 a plugin ends here, whatever it raised
            return Outcome(name, None, f"{type(error).__name__}: {error}")
        if value is not None and not isinstance(value, expected):
            return Outcome(name, None, f"answered {value!r}, which means nothing here")
        return Outcome(name, value)
