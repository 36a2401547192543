"""Coming late, falling behind, a hub that died: what a view is told of the present, on a terminal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint
from terminal.desk import Desk, DeskHub, M, S, live
from terminal.test_conversation import ASK, ENDED, HELLO, OPEN, REQUEST, STARTED, USE, decided, hold, plays
from terminal.test_printer import OURS, A, B, printed, says

from enginehouse_hosts.terminal.asking import Asker
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.content import Text
from enginehouse_protocol.errors import ConnectionLost
from enginehouse_protocol.events import (
    Body,
    MessageDelta,
    MessageQueued,
    MessageUser,
    OpenMessage,
    QuestionAsked,
    TurnFailed,
)
from enginehouse_protocol.hub import AnswerPermission, AnswerQuestion, QueuedMessage, QueueState
from enginehouse_protocol.ids import CallId, MessageId
from enginehouse_protocol.permissions import Allow, PendingRequest

pytestmark = pytest.mark.anyio


def so_far(text: str, message_id: MessageId = A) -> Body:
    return live(messages=(OpenMessage(message_id=message_id, text=text),), busy=True)


def delta(text: str) -> Body:
    return MessageDelta(message_id=A, text=text)


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "came",
    [
        (so_far("Good "), delta("morning"), says("Good morning")),  # late
        (delta("Go"), so_far("Good mor"), delta("ning"), says("Good morning")),  # fallen behind
        (delta("Good"), so_far("Good"), so_far("Good"), delta(" morning"), says("Good morning")),
        (so_far("Good "), says("Good morning")),
        (delta("Good "), says("Good morning"), live()),
    ],
)
def test_the_text_so_far_is_shown_once(terminal: Desk, came: tuple[Body, ...]) -> None:
    answer, talk = printed(terminal, *OURS, *came, ENDED)
    assert (answer, talk) == ("Good morning\n", "")


def test_a_text_that_began_again_meanwhile_is_shown_from_its_beginning(terminal: Desk) -> None:
    answer, talk = printed(terminal, *OURS, delta("Wrong st"), so_far("Right "), delta("start"), says("Right start"))
    assert answer == "Wrong stRight start\n"
    assert "begins again" in talk


def test_a_message_that_is_not_open_any_more_is_forgotten(terminal: Desk) -> None:
    answer, talk = printed(terminal, *OURS, delta("Half an ans"), live(), says("Another.", B), ENDED)
    assert answer == "Half an ansAnother.\n"
    assert talk == "(the reply broke off here)\n"


def test_in_a_pipe_the_text_so_far_is_no_answer(piped: Desk) -> None:
    assert printed(piped, *OURS, so_far("Good "), says("Good morning"), ENDED) == ("Good morning\n", "")


def test_what_was_recorded_is_followed_by_what_is_live(terminal: Desk) -> None:
    asked = MessageUser(message_id=M, content=(Text(text="hi"),))
    answer, talk = printed(
        terminal, STARTED, asked, says("One."), so_far("Tw", B), says("Two.", B), ENDED, recorded=True
    )
    assert (answer, talk) == ("One.\nTwo.\n", "> hi\n")
    assert printed(terminal, STARTED, says("One."), so_far("Tw", B), recorded=True)[0] == "One.\nTw"


def test_what_others_queue_is_told_and_what_they_hear_is_no_answer_of_ours(piped: Desk) -> None:
    theirs = MessageQueued(message_id=MessageId("m_theirs"), content=(Text(text="and\x1b[2J then?"),), source="queue")
    assert printed(piped, *OURS, theirs, says("Mine."), ENDED) == ("Mine.\n", "(queued: and␛[2J then?)\n")


# --- what is asked ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def asking(desk: Desk, hub: DeskHub) -> AsyncIterator[Asker]:
    asker = Asker(hub.api, S, desk.streams, styles=Styles(coloured=False), environment={})
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asker.serve)
            yield asker
            tasks.cancel_scope.cancel()


def hears(asker: Asker, *bodies: Body) -> None:
    for body in bodies:
        asker.note(DeskHub().stamped(body).event)


def answered(hub: DeskHub) -> anyio.Event:
    done = anyio.Event()
    hub.on_answer = lambda _: done.set()
    return done


async def test_nothing_is_asked_before_the_view_has_caught_up(terminal: Desk) -> None:
    async with asking(terminal, DeskHub()) as asker:
        hears(asker, USE, REQUEST)
        await anyio.wait_all_tasks_blocked()
        hears(asker, decided(Allow()), OPEN, live(questions=(OPEN,)))
        await terminal.until("answer > ")
    assert "allow" not in terminal.shown


async def test_what_waited_before_we_came_is_asked_with_everything_it_would_run(terminal: Desk) -> None:
    hub = DeskHub()
    hub.pending = (
        PendingRequest(
            session_id=S,
            request_id=REQUEST.request_id,
            call_id=CallId("c_1"),
            kind="execute",
            title="$ ls",
            input={"command": "ls", "also": "everything"},
            risk="dangerous",
            reasons=(),
            digest="digest-1",
            expires_at_ms=0,
        ),
    )
    done = answered(hub)
    async with asking(terminal, hub) as asker:
        hears(asker, live(requests=(REQUEST,)))
        await terminal.until(ASK)
        assert "also: everything" in terminal.shown
        terminal.types("y\n")
        await done.wait()
    [answer] = [call.answer for call in hub.asked if isinstance(call, AnswerPermission)]
    assert (answer.digest, answer.decision) == ("digest-1", Allow())


async def test_a_request_whose_input_nobody_can_tell_is_not_asked_about(terminal: Desk) -> None:
    async with asking(terminal, DeskHub()) as asker:
        hears(asker, live(requests=(REQUEST,)))
        await terminal.until("no answer is needed any more")
    assert "allow" not in terminal.shown


async def test_what_is_known_is_not_asked_twice_and_what_is_gone_is_withdrawn(terminal: Desk) -> None:
    hub = DeskHub()
    done = answered(hub)
    async with asking(terminal, hub) as asker:
        hears(asker, live(), USE, REQUEST, live(requests=(REQUEST,)))
        await terminal.until(ASK)
        hears(asker, live(requests=(REQUEST,)))
        terminal.types("y\n")
        await done.wait()
        hears(asker, live(requests=(REQUEST,), questions=(OPEN,)))  # the answer is not on the record yet
        await terminal.until("answer > ")
        hears(asker, live())
        await terminal.until("no answer is needed any more")
    assert terminal.shown.count("? $ ls") == 1
    assert len([call for call in hub.asked if isinstance(call, AnswerPermission)]) == 1


async def test_an_answer_that_was_lost_on_its_way_is_asked_for_again(terminal: Desk) -> None:
    hub = DeskHub()

    def lost(_: object) -> None:
        hub.on_answer = lambda _: done.set()
        raise ConnectionLost("it was killed")

    done = anyio.Event()
    hub.on_answer = lost
    async with asking(terminal, hub) as asker:
        hears(asker, live(questions=(OPEN,)))
        await terminal.until("answer > ")
        terminal.types("Ada\n")
        await terminal.until("it was killed")
        await checkpoint()
        terminal.shown = ""
        hears(asker, live(questions=(OPEN,)))
        await terminal.until("answer > ")
        terminal.types("Ada\n")
        await done.wait()
    assert [type(call) for call in hub.asked] == [AnswerQuestion, AnswerQuestion]


async def test_an_open_question_is_settled_by_a_present_without_it(terminal: Desk) -> None:
    second = QuestionAsked(question_id=OPEN.question_id, text="Again?")  # under its old id: it was never answered
    async with asking(terminal, DeskHub()) as asker:
        hears(asker, live(questions=(OPEN,)))
        await terminal.until("? Name?")
        hears(asker, live(), live(questions=(second,)))
        await terminal.until("? Again?")


async def test_a_question_is_put_away_before_what_became_of_it_is_shown(terminal: Desk) -> None:
    hub = plays(STARTED, USE, REQUEST)
    async with anyio.create_task_group() as tasks:

        async def elsewhere() -> None:
            await terminal.until(ASK)
            hub.happens_at_once(decided(Allow()), HELLO, ENDED)

        tasks.start_soon(elsewhere)
        assert await hold(hub, terminal) == 0
        tasks.cancel_scope.cancel()
    shown = terminal.shown + terminal.out()
    assert shown.index("no answer is needed any more") < shown.index("allowed") < shown.index("Hello.")


# --- what becomes of our message --------------------------------------------------------------------------------------


async def test_a_message_the_hub_did_not_come_to_waits_and_the_person_is_told(piped: Desk) -> None:
    waiting = MessageQueued(message_id=M, content=(Text(text="hi"),))
    hub = plays(live(1, held=True, queue=(waiting,)))
    hub.queue = QueueState(messages=(QueuedMessage(message_id=M, content=waiting.content),), held=True)
    assert await hold(hub, piped) == 1
    said = piped.err().splitlines()[-1]
    assert "the hub ended before this message began" in said
    assert f"`enginehouse sessions queue resume {S}`" in said
    assert [type(call).__name__ for call in hub.asked[3:]] == []  # it is not taken back


async def test_a_queue_that_was_held_when_we_came_is_no_news(piped: Desk) -> None:
    hub = plays(live(1, held=True, queue=(MessageQueued(message_id=M, content=()),)), STARTED, HELLO, ENDED)
    assert await hold(hub, piped) == 0


async def test_a_message_that_neither_waits_nor_runs_nor_ended_is_told(piped: Desk) -> None:
    assert await hold(plays(live(1)), piped) == 1
    assert "neither waits nor began" in piped.err()


async def test_a_present_from_before_the_message_says_nothing_about_it(piped: Desk) -> None:
    assert await hold(plays(live(0), STARTED, HELLO, ENDED), piped) == 0


async def test_a_turn_cut_off_by_the_death_of_the_hub_has_failed(piped: Desk) -> None:
    cut_off = TurnFailed(code="interrupted", message="the hub ended in the middle of this turn")
    assert await hold(plays(STARTED, live(2, busy=True), cut_off, live(3)), piped) == 1
    assert "the hub ended in the middle of this turn" in piped.err()
