"""One turn, from the message that starts it to the event that ends it.

Rule: whatever happens inside, the turn ends: with `turn.completed` or `turn.failed`, nothing left open, nothing left
running. Interrupting is possible at every point, also while a hook thinks or the engine starts, and waits for nobody
beyond its deadline.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import anyio
import anyio.to_thread

from enginehouse_core.foreign import call_foreign
from enginehouse_core.sessions.seat import Occupant
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
from enginehouse_protocol.ids import MessageId, TurnId, new_message_id, new_turn_id

if TYPE_CHECKING:
    from enginehouse_core.sessions.session import Session

_log = logging.getLogger(__name__)
_FAILURE_CHARACTERS = 300
_TEXT_CHARACTERS = 4_000  # of a provider's or plugin's words in an event; they may send whole pages
_DEAF_S = 0.2
_SWEEP_S = 0.4


@dataclass
class TurnInHand:
    """The turn under way, as the session's verbs see it."""

    origin: str
    message_id: MessageId | None = None
    max_steps: int | None = None
    unattended: Literal["wait", "deny"] = "wait"
    id: TurnId = field(default_factory=new_turn_id)
    interrupted: bool = False
    stop: StopReason = "interrupted"
    """What an interrupted turn is recorded as."""
    steps: int = 0
    preparing: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Around what is done before the engine runs: an interrupt simply cancels it."""
    running: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Around the engine's `run`: cancelled when it missed the deadline of an interrupt, or its engine is gone."""
    settled: anyio.Event = field(default_factory=anyio.Event)
    """Nothing more is waited for: the engine's part is over, or given up."""
    over: anyio.Event = field(default_factory=anyio.Event)
    """The turn's end is recorded, or cannot be."""
    outcome: TurnEnd | EngineError | None = None
    """How the engine says it ended; None while it has not."""


async def run_turn(session: "Session", turn: TurnInHand) -> None:
    """Play one turn of `session`.

    Raises:
        TranscriptUnavailable: the record refused. What could not be recorded did not happen.
    """
    session.flow.begin_turn()
    prepared = _Prepared()
    session.tasks.start_soon(_prepare_aside, session, turn, prepared)
    await _first_of(prepared.done, turn.settled)
    if prepared.failure is not None:
        raise prepared.failure
    if prepared.dropped:
        return
    if prepared.messages is None:
        # Interrupted before its message was let through: that stays in the queue, unsaid.
        begun = TurnStarted(origin=turn.origin)
        await session.record.put_all([begun], turn.id, only_if=lambda: session.record.ahead.open_turn != turn.id)
    if prepared.engine is not None and prepared.messages is not None and not turn.interrupted:
        await _run_engine(session, turn, *prepared.engine, prepared.messages)
    turn.settled.set()
    outcome = turn.outcome or prepared.error or EngineError("the engine ended without a word", code="engine.broken")
    if turn.interrupted:
        outcome = TurnEnd(stop=turn.stop)
    await _finish(session, turn, prepared.engine[0] if prepared.engine else None, outcome)


@dataclass
class _Prepared:
    messages: tuple[MessageUser, ...] | None = None
    """What the turn starts with, once that is recorded."""
    dropped: bool = False
    """There is no turn: the message was blocked by a hook or withdrawn by its person."""
    engine: tuple[Occupant, EngineSession] | None = None
    error: EngineError | None = None
    failure: Exception | None = None
    """What stopped the preparation and is nobody's to answer here."""
    done: anyio.Event = field(default_factory=anyio.Event)


async def _first_of(first: anyio.Event, second: anyio.Event) -> None:
    async with anyio.create_task_group() as waiting:

        async def wait() -> None:
            await second.wait()
            waiting.cancel_scope.cancel()

        waiting.start_soon(wait)
        await first.wait()
        waiting.cancel_scope.cancel()


