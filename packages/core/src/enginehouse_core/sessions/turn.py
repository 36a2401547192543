"""One turn, from the message that starts it to the event that ends it.

Rule: whatever happens inside, the turn ends: with `turn.completed` or `turn.failed`, nothing left open, nothing left
running. Interrupting is possible at every point, also while a hook thinks or the engine starts.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from enginehouse_core.sessions.port import Port
from enginehouse_protocol.content import Text
from enginehouse_protocol.engine import EngineSession, Turn, TurnEnd, TurnLimits
from enginehouse_protocol.errors import EngineError, TranscriptUnavailable
from enginehouse_protocol.events import (
    MessageQueued,
    MessageUser,
    MessageWithdrawn,
    Notice,
    Source,
    StopReason,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.hookspecs import AddContext, BlockMessage
from enginehouse_protocol.ids import TurnId, new_message_id, new_turn_id

if TYPE_CHECKING:
    from enginehouse_core.sessions.session import Session

_log = logging.getLogger(__name__)
_FAILURE_CHARACTERS = 300
_DEAF_S = 0.2


@dataclass
class TurnInHand:
    """The turn under way, as the session's verbs see it."""

    origin: str
    message: MessageQueued | None = None
    id: TurnId = field(default_factory=new_turn_id)
    interrupted: bool = False
    stop: StopReason = "interrupted"
    """What an interrupted turn is recorded as."""
    max_steps: int | None = None
    steps: int = 0
    preparing: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Around what is done before the engine runs: an interrupt simply cancels it."""
    running: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Around the engine's `run`: cancelled only when it missed the deadline of an interrupt."""
    engine_done: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)


@dataclass
class _Prepared:
    messages: tuple[MessageUser, ...] | None = None
    """What the turn starts with, once that is recorded."""
    blocked: bool = False
    engine: tuple[EngineSession, Port] | None = None
    error: EngineError | None = None


async def run_turn(session: "Session", turn: TurnInHand) -> None:
    """Play one turn of `session`.

    Raises:
        TranscriptUnavailable: the record refused. What could not be recorded did not happen.
    """
    prepared = _Prepared()
    with turn.preparing:
        await _prepare(session, turn, prepared)
    if prepared.blocked:
        return
    if (
        prepared.messages is None
    ):  # interrupted while a hook was still thinking: the message is in the record all the same
        prepared.messages = await _start(session, turn, [])
    outcome: TurnEnd | EngineError
    if turn.interrupted:
        outcome = TurnEnd(stop=turn.stop)
    elif prepared.error is not None:
        outcome = prepared.error
    else:
        assert prepared.engine is not None
        outcome = await _run_engine(session, turn, prepared.engine[0], prepared.messages)
    turn.engine_done.set()
    await _finish(session, turn, prepared.engine[1] if prepared.engine else None, outcome)


async def _prepare(session: "Session", turn: TurnInHand, prepared: _Prepared) -> None:
    contexts = await _hook_contexts(session, turn)
    if contexts is None:
        prepared.blocked = True
        return
    with anyio.CancelScope(shield=True):
        prepared.messages = await _start(session, turn, contexts)
    if warning := await session.before_turn():
        await session.record.put(Notice(level="warning", code="profile.invalid", text=warning), turn.id)
    try:
        await _require_directory(session)
        prepared.engine = await session.seat.take(session)
        session.flow.takes_edits = session.seat.abilities.edited_input
    except EngineError as error:
        prepared.error = error


async def _hook_contexts(session: "Session", turn: TurnInHand) -> list[str] | None:
    """What hooks want said before the message; None when one blocked it."""
    if turn.message is None:
        return []
    contexts: list[str] = []
    message = MessageUser(message_id=turn.message.message_id, content=turn.message.content, source=turn.message.source)
    async for outcome in session.hooks.before_send(session.facts(), message):
        match outcome.value:
            case AddContext(text=text):
                contexts.append(text)
            case BlockMessage(reason=reason):
                withdrawn = MessageWithdrawn(message_id=message.message_id, by="hook", reason=reason)
                await session.record.put_durably(withdrawn)
                return None
            case _:
                text = f"the hook of plugin {outcome.plugin} failed: {outcome.problem}"
                await session.record.put(Notice(level="warning", code="hook.failed", text=text))
    return contexts


