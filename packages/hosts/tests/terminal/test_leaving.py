"""Leaving a conversation whose hub goes on: what was asked for does not, and what others asked for does."""

import signal

import anyio
import pytest
from terminal.desk import CREATE, Desk, DeskHub, M, S
from terminal.test_conversation import ENDED, HELLO, STARTED, hold, plays

from enginehouse_hosts.terminal.conversation import Conversation, Message
from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.streams import AnswerGone
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.errors import ConnectionLost, ServiceUnavailable, SessionMoved
from enginehouse_protocol.events import TurnCompleted, TurnStarted
from enginehouse_protocol.hub import Delivery, Launch, SessionRef, WithdrawQueued
from enginehouse_protocol.ids import MessageId, TurnId

pytestmark = pytest.mark.anyio

INTERRUPT, WITHDRAW = SessionRef(session_id=S), WithdrawQueued(session_id=S, message_id=M)
THEIRS = TurnStarted(origin="message", message_ids=(MessageId("m_theirs"),))
THEIR_TURN = TurnId("t_theirs")


def after_sending(hub: DeskHub) -> list[object]:
    """What the hub was asked once it had the message."""
    return hub.asked[3:]


def waits_behind_another(hub: DeskHub, number: signal.Signals) -> DeskHub:
    hub.on_send = lambda: (hub.happens(THEIRS, turn_id=THEIR_TURN), signal.raise_signal(number))[0]
    hub.withdraws = True
    return hub


async def test_leaving_interrupts_the_turn_that_was_asked_for(piped: Desk) -> None:
    hub = DeskHub()
    hub.on_send = lambda: (hub.happens(STARTED), signal.raise_signal(signal.SIGTERM))[0]
    assert await hold(hub, piped) == 128 + signal.SIGTERM
    assert after_sending(hub)[-1] == INTERRUPT


async def test_leaving_takes_back_what_waits_and_leaves_the_turn_of_others_alone(piped: Desk) -> None:
    hub = waits_behind_another(DeskHub(), signal.SIGTERM)
    assert await hold(hub, piped) == 128 + signal.SIGTERM
    assert after_sending(hub) == [WITHDRAW]


async def test_ctrl_c_takes_back_what_waits_and_leaves_the_turn_of_others_alone(piped: Desk) -> None:
    hub = waits_behind_another(DeskHub(), signal.SIGINT)
    assert await hold(hub, piped) == 130
    assert after_sending(hub) == [WITHDRAW]


async def test_a_turn_that_ended_unseen_is_not_interrupted_for_the_next_one_may_be_anybodys(piped: Desk) -> None:
    hub = DeskHub()

    def sent() -> None:
        hub.happens(STARTED)
        hub.happens_unseen(ENDED, THEIRS)
        signal.raise_signal(signal.SIGTERM)

    hub.on_send = sent
    assert await hold(hub, piped) == 128 + signal.SIGTERM
    assert INTERRUPT not in hub.asked


async def test_a_message_on_its_way_from_the_queue_to_its_turn_is_interrupted_there(piped: Desk) -> None:
    hub = DeskHub()
    hub.on_send = lambda: signal.raise_signal(signal.SIGTERM)
    hub.on_withdraw = lambda: hub.happens_unseen(STARTED)
    assert await hold(hub, piped) == 128 + signal.SIGTERM
    assert after_sending(hub)[-1] == INTERRUPT


async def test_nothing_is_taken_back_of_a_message_that_is_over_or_was_refused(piped: Desk) -> None:
    hub = plays(STARTED, HELLO, ENDED)
    assert await hold(hub, piped) == 0
    assert after_sending(hub) == []
    hub = DeskHub()
    hub.refuses = SessionMoved("s", "/old", "/new")
    with pytest.raises(ExceptionGroup):
        await hold(hub, piped)
    assert after_sending(hub) == []


async def test_a_hub_that_does_not_answer_keeps_nobody(piped: Desk) -> None:
    hub = DeskHub()
    hub.deaf = True
    hub.on_send = lambda: (hub.happens(STARTED), signal.raise_signal(signal.SIGTERM))[0]
    with anyio.fail_after(5):
        assert await hold(hub, piped) == 128 + signal.SIGTERM


class NobodyReads(Printer):
    async def show(self, batch: tuple[Delivery, ...]) -> None:
        if any(isinstance(delivery.event.body, TurnStarted) for delivery in batch):
            raise AnswerGone


async def test_whoever_stops_reading_ends_the_turn(piped: Desk) -> None:
    hub = plays(STARTED)
    styles = Styles(coloured=False)
    presenter = NobodyReads(piped.streams, styles=styles)
    conversation = Conversation(hub.api, piped.streams, presenter, styles=styles, environment={})
    with anyio.fail_after(10), pytest.raises(ExceptionGroup) as caught:
        await conversation.hold(CREATE, Message(text="hi", launch=Launch(), message_id=M))
    assert caught.group_contains(AnswerGone)
    assert after_sending(hub)[-1] == INTERRUPT


@pytest.mark.parametrize("error", [ConnectionLost("it was killed"), ServiceUnavailable("it does not stay up")])
async def test_a_lost_hub_is_one_line_that_says_how_to_go_on(
    piped: Desk, error: ConnectionLost | ServiceUnavailable
) -> None:
    hub = DeskHub()
    hub.on_send = lambda: (hub.happens(STARTED), hub.ends(error))[0]
    assert await hold(hub, piped) == 1
    said = piped.err().splitlines()[-1]
    assert str(error) in said
    assert f"`enginehouse run --session {S}`" in said
    assert after_sending(hub) == []


async def test_a_hub_that_is_lost_while_the_message_is_sent_is_the_same(piped: Desk) -> None:
    hub = DeskHub()
    hub.refuses = ConnectionLost("it was stopped")
    assert await hold(hub, piped) == 1
    assert f"it was stopped; what is recorded is kept, and `enginehouse run --session {S}`" in piped.err()
    assert after_sending(hub) == []


async def test_one_ctrl_c_asks_for_one_interrupt(piped: Desk) -> None:
    hub = DeskHub()
    hub.on_send = lambda: (hub.happens(STARTED), signal.raise_signal(signal.SIGINT))[0]
    hub.on_interrupt = lambda: hub.happens(TurnCompleted(stop="interrupted"))
    assert await hold(hub, piped) == 130
    assert after_sending(hub) == [INTERRUPT]
