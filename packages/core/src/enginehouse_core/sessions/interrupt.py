"""Interrupting a turn: what is pending expires, the engine is told, commands end, all within one deadline.

Rule: it waits for nobody beyond that deadline, and whoever asked for it may go away meanwhile.
"""

from typing import TYPE_CHECKING

import anyio

from enginehouse_core.sessions.turn import TurnInHand
from enginehouse_protocol.events import StopReason

if TYPE_CHECKING:
    from enginehouse_core.sessions.session import Session

INTERRUPT_S = 1.5
"""The common deadline for the engine's answer to an interrupt and for ending commands."""


def begin_interrupt(session: "Session", turn: TurnInHand, stop: StopReason = "interrupted") -> None:
    """Idempotent. `turn.over` is set once the session is idle."""
    if stop == "interrupted" and (session.queue or session.wants_turn):
        session.queue.hold()  # idle means: nothing waits, or it is visibly held
    if turn.interrupted:
        return
    turn.interrupted, turn.stop = True, stop
    session.flow.expire_all("the turn was interrupted")
    session.questions.expire_all(turn.id)
    turn.preparing.cancel()
    session.tasks.start_soon(_interrupt, session, turn)


async def _interrupt(session: "Session", turn: TurnInHand) -> None:
    session.tasks.start_soon(_give_up, turn)
    async with anyio.create_task_group() as ending:
        ending.start_soon(session.end_commands)
        ending.start_soon(session.seat.interrupt, turn.id)
        await turn.settled.wait()
        ending.cancel_scope.cancel()


async def _give_up(turn: TurnInHand) -> None:
    """At the deadline, whatever those who were told are still doing."""
    with anyio.move_on_after(INTERRUPT_S):
        await turn.settled.wait()
    turn.settled.set()
    turn.running.cancel()
