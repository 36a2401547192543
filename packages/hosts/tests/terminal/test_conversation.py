"""Holding a conversation through any hub: order, exit codes, interrupts, questions."""

import os
import signal
from collections.abc import Iterator, Mapping

import anyio
import msgspec
import pytest
from terminal.desk import CREATE, Desk, DeskHub, M, S, info

from enginehouse_hosts.terminal.conversation import Continued, Conversation, Message
from enginehouse_hosts.terminal.json_lines import JsonLines
from enginehouse_hosts.terminal.printer import Printer
from enginehouse_hosts.terminal.styles import Styles
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import SessionMoved, TranscriptUnavailable
from enginehouse_protocol.events import (
    Body,
    MessageAssistant,
    MessageWithdrawn,
    PermissionDecided,
    PermissionRequested,
    QuestionAnswered,
    QuestionAsked,
    QuestionOption,
    SessionStateChanged,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from enginehouse_protocol.hub import (
    AnswerPermission,
    AnswerQuestion,
    Attach,
    Launch,
    SendMessage,
    SetSession,
    WithdrawQueued,
)
from enginehouse_protocol.ids import CallId, MessageId, QuestionId, ReplyId, RequestId, TurnId
from enginehouse_protocol.permissions import Allow, Answer, Deny, Expired
from enginehouse_protocol.settings import SessionSettings

pytestmark = pytest.mark.anyio

STARTED = TurnStarted(origin="message", message_ids=(M,))
ENDED = TurnCompleted(stop="end")
HELLO = MessageAssistant(message_id=MessageId("m_a"), reply_id=ReplyId("r"), text="Hello.")
USE = ToolUse(call_id=CallId("c_1"), name="bash", kind="execute", title="$ ls", input={"command": "ls"})
REQUEST = PermissionRequested(
    request_id=RequestId("p_1"),
    call_id=CallId("c_1"),
    kind="execute",
    title="$ ls",
    risk="dangerous",
    reasons=("it runs without a sandbox",),
    input_digest="digest-1",
    expires_at_ms=0,
    always_rule="execute(ls)",
)


def decided(decision: Allow | Deny | Expired, *, asked: bool = True) -> PermissionDecided:
    return PermissionDecided(
        call_id=CallId("c_1"),
        decision=decision,
        by="expiry" if isinstance(decision, Expired) else "person",
        risk="dangerous",
        input_digest="digest-1",
        request_id=RequestId("p_1") if asked else None,
    )


async def hold(
    hub: DeskHub,
    desk: Desk,
    *,
    as_json: bool = False,
    start: Continued | None = None,
    environment: Mapping[str, str] = {},
) -> int:
    styles = Styles(coloured=False)
    presenter = JsonLines(desk.streams) if as_json else Printer(desk.streams, styles=styles)
    conversation = Conversation(hub.api, desk.streams, presenter, styles=styles, environment=environment)
    with anyio.fail_after(10):
        return await conversation.hold(start or CREATE, Message(text="hi", launch=Launch(), message_id=M))


def plays(*bodies: Body) -> DeskHub:
    hub = DeskHub()
    hub.on_send = lambda: hub.happens(*bodies)
    return hub


async def test_the_view_is_attached_before_the_message_is_sent(piped: Desk) -> None:
    hub = plays(STARTED, HELLO, ENDED)
    assert await hold(hub, piped) == 0
    assert [type(call).__name__ for call in hub.asked] == ["CreateSession", "Attach", "SendMessage"]
    assert hub.asked[1] == Attach(session_id=S, after=0, can_answer=False)
    assert piped.out() == "Hello.\n"


@pytest.mark.parametrize(
    "bodies,code",
    [
        ((STARTED, ENDED), 0),
        ((STARTED, TurnCompleted(stop="max_steps")), 1),
        ((STARTED, TurnCompleted(stop="max_tokens")), 1),
        ((STARTED, TurnCompleted(stop="refused")), 1),
        ((STARTED, TurnCompleted(stop="budget")), 1),
        ((STARTED, decided(Expired(reason="nobody"), asked=False), TurnCompleted(stop="max_steps")), 1),
        ((STARTED, TurnCompleted(stop="interrupted")), 130),
        ((STARTED, TurnFailed(code="provider.overloaded", message="no")), 1),
        ((STARTED, TurnFailed(code="provider.unauthorized", message="no")), 2),
        ((STARTED, TurnFailed(code="provider.not_found", message="no")), 2),
        ((STARTED, TurnFailed(code="provider.bad_address", message="no")), 2),
        ((STARTED, TurnFailed(code="provider.bad_key", message="no")), 2),
        ((STARTED, TurnFailed(code="engine.unavailable", message="no")), 2),
        ((STARTED, TurnFailed(code="engine.model_needed", message="no")), 2),
        ((STARTED, decided(Expired(reason="nobody"), asked=False), ENDED), 4),
        ((STARTED, decided(Deny(reason="no")), ENDED), 0),
        ((STARTED, QuestionAnswered(question_id=QuestionId("q_1")), ENDED), 4),
        ((MessageWithdrawn(message_id=M, by="hook", reason="not now"),), 1),
        ((STARTED, SessionStateChanged(state="idle", read_only="disk full")), 1),
    ],
)
async def test_the_exit_code_tells_how_the_turn_of_our_message_ended(
    piped: Desk, bodies: tuple[Body, ...], code: int
) -> None:
    assert await hold(plays(*bodies), piped) == code


async def test_what_the_queue_held_before_runs_first_and_is_waited_for(piped: Desk) -> None:
    other = TurnId("t_other")
    hub = DeskHub()

    def sent() -> None:
        hub.happens(TurnStarted(origin="message", message_ids=(MessageId("m_old"),)), ENDED, turn_id=other)
        hub.happens(TurnFailed(code="x", message="y"), turn_id=other)
        hub.happens(STARTED, HELLO, ENDED)

    hub.on_send = sent
    assert await hold(hub, piped) == 0
    assert piped.out() == "Hello.\n"


async def test_json_is_the_bytes_of_the_hub_and_nothing_else(piped: Desk) -> None:
    hub = plays(STARTED, HELLO, SessionStateChanged(state="idle"), ENDED)
    twin = plays(STARTED, HELLO, SessionStateChanged(state="idle"), ENDED)
    lines = [delivery.line for delivery in [twin.stamped(body) for body in (STARTED, HELLO)]]
    assert await hold(hub, piped, as_json=True) == 0
    shown = piped.out().splitlines()
    assert len(shown) == 6
    assert [line.replace('"seq":2', '"seq":1').replace('"seq":3', '"seq":2') for line in shown[2:4]] == [
        line.decode() for line in lines
    ]


async def test_a_session_that_goes_on_gets_its_changes_first_and_only_those_asked_for(piped: Desk) -> None:
    change = SessionSettings(mode="plan")
    hub = plays(STARTED, ENDED)
    assert await hold(hub, piped, start=Continued(session=info(41), change=change, directory="/new")) == 0
    attach, settings, sending = hub.asked
    assert attach == Attach(session_id=S, after=41, can_answer=False)
    assert settings == SetSession(session_id=S, settings=change)
    assert isinstance(sending, SendMessage)
    assert sending.directory == "/new"

    hub = plays(STARTED, ENDED)
    assert await hold(hub, piped, start=Continued(session=info(), change=SessionSettings())) == 0
    assert [type(call).__name__ for call in hub.asked] == ["Attach", "SendMessage"]


async def test_a_refused_message_is_the_callers_to_report(piped: Desk) -> None:
    hub = DeskHub()
    hub.refuses = SessionMoved("s", "/old", "/new")
    with pytest.raises(ExceptionGroup) as caught:
        await hold(hub, piped)
    assert caught.group_contains(SessionMoved)


async def test_a_hub_that_ends_first_is_an_error_not_a_success(piped: Desk) -> None:
    hub = DeskHub()
    hub.on_send = lambda: (hub.happens(STARTED), hub.ends())[0]
    with pytest.raises(TranscriptUnavailable):
        await hold(hub, piped)


async def test_one_ctrl_c_interrupts_the_turn(piped: Desk) -> None:
    hub = plays(STARTED)
    hub.on_send = lambda: (hub.happens(STARTED), signal.raise_signal(signal.SIGINT))[0]
    hub.on_interrupt = lambda: hub.happens(TurnCompleted(stop="interrupted"))
    assert await hold(hub, piped) == 130
    assert [type(call).__name__ for call in hub.asked].count("SessionRef") == 1


async def test_two_leave_although_the_hub_does_not_answer(piped: Desk) -> None:
    hub = DeskHub()
    hub.on_send = lambda: (hub.happens(STARTED), signal.raise_signal(signal.SIGINT))[0]
    async with anyio.create_task_group() as tasks:

        async def impatient() -> None:
            await anyio.sleep(0.5)  # sooner it would be the same press
            signal.raise_signal(signal.SIGINT)

        def asked_to_stop() -> None:
            hub.on_interrupt = lambda: None
            tasks.start_soon(impatient)

        hub.on_interrupt = asked_to_stop
        started = anyio.current_time()
        assert await hold(hub, piped) == 130
        assert anyio.current_time() - started < 3


async def test_sigterm_leaves_at_once_with_its_own_code(piped: Desk) -> None:
    hub = DeskHub()
    hub.on_send = lambda: (hub.happens(STARTED), os.kill(os.getpid(), signal.SIGTERM))[0]
    assert await hold(hub, piped) == 128 + signal.SIGTERM


@pytest.fixture(autouse=True)
def hang_ups_end_a_process_again() -> Iterator[None]:
    yield
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


async def test_a_hang_up_leaves_and_hears_no_second_one(piped: Desk) -> None:
    hub = DeskHub()
    hub.on_send = lambda: (hub.happens(STARTED), os.kill(os.getpid(), signal.SIGHUP))[0]
    assert await hold(hub, piped) == 129
    os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def test_a_conversation_that_ended_hears_hang_ups_no_more_and_one_under_nohup_never(piped: Desk) -> None:
    assert await hold(plays(STARTED, ENDED), piped) == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    hub = DeskHub()
    hub.on_send = lambda: (os.kill(os.getpid(), signal.SIGHUP), hub.happens(STARTED, ENDED))[1]
    assert await hold(hub, piped) == 0


# --- being asked ------------------------------------------------------------------------------------------------------


async def answered(terminal: Desk, typed: list[tuple[str, str]], asks: Body, *, then: Body = ENDED) -> DeskHub:
    """Play a turn that asks; type each text once its prompt is shown."""
    hub = plays(STARTED, USE, asks)
    hub.on_answer = lambda _: hub.happens(then)
    async with anyio.create_task_group() as tasks:

        async def person() -> None:
            for prompt, text in typed:
                await terminal.until(prompt)
                terminal.shown = ""
                terminal.types(text)

        tasks.start_soon(person)
        await hold(hub, terminal)
        tasks.cancel_scope.cancel()
    return hub


ASK = "n: deny > "


@pytest.mark.parametrize(
    "typed,decision,always",
    [
        ([(ASK, "y\n")], Allow(), False),
        ([(ASK, "ALLOW\n")], Allow(), False),
        ([(ASK, "a\n")], Allow(), True),
        ([(ASK, "what?\n"), (ASK, "\n"), (ASK, "y\n")], Allow(), False),
        ([(ASK, "n\n"), ("why?", "too early\n")], Deny(reason="too early"), False),
        ([(ASK, "n\n"), ("why?", "\n")], Deny(reason="the person said no"), False),
        ([(ASK, "e\n"), ("one line", '{"command": "pwd"}\n')], Allow(input={"command": "pwd"}), False),
        ([(ASK, "e\n"), ("one line", "[1]\n"), (ASK, "y\n")], Allow(), False),
    ],
)
async def test_an_answer_is_what_was_typed_with_the_digest_echoed(
    terminal: Desk, typed: list[tuple[str, str]], decision: Allow | Deny, always: bool
) -> None:
    hub = await answered(terminal, typed, REQUEST)
    expected = Answer(request_id=RequestId("p_1"), digest="digest-1", decision=decision, always=always)
    assert hub.asked[-1] == AnswerPermission(session_id=S, answer=expected, host="terminal")


async def test_always_cannot_be_chosen_where_it_is_not_offered(terminal: Desk) -> None:
    request = PermissionRequested(
        request_id=RequestId("p_1"),
        call_id=CallId("c_1"),
        kind="other",
        title="",
        risk="critical",
        reasons=(),
        input_digest="digest-1",
        expires_at_ms=0,
        input={"blob": "x" * 1_000_000},
    )
    hub = await answered(terminal, [(ASK, "v\n"), (ASK, "a\n"), (ASK, "y\n")], request)
    assert isinstance(hub.asked[-1], AnswerPermission)
    assert hub.asked[-1].answer.always is False


async def test_a_request_decided_elsewhere_is_withdrawn_and_the_next_one_asked(terminal: Desk) -> None:
    second = PermissionRequested(
        request_id=RequestId("p_2"),
        call_id=CallId("c_2"),
        kind="execute",
        title="$ pwd",
        risk="dangerous",
        reasons=(),
        input_digest="digest-2",
        expires_at_ms=0,
    )
    pwd = ToolUse(call_id=CallId("c_2"), name="bash", kind="execute", title="$ pwd", input={"command": "pwd"})
    hub = plays(STARTED, USE, pwd, REQUEST, second)
    hub.on_answer = lambda _: hub.happens(ENDED)
    async with anyio.create_task_group() as tasks:

        async def elsewhere() -> None:
            await terminal.until(ASK)
            hub.happens(decided(Allow()))
            await terminal.until("no answer is needed any more")
            terminal.shown = terminal.shown.partition("no answer is needed any more")[2]
            await terminal.until(ASK)
            terminal.types("y\n")

        tasks.start_soon(elsewhere)
        assert await hold(hub, terminal) == 0
        tasks.cancel_scope.cancel()
    answers = [call.answer.request_id for call in hub.asked if isinstance(call, AnswerPermission)]
    assert answers == ["p_2"]


Q = QuestionId("q")
PLAN = QuestionAsked(
    question_id=Q,
    text="A plan",
    kind="plan",
    free_text=False,
    options=(QuestionOption(label="Go"), QuestionOption(label="No")),
)
SEVERAL = QuestionAsked(
    question_id=Q, text="Which?", multiple=True, options=(QuestionOption(label="a"), QuestionOption(label="b"))
)
OPEN = QuestionAsked(question_id=Q, text="Name?")


@pytest.mark.parametrize(
    "question,typed,answers",
    [
        (OPEN, [("answer > ", "Ada\n")], ("Ada",)),
        (PLAN, [("1 to 2 > ", "hm\n"), ("1 to 2 > ", "2\n")], ("No",)),
        (SEVERAL, [("with commas", "2, 1\n")], ("b", "a")),
    ],
)
async def test_a_question_takes_numbers_labels_or_words_and_nothing_else(
    terminal: Desk, question: QuestionAsked, typed: list[tuple[str, str]], answers: tuple[str, ...]
) -> None:
    hub = await answered(terminal, typed, question)
    assert hub.asked[-1] == AnswerQuestion(session_id=S, question_id=Q, answers=answers, host="terminal")


@pytest.mark.parametrize("asks,prompt", [(REQUEST, ASK), (OPEN, "answer > ")])
async def test_the_end_of_input_is_nobodys_answer_the_person_has_left(terminal: Desk, asks: Body, prompt: str) -> None:
    hub = plays(STARTED, USE, asks)
    async with anyio.create_task_group() as tasks:

        async def person() -> None:
            await terminal.until(prompt)
            terminal.types("\x04")

        tasks.start_soon(person)
        assert await hold(hub, terminal) == 129
        tasks.cancel_scope.cancel()
    os.kill(os.getpid(), signal.SIGHUP)  # the window is gone too, while the hub is being left
    assert not [call for call in hub.asked if isinstance(call, (AnswerPermission, AnswerQuestion))]


async def test_a_message_taken_back_by_ctrl_c_was_interrupted_not_refused(piped: Desk) -> None:
    hub = DeskHub()
    hub.withdraws = True
    hub.on_send = lambda: signal.raise_signal(signal.SIGINT)
    assert await hold(hub, piped) == 130
    assert WithdrawQueued(session_id=S, message_id=M) in hub.asked


async def test_what_nobody_can_answer_is_denied_and_not_left_for_later(piped: Desk) -> None:
    hub = plays(STARTED, ENDED)
    await hold(hub, piped)
    assert hub.asked[-1].unattended == "deny"


async def test_a_session_that_goes_on_says_with_what_and_yolo_is_warned_of(piped: Desk) -> None:
    session = msgspec.structs.replace(info(41), settings=SessionSettings(model="m1", mode="yolo"))
    provider = Provider(name="environment", base_url="http://ada:geheim@models.test:8080/v1")
    start = Continued(session=session, change=SessionSettings(effort="high"), remark="mind the mode")
    hub = plays(STARTED, HELLO, ENDED)
    styles = Styles(coloured=False)
    conversation = Conversation(
        hub.api, piped.streams, Printer(piped.streams, styles=styles), styles=styles, environment={}
    )
    with anyio.fail_after(10):
        await conversation.hold(start, Message(text="hi", launch=Launch(provider=provider), message_id=M))
    head, warning, remark, *_ = piped.err().splitlines()
    assert head == f"session {S} on x · m1 · effort high · mode yolo · models.test:8080 · /p"
    assert warning.startswith("yolo: ")
    assert remark == "mind the mode"


async def test_json_says_on_stderr_why_a_turn_stopped_short(piped: Desk) -> None:
    assert await hold(plays(STARTED, TurnCompleted(stop="max_steps")), piped, as_json=True) == 1
    assert "limit of steps" in piped.err()
