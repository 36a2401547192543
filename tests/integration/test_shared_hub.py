"""Several processes on one session: who is first, what a hundred views see, what it costs the hub.

Rule: the hosts are processes of their own, the model is a server of its own, and what is claimed is read from what
each view heard and from the file.
"""

import hashlib
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest

from end_to_end.person import Person
from enginehouse_core.sessions.archive import Archive
from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.events import (
    Event,
    MessageQueued,
    MessageUser,
    TurnCompleted,
    TurnStarted,
)
from enginehouse_protocol.ids import SessionId
from integration.host_words import Create, Created, Done, Heard, Look, Over, Send, Sent, Shown, Shows, Views
from integration.hub_clients import HostProcess, Memory
from model_server import ChatRequest, Distant, hold, pause, raw, reply, server_in_thread
from model_server.programs import Script
from model_server.script import Answer, Piece

SENDS = int(os.environ.get("ENGINEHOUSE_TEST_SENDS", "200"))
VIEWS, CLIENTS, EARLY = 100, 4, 22
"""`EARLY` views in each client; the others join at random moments."""
DELTAS, PER_S = 800, 200
TALK = [f"{number:07} " for number in range(DELTAS)]
FLOOD = [f"{number:019} " for number in range(3_000)]
_THOUGHT = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm "}, "finish_reason": None}]}
THOUGHT = raw(b"data: " + msgspec.json.encode(_THOUGHT) + b"\n\n")
"""Between two pieces of text it keeps an engine from making one of them."""
GROWTH_MB = 100


