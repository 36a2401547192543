"""The words of the permission flow: what is asked, how risky it is, how it was decided.

Rule: whatever is missing, late or nonsense is a deny. An input digest is opaque: a view echoes it, nobody reads it.
"""

from typing import Any, Literal

import msgspec

from enginehouse_protocol.ids import CallId, RequestId

JsonObject = dict[str, Any]

Risk = Literal["safe", "write", "dangerous", "critical"]
RISKS: tuple[Risk, ...] = ("safe", "write", "dangerous", "critical")
"""From harmless to irreversible; the index is the order."""

Verdict = Literal["allow", "ask", "deny"]
VERDICTS: tuple[Verdict, ...] = ("allow", "ask", "deny")
"""From loosest to strictest; the index is the order."""

ToolKind = Literal["read", "search", "edit", "execute", "fetch", "delegate", "other"]
"""What a tool does, whatever its vendor calls it. Rules name this, so they hold on every engine."""

DecidedBy = Literal["mode", "rule", "gate", "person", "expiry"]


class Allow(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allow", omit_defaults=True):
    """Run it. `input`, when given, is what runs instead of what was asked for."""

    input: JsonObject | None = None


class Deny(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="deny", omit_defaults=True):
    """Do not run it. The model sees `reason`."""

    reason: str


class Expired(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="expired", omit_defaults=True):
    """Nobody decided in time, or the turn ended first. To an engine the same as a deny."""

    reason: str


Decision = Allow | Deny | Expired


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's answer to one permission request.

    `digest` is echoed from the request. `always` also stores the rule the request offered for this project.
    """

    request_id: RequestId
    digest: str
    decision: Allow | Deny
    always: bool = False


class PendingRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A permission request that waits for a person, as a view needs it to draw a card."""

    session_id: str
    request_id: RequestId
    call_id: CallId
    kind: ToolKind
    title: str
    input: JsonObject
    risk: Risk
    reasons: tuple[str, ...]
    digest: str
    expires_at_ms: int
    always_rule: str | None = None
    """The rule "always" would store; None where it may not be offered."""


def strictest(first: Verdict, second: Verdict) -> Verdict:
    return VERDICTS[max(VERDICTS.index(first), VERDICTS.index(second))]


def riskier(first: Risk, second: Risk) -> Risk:
    return RISKS[max(RISKS.index(first), RISKS.index(second))]