async def _prepare_aside(session: "Session", turn: TurnInHand, prepared: _Prepared) -> None:
    """As a task: what cannot be cancelled (a hook in a thread, a disk that hangs) must not hold up an interrupt."""
    try:
        with turn.preparing:
            await call_foreign(lambda: _prepare(session, turn, prepared))
    except Exception as error:  # noqa: BLE001 the turn raises it
        prepared.failure = error
    finally:
        prepared.done.set()


async def _prepare(session: "Session", turn: TurnInHand, prepared: _Prepared) -> None:
    while prepared.messages is None:
        message, contexts = None, list[str]()
        if turn.message_id is not None:
            passed = await _through_hooks(session, turn.message_id)
            if passed is None:
                prepared.dropped = True
                return
            message, contexts = passed
        with anyio.CancelScope(shield=True):
            prepared.messages = await _start(session, turn, message, contexts)
        if turn.interrupted:
            return
    session.showing.tell()
    if warning := await session.before_turn():
        await session.say(Notice(level="warning", code="profile.invalid", text=warning))
    try:
        await _require_directory(session)
        prepared.engine = await session.seat.take(session)
        session.flow.takes_edits = session.seat.abilities.edited_input
    except EngineError as error:
        prepared.error = error


async def _through_hooks(session: "Session", message_id: MessageId) -> tuple[MessageQueued, list[str]] | None:
    """The message as it is when every hook has let it through, and what they want said before it.

    None: a hook blocked it, or its person took it back. One that was edited meanwhile goes through all hooks again.
    """
    while (message := session.record.ahead.queue.get(message_id)) is not None:
        contexts = await _hook_contexts(session, message)
        if contexts is None:
            return None
        if session.record.ahead.queue.get(message_id) == message:
            return message, contexts
    return None


async def _hook_contexts(session: "Session", message: MessageQueued) -> list[str] | None:
    contexts: list[str] = []
    async for outcome in session.hooks.before_send(session.facts(), _delivered(message)):
        match outcome.value:
            case AddContext(text=text):
                contexts.append(text)
            case BlockMessage(reason=reason):
                withdrawn = MessageWithdrawn(message_id=message.message_id, by="hook", reason=_short(reason))
                with anyio.CancelScope(shield=True):
                    await session.record.put_durably(withdrawn)
                return None
            case _:
                text = _short(f"the hook of plugin {outcome.plugin} failed: {outcome.problem}")
                await session.say(Notice(level="warning", code="hook.failed", text=text))
    return contexts


async def _start(
    session: "Session", turn: TurnInHand, message: MessageQueued | None, contexts: list[str]
) -> tuple[MessageUser, ...] | None:
    """Record the turn's beginning and its messages, in one go. None: the message is no longer what it was."""
    messages: list[MessageUser] = []
    if message is not None:
        if note := _interruption_note(session):
            messages.append(_said(note, "interruption"))
        messages += [_said(text, "hook") for text in contexts]
        messages.append(_delivered(message))
    ids = (message.message_id,) if message is not None else ()

    def still_wanted() -> bool:
        queued = message is None or session.record.ahead.queue.get(message.message_id) == message
        return queued and not turn.interrupted

    begun = TurnStarted(origin=turn.origin, message_ids=ids)
    recorded = await session.record.put_all([begun, *messages], turn.id, only_if=still_wanted)
    return tuple(messages) if recorded else None


def _delivered(message: MessageQueued) -> MessageUser:
    return MessageUser(message_id=message.message_id, content=message.content, source=message.source)


def _said(text: str, source: Source) -> MessageUser:
    return MessageUser(message_id=new_message_id(), content=(Text(text=text),), source=source)


def _short(text: str, characters: int = _TEXT_CHARACTERS) -> str:
    return text if len(text) <= characters else f"{text[:characters]} […]"


