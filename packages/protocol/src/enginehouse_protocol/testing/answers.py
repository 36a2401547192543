"""Who answers what a `RecordingPort` is asked: the person of a test, as a function.

Rule: an answer depends on the use or question alone; a test that wants another one replaces the function.
"""

from collections.abc import Awaitable, Callable

import anyio

from enginehouse_protocol.events import QuestionAsked, ToolUse
from enginehouse_protocol.permissions import Allow, Decision, Deny, Expired

AskPolicy = Callable[[ToolUse], Awaitable[Decision]]
QuestionPolicy = Callable[[QuestionAsked], Awaitable[tuple[str, ...] | None]]


async def allow(_use: ToolUse) -> Decision:
    return Allow()


async def never(_use: ToolUse) -> Decision:
    """Nobody answers: only `expire_pending` or a cancel ends the ask."""
    await anyio.sleep_forever()
    return Expired(reason="nobody answered")


def deny(reason: str) -> AskPolicy:
    async def policy(_use: ToolUse) -> Decision:
        return Deny(reason=reason)

    return policy


def edit(**changed: object) -> AskPolicy:
    """Allow with these fields of the input replaced."""

    async def policy(use: ToolUse) -> Decision:
        return Allow(input=use.input | changed)

    return policy


async def first_option(question: QuestionAsked) -> tuple[str, ...] | None:
    return (question.options[0].label,) if question.options else ("yes",)


async def no_answer(_question: QuestionAsked) -> tuple[str, ...] | None:
    return None
