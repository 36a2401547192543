"""Every hook there is. A plugin implements any of them with `@hookimpl`.

Rule: core awaits each implementation by itself, one by one, under its own deadline, and collects every outcome. A gate
that fails, hangs or talks nonsense counts as *ask*; any other failure is a notice. A gate can tighten, never loosen.
"""

from typing import Literal

import msgspec
import pluggy

from enginehouse_protocol.events import MessageUser, ToolUse
from enginehouse_protocol.ids import EngineName, SessionId
from enginehouse_protocol.permissions import Risk, Verdict
from enginehouse_protocol.settings import Mode

PROJECT_NAME = "enginehouse"
hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook may know about the session it is called for."""

    session_id: SessionId
    engine: EngineName
    directory: str
    mode: Mode


class AddContext(msgspec.Struct, frozen=True, kw_only=True):
    """Let the message go, with this text before it, as a message of source `hook`."""

    text: str


class BlockMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Do not let it go: it is withdrawn and the person reads `reason`."""

    reason: str


class Tighten(msgspec.Struct, frozen=True, kw_only=True):
    """Make the verdict at least this strict. `reason` is shown to the person, or to the model with a deny."""

    verdict: Literal["ask", "deny"]
    reason: str


class HookSpecs:
    """The specifications pluggy validates implementations against."""

    @hookspec
    async def session_before_send(
        self, session: SessionFacts, message: MessageUser
    ) -> AddContext | BlockMessage | None:
        """A message is about to leave the queue and start a turn. None: no opinion."""
        ...

    @hookspec
    async def tool_gate(self, session: SessionFacts, use: ToolUse, verdict: Verdict, risk: Risk) -> Tighten | None:
        """A tool use was judged and is about to be allowed or asked. None: no opinion."""
        ...