async def _start(session: "Session", turn: TurnInHand, contexts: list[str]) -> tuple[MessageUser, ...]:
    """Record the turn's beginning and its messages, as one group."""
    messages: list[MessageUser] = []
    if (note := _interruption_note(session)) and turn.message:
        messages.append(_said(note, "interruption"))
    messages += [_said(text, "hook") for text in contexts]
    if turn.message:
        messages.append(
            MessageUser(message_id=turn.message.message_id, content=turn.message.content, source=turn.message.source)
        )
    ids = (turn.message.message_id,) if turn.message else ()
    await session.record.put(TurnStarted(origin=turn.origin, message_ids=ids), turn.id)
    for message in messages:
        await session.record.put(message, turn.id)
    return tuple(messages)


def _said(text: str, source: Source) -> MessageUser:
    return MessageUser(message_id=new_message_id(), content=(Text(text=text),), source=source)


def _interruption_note(session: "Session") -> str:
    """What the model is told of a turn that did not come to its end; empty when the last one did."""
    fold = session.record.fold
    match fold.last_end:
        case TurnCompleted(stop="interrupted"):
            why = "The person interrupted your previous turn."
        case TurnFailed(code="interrupted"):
            why = "Your previous turn was cut off: Enginehouse ended while it was under way."
        case TurnFailed(message=message):
            why = f"Your previous turn failed before it was finished: {' '.join(message.split())[:_FAILURE_CHARACTERS]}"
        case _:
            return ""
    if not fold.unfinished:
        return f"[{why}]"
    titles = "; ".join(use.title for use in fold.unfinished)
    return f"[{why} Not finished, or with an unknown outcome: {titles}. Nothing was undone.]"


async def _require_directory(session: "Session") -> None:
    directory = session.record.fold.directory
    if not await anyio.to_thread.run_sync(Path(directory).is_dir):
        raise EngineError(f"the directory {directory} of this session is gone", code="workspace.missing")


async def _run_engine(
    session: "Session", turn: TurnInHand, engine: EngineSession, messages: tuple[MessageUser, ...]
) -> TurnEnd | EngineError:
    """The engine's part. Whatever it raises, something comes back that can be recorded."""
    limits = TurnLimits(max_steps=turn.max_steps)
    outcome: TurnEnd | EngineError = TurnEnd(stop=turn.stop)
    try:
        with turn.running:
            outcome = await engine.run(Turn(id=turn.id, origin=turn.origin, messages=messages, limits=limits))
    except EngineError as error:
        outcome = error
    except Exception as error:  # the adapter ends here, whatever it raised
        if session.record.failure:
            raise TranscriptUnavailable(session.record.failure) from error
        _log.exception("engine %s broke its contract", session.record.fold.engine)
        session.seat.stale = True
        outcome = EngineError(f"the engine failed inside: {type(error).__name__}: {error}", code="engine.broken")
    if turn.running.cancelled_caught:
        session.seat.stale = True
        turn.engine_done.set()
        await session.seat.leave(within_s=_DEAF_S)
        text = "the engine did not answer the interrupt in time; it was ended and starts again with the next message"
        await session.record.put(Notice(level="warning", code="engine.unresponsive", text=text), turn.id)
    return TurnEnd(stop=turn.stop) if turn.interrupted else outcome


async def _finish(session: "Session", turn: TurnInHand, port: Port | None, outcome: TurnEnd | EngineError) -> None:
    session.flow.expire_all("the turn ended")
    session.questions.expire_all()
    if port is not None:
        left_open = await port.end_turn(turn.id, interrupted=turn.interrupted)
        if left_open and not turn.interrupted:
            _log.warning("engine %s left %d tool uses open", session.record.fold.engine, len(left_open))
    if isinstance(outcome, TurnEnd):
        await session.record.put_durably(TurnCompleted(stop=outcome.stop, detail=outcome.detail), turn.id)
        return
    failed = TurnFailed(
        code=outcome.code,
        message=str(outcome),
        http_status=outcome.http_status,
        retry_after_s=outcome.retry_after_s,
    )
    await session.record.put_durably(failed, turn.id)