class Desk:
    """A person, a model, and host processes on one profile."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.server: Distant
        self.person: Person

    def with_model(self, script: Script) -> "Desk":
        self.server = self._stack.enter_context(server_in_thread(script))
        self.person = Person(self._folder / "home", self.server.base_url)
        self._stack.callback(self.person.ends_hubs)
        return self

    def host(self) -> HostProcess:
        return self._stack.enter_context(HostProcess(self.person.environment, self.person.project))

    def lines(self, session_id: SessionId) -> list[bytes]:
        return list(Archive(self.person.profile / "transcripts").lines_after(session_id, 0))

    def events(self, session_id: SessionId) -> list[Event]:
        decoded = (decode_recorded(line) for line in self.lines(session_id))
        return [event for event in decoded if isinstance(event, Event)]

    def hub(self) -> psutil.Process:
        [hub] = self.person.hubs()
        return hub


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(stack, tmp_path)


def _seeded(name: str, capsys: pytest.CaptureFixture[str]) -> random.Random:
    seed = int(os.environ.get("ENGINEHOUSE_TEST_SEED", str(random.SystemRandom().randrange(1 << 32))))
    _tell(capsys, f"\n{name}, seed {seed}")
    return random.Random(seed)


def _tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        print(text)


def _held_by_round(request: ChatRequest) -> Answer:
    """Answers once the round its message names is let go."""
    return reply(deltas=["Yes.", hold(request.last_user_text.split(",")[0])])


@pytest.mark.timeout(300)
def test_of_two_messages_sent_at_one_moment_one_runs_and_the_other_waits_its_turn(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.with_model(_held_by_round)
    first, second = desk.host(), desk.host()
    session_id = first.does(Create(), Created).session_id
    for host in (first, second):
        host.does(Look(session_id=session_id), Done)
    receipts: list[list[Sent]] = []
    seen: list[tuple[Heard, ...]] = []
    for number in range(SENDS):
        moment = time.monotonic() + 0.02
        asked = [
            (host, host.told(Send(session_id=session_id, text=f"round {number}, {name}", at_s=moment)))
            for name, host in (("left", first), ("right", second))
        ]
        receipts.append([host.answer(asked_as, Sent) for host, asked_as in asked])
        desk.server.release(f"round {number}")
        seen = [host.does(Over(turns=2 * (number + 1)), Views).views for host in (first, second)]
    assert len({view.sha256 for [view] in seen}) == 1
    told = {state for [view] in seen for state in view.states}
    assert {(state, held) for state, _, held in told} == {("idle", False), ("running", False)}
    assert max(queued for _, queued, _ in told) <= 2
    assert ("running", 1, False) in told

    events = desk.events(session_id)
    assert len([event for event in events if isinstance(event.body, TurnStarted)]) == 2 * SENDS
    queued = {event.body.message_id: event for event in events if isinstance(event.body, MessageQueued)}
    users = [event.body for event in events if isinstance(event.body, MessageUser)]
    in_order = [sent for pair in receipts for sent in sorted(pair, key=lambda sent: sent.seq)]
    assert [(sent.message_id, sent.seq) for sent in in_order] == [(key, event.seq) for key, event in queued.items()]
    assert [sent.message_id for sent in in_order] == [body.message_id for body in users]
    assert [body.source for body in users] == ["human", "queue"] * SENDS
    turns = [event.body for event in events if isinstance(event.body, TurnStarted | TurnCompleted)]
    assert [type(body) for body in turns] == [TurnStarted, TurnCompleted] * (2 * SENDS)
    assert [body.message_ids for body in turns if isinstance(body, TurnStarted)] == [
        (sent.message_id,) for sent in in_order
    ]
    apart = [abs(queued[left.message_id].at_ms - queued[right.message_id].at_ms) for left, right in receipts]
    ahead = sum(left.seq < right.seq for left, right in receipts)
    _tell(capsys, f"\n{SENDS} rounds: the left was first {ahead} times; {sum(ms <= 1 for ms in apart)} within 1 ms")


def _streams(request: ChatRequest) -> Answer:
    """A hello; small pieces at a steady pace; more pieces at once than a view may fall behind."""
    pieces: list[Piece] = []
    match request.last_user_text:
        case "talk":
            for piece in TALK:
                pieces += [piece, pause(1 / PER_S)]
            return reply(deltas=[*pieces, hold("talked"), "."])
        case "flood":
            for number, piece in enumerate(FLOOD):
                pieces += [piece, THOUGHT, *([pause(0.005)] if number % 20 == 0 else ())]
            return reply(deltas=[*pieces, hold("flooded"), "."])
        case _:
            return reply("Hello.")


@pytest.mark.timeout(300)
def test_a_hundred_views_in_four_processes_one_of_them_stopped_see_the_same(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = _seeded(f"{VIEWS} views", capsys)
    desk.with_model(_streams)
    hosts = [desk.host() for _ in range(CLIENTS)]
    session_id = hosts[0].does(Create(), Created).session_id
    for host in hosts:
        host.does(Look(session_id=session_id, views=EARLY), Done)
    hosts[0].does(Send(session_id=session_id, text="hello"), Sent)
    hosts[0].does(Over(turns=1), Views)
    stopped, *running = dice.sample(hosts, CLIENTS)

    with Memory(desk.hub()) as memory:
        hosts[0].does(Send(session_id=session_id, text="talk"), Sent)
        began = time.monotonic()
        moments = sorted(dice.uniform(0, DELTAS / PER_S) for _ in range(VIEWS - CLIENTS * EARLY))
        stop_at = dice.uniform(0.2, 0.8) * DELTAS / PER_S
        joining: list[tuple[HostProcess, int]] = []
        is_stopped = False
        for moment in sorted([*moments, stop_at]):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            if moment == stop_at:
                stopped.stops()
                is_stopped = True
            else:
                host = dice.choice(running if is_stopped else hosts)
                joining.append((host, host.told(Look(session_id=session_id))))
        desk.server.reached("talked", 60)
        talked_s = time.monotonic() - began
        _have_joined(joining, running)
        talking = [view for host in running for view in host.does(Shows(size_bytes=_size(TALK)), Views).views]
        assert {tuple(view.open.values()) for view in talking} == {(_shown(TALK),)}
        assert {view.lives for view in talking} == {1}, "at this pace nobody who listens falls behind"
        desk.server.release("talked")
        talked = tuple(view for host in running for view in host.does(Over(turns=2), Views).views)
        for view in talked:
            [*_, (message_id, shown)] = view.durable.items()
            assert view.streamed[message_id] == shown == _shown((*TALK, "."))

        running[0].does(Send(session_id=session_id, text="flood"), Sent)
        desk.server.reached("flooded", 120)
        for host in running:
            _shows(host, FLOOD)
        stopped.goes_on()
        _have_joined(joining, [stopped])
        for host in hosts:
            _shows(host, FLOOD)
        desk.server.release("flooded")
        heard = {host: host.does(Over(turns=3), Views).views for host in hosts}

    views = [view for each in heard.values() for view in each]
    assert len(views) == VIEWS
    lines = desk.lines(session_id)
    assert {(view.lines, view.sha256, view.gapless) for view in views} == {
        (len(lines), hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest(), True)
    }
    durable = views[0].durable
    assert [*durable.values()] == [_shown(text) for text in (("Hello.",), (*TALK, "."), (*FLOOD, "."))]
    assert all(view.durable == durable and view.open == {} for view in views)
    assert all(view.lives >= 2 for view in heard[stopped][:EARLY]), "the stopped ones never fell behind"
    _tell(
        capsys,
        f"{DELTAS} deltas, {PER_S} a second at the model, were heard after {talked_s:.1f} s; "
        f"the hub grew by {memory.growth_mb:.0f} MB",
    )
    assert memory.growth_mb < GROWTH_MB


def _have_joined(joining: Sequence[tuple[HostProcess, int]], hosts: Sequence[HostProcess]) -> None:
    for host, number in joining:
        if host in hosts:
            host.answer(number, Done)


def _shows(host: HostProcess, pieces: Sequence[str]) -> None:
    """Every view of it shows this, of the one message that is under way."""
    for view in host.does(Shows(size_bytes=_size(pieces)), Views, 120).views:
        assert [*view.open.values()] == [_shown(pieces)]


def _size(pieces: Sequence[str]) -> int:
    return sum(map(len, pieces))


def _shown(pieces: Sequence[str]) -> Shown:
    return Shown(size_bytes=_size(pieces), sha256=hashlib.sha256("".join(pieces).encode()).hexdigest())
