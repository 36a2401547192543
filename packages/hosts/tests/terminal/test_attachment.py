"""Looking at a session: how much of it is shown, how looking ends, and that nothing is changed by it."""

import os
import signal

import anyio
import pytest
from terminal.desk import Desk, DeskHub, S, info, live
from terminal.test_conversation import ASK, ENDED, HELLO, REQUEST, STARTED, USE

from enginehouse_hosts.terminal.attachment import Attachment
from enginehouse_hosts.terminal.json_lines import JsonLines
from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.errors import ConnectionLost, EnginehouseError
from enginehouse_protocol.events import Body, LiveState, SessionClosed, SessionStateChanged, ToolResult
from enginehouse_protocol.hub import AnswerPermission, Attach
from enginehouse_protocol.ids import CallId
from enginehouse_protocol.permissions import Allow

pytestmark = pytest.mark.anyio

CLOSED = SessionClosed()
RESULT = ToolResult(call_id=CallId("c_1"), status="ok")


async def watched(
    hub: DeskHub, desk: Desk, *, last_seq: int = 0, after: int | None = None, as_json: bool = False
) -> int:
    styles = Styles(coloured=False)
    presenter = JsonLines(desk.streams) if as_json else Printer(desk.streams, styles=styles, recorded=True)
    attachment = Attachment(hub.api, desk.streams, presenter, styles=styles, environment={})
    with anyio.fail_after(10):
        return await attachment.watch(info(last_seq), after, for_person=not as_json)


def recorded(*bodies: Body) -> DeskHub:
    hub = DeskHub()
    hub.happens_unseen(*bodies)
    hub.happens(CLOSED)
    return hub


@pytest.mark.parametrize(
    "bodies,after,said",
    [
        ((STARTED, HELLO, ENDED), 0, ""),
        ((STARTED, HELLO, ENDED) * 30, 0, ""),
        ((STARTED, HELLO, ENDED) * 31, 3, "(3 earlier events are not shown here; "),
        ((STARTED, HELLO, ENDED) * 500, 1410, "(1410 earlier events are not shown here; "),
        ((STARTED, *(USE, RESULT) * 8, ENDED) * 30, 342, "(342 earlier events are not shown here; "),
        ((STARTED, *(USE, RESULT) * 300), 401, "(401 earlier events are not shown here; "),
        ((STARTED, HELLO, *(USE, RESULT) * 100, ENDED, STARTED, HELLO, ENDED), 6, "(6 earlier events are not"),
        ((STARTED, *(USE, RESULT) * 100), 1, "(1 earlier event is not shown here; "),
    ],
    ids=["short", "30 turns", "31 turns", "500 turns", "long turns", "one very long turn", "a long one, a short", "1"],
)
async def test_the_last_of_a_conversation_is_shown_and_the_cut_is_told(
    piped: Desk, bodies: tuple[Body, ...], after: int, said: str
) -> None:
    hub = recorded(*bodies)
    assert await watched(hub, piped, last_seq=len(bodies)) == 0
    assert hub.asked == [Attach(session_id=S, after=after, can_answer=False)]
    shown = piped.err()
    assert said in shown
    assert (f"`enginehouse sessions show {S}` shows all" in shown) is bool(said)


async def test_where_to_begin_can_be_said(piped: Desk) -> None:
    hub = recorded(*(STARTED, HELLO, ENDED) * 500)
    assert await watched(hub, piped, last_seq=1500, after=7) == 0
    assert hub.asked == [Attach(session_id=S, after=7, can_answer=False)]


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_signal_detaches_and_asks_the_hub_for_nothing(piped: Desk, number: signal.Signals, code: int) -> None:
    hub = DeskHub()
    hub.on_attach = lambda: (hub.happens(STARTED), os.kill(os.getpid(), number))[0]
    try:
        assert await watched(hub, piped) == code
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert [type(call) for call in hub.asked] == [Attach]
    assert ("detached; the session goes on" in piped.err()) is (number == signal.SIGINT)


@pytest.mark.parametrize(
    "last,code,said",
    [
        (CLOSED, 0, "the session is closed"),
        (SessionStateChanged(state="closed"), 0, ""),
        (None, 1, "the hub ended, or the session was deleted"),
        (ConnectionLost("it was stopped"), 1, f"it was stopped; `enginehouse sessions attach {S}` comes back"),
    ],
)
async def test_looking_ends_with_the_session_or_with_its_hub(
    piped: Desk, last: Body | EnginehouseError | None, code: int, said: str
) -> None:
    hub = DeskHub()
    hub.happens(STARTED, HELLO, ENDED)
    if isinstance(last, Body):
        hub.happens(last)
    else:
        hub.ends(last)
    assert await watched(hub, piped) == code
    shown = piped.err()
    assert said in shown
    assert "detached" not in shown


async def test_a_closed_session_is_not_waited_for(piped: Desk) -> None:
    hub = DeskHub()
    hub.first = LiveState(seq=5, state=SessionStateChanged(state="closed"))
    assert await watched(hub, piped, last_seq=5, after=5) == 0


async def test_what_a_person_can_do_about_a_held_queue_is_told_once(piped: Desk) -> None:
    hub = DeskHub()
    hub.first = live(held=True)
    held = SessionStateChanged(state="idle", queued=2, held=True)
    hub.happens(held, STARTED, held, SessionStateChanged(state="idle", read_only="no space\x1b[2J"), CLOSED)
    assert await watched(hub, piped) == 0
    shown = piped.err()
    assert shown.count(f"`enginehouse sessions queue resume {S}`") == 1
    assert "no space␛[2J" in shown


async def test_a_person_who_looks_is_asked(terminal: Desk) -> None:
    hub = DeskHub()
    hub.happens(STARTED, USE, REQUEST)
    hub.on_answer = lambda _: hub.happens(CLOSED)
    async with anyio.create_task_group() as tasks:

        async def person() -> None:
            await terminal.until(ASK)
            terminal.types("y\n")

        tasks.start_soon(person)
        assert await watched(hub, terminal) == 0
        tasks.cancel_scope.cancel()
    assert hub.asked[0] == Attach(session_id=S, after=0, can_answer=True)
    assert [call.answer.decision for call in hub.asked if isinstance(call, AnswerPermission)] == [Allow()]


async def test_a_program_that_looks_decides_nothing_and_hears_nothing_else(terminal: Desk, piped: Desk) -> None:
    hub = DeskHub()
    hub.happens(STARTED, USE, REQUEST, CLOSED)
    assert await watched(hub, terminal, after=0, as_json=True) == 0
    assert hub.asked == [Attach(session_id=S, after=0, can_answer=False)]
    hub = DeskHub()
    hub.happens(STARTED, USE, REQUEST, CLOSED)
    assert await watched(hub, piped, after=0, as_json=True) == 0
    assert (len(piped.out().splitlines()), piped.err()) == (5, "")
