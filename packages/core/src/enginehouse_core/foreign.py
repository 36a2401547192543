"""Awaiting code that is not ours: adapters and plugins.

Rule: whatever it raises ends where it was called. A cancellation that nobody here asked for is one more way to fail:
let through, anyio would take it for ours and end everything around it, without a word.
"""

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


class StrayCancellation(Exception):
    """Foreign code was cancelled from inside, by something of its own."""

    def __init__(self) -> None:
        super().__init__("it was cancelled by something of its own")


async def call_foreign(call: Callable[[], Awaitable[T]]) -> T:
    """Await what `call` makes.

    Raises:
        StrayCancellation: it was cancelled, though not by us.
    """
    try:
        return await call()
    except anyio.get_cancelled_exc_class():
        if anyio.current_effective_deadline() == -math.inf:
            raise  # ours: a scope around us is cancelled
        raise StrayCancellation from None