def _interruption_note(session: "Session") -> str:
    """What the model is told of a turn that did not come to its end; empty when the last one did."""
    fold = session.record.ahead
    match fold.last_end:
        case TurnCompleted(stop="interrupted"):
            why = "The person interrupted your previous turn."
        case TurnFailed(code="interrupted"):
            why = "Your previous turn was cut off: Enginehouse ended while it was under way."
        case TurnFailed(message=message):
            why = f"Your previous turn failed before it was finished: {_short(message, _FAILURE_CHARACTERS)}"
        case _:
            return ""
    if not fold.unfinished:
        return f"[{why}]"
    titles = "; ".join(use.title for use in fold.unfinished)
    return f"[{why} Not finished, or with an unknown outcome: {titles}. Nothing was undone.]"


async def _require_directory(session: "Session") -> None:
    directory = session.record.fold.directory
    if not await anyio.to_thread.run_sync(Path(directory).is_dir, abandon_on_cancel=True):
        raise EngineError(f"the directory {directory} of this session is gone", code="workspace.missing")


async def _run_engine(
    session: "Session",
    turn: TurnInHand,
    occupant: Occupant,
    engine: EngineSession,
    messages: tuple[MessageUser, ...],
) -> None:
    """The engine's part, until it ends, its engine is gone, or an interrupt gives it up."""

    async def play() -> None:
        try:
            with turn.running:
                limits = TurnLimits(max_steps=turn.max_steps)
                given = Turn(id=turn.id, origin=turn.origin, messages=messages, limits=limits)
                turn.outcome = _checked(await call_foreign(lambda: engine.run(given)))
        except EngineError as error:
            turn.outcome = error
        except Exception as error:  # noqa: BLE001 the adapter ends here, whatever it raised
            if not session.record.failure and not turn.over.is_set():
                _log.exception("engine %s broke its contract", session.record.fold.engine)
                session.seat.stale = True
            text = f"the engine failed inside: {type(error).__name__}: {error}"
            turn.outcome = EngineError(text, code="engine.broken")
        finally:
            turn.settled.set()

    async def notice_its_death() -> None:
        await occupant.gone.wait()
        turn.outcome = turn.outcome or occupant.why_gone
        turn.settled.set()

    session.tasks.start_soon(play)
    async with anyio.create_task_group() as watching:
        watching.start_soon(notice_its_death)
        await turn.settled.wait()
        watching.cancel_scope.cancel()
    if session.record.failure:
        session.seat.dismiss(within_s=_DEAF_S)
        turn.running.cancel()
        raise TranscriptUnavailable(session.record.failure)
    if turn.outcome is None or occupant.gone.is_set():
        turn.running.cancel()
        session.seat.dismiss(within_s=_DEAF_S)
    if turn.outcome is None:
        text = "the engine did not answer the interrupt in time; it was ended and starts again with the next message"
        await session.say(Notice(level="warning", code="engine.unresponsive", text=text))


def _checked(end: TurnEnd) -> TurnEnd:
    given = cast(object, end)
    if not isinstance(given, TurnEnd):
        raise TypeError(f"run returned {given!r}, which is no TurnEnd")
    return given


async def _finish(
    session: "Session", turn: TurnInHand, occupant: Occupant | None, outcome: TurnEnd | EngineError
) -> None:
    session.flow.expire_all("the turn ended")
    session.questions.expire_all(turn.id)
    await session.flow.settle_all()
    await session.questions.settle_all()
    if turn.interrupted:
        with anyio.move_on_after(_SWEEP_S):  # what was started while the first sweep was under way
            await session.end_commands()
    if occupant is not None:
        left_open = await occupant.port.end_turn(turn.id, interrupted=turn.interrupted)
        if left_open and not turn.interrupted:
            _log.warning("engine %s left %d tool uses open", session.record.fold.engine, len(left_open))
    if isinstance(outcome, TurnEnd):
        await session.record.put_durably(TurnCompleted(stop=outcome.stop, detail=_short(outcome.detail)), turn.id)
        return
    failed = TurnFailed(
        code=outcome.code,
        message=_short(str(outcome)),
        http_status=outcome.http_status,
        retry_after_s=outcome.retry_after_s,
    )
    await session.record.put_durably(failed, turn.id)
