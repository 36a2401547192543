"""The pace of a session's engine with a hundred views in four processes against one view, through the real hub.

The time from the turn's start to its end, as the record has it: with pieces that come as from a model, and with as many
as the engine can read. Views that slow it down would show in both.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import paced_model
from benchmarks.row import Row
from end_to_end.person import Person
from enginehouse_core.sessions.archive import Archive
from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.events import TurnCompleted, TurnStarted
from enginehouse_protocol.ids import SessionId
from integration.host_words import Create, Created, Done, Look, Over, Send, Sent, Views
from integration.hub_clients import HostProcess, Memory
from model_server import server_in_process

VIEWS, CLIENTS = 100, 4
ROUNDS = 3
_PROMPTS = ("hello", *("steady", "at once") * ROUNDS)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        server = stack.enter_context(server_in_process(Path(paced_model.__file__)))
        person = Person(Path(place) / "home", server.base_url)
        stack.callback(person.ends_hubs)
        one, _ = _times(person, 1)
        many, grown_mb = _times(person, VIEWS)
    rows = [
        Row(
            f"pace with {VIEWS} views against one, {what}",
            f"{count / many[prompt]:,.0f} deltas/s",
            f"one view {count / one[prompt]:,.0f}/s",
            many[prompt] / one[prompt],
            target,
        )
        for prompt, what, count, target in (
            ("steady", f"{paced_model.PER_S} a second", paced_model.STEADY, "<= 1.1"),
            ("at once", "all at once", paced_model.AT_ONCE, "reported"),
        )
    ]
    return [*rows, Row(f"hub's growth under {VIEWS} views", f"{grown_mb:.0f} MB", "100 MB", grown_mb / 100, "<= 1")]


def _times(person: Person, views: int) -> tuple[dict[str, float], float]:
    """The best time of each prompt in seconds, and what the hub grew by, in MB."""
    with ExitStack() as stack:
        hosts = [stack.enter_context(HostProcess(person.environment, person.project)) for _ in range(CLIENTS)]
        session_id = hosts[0].does(Create(), Created).session_id
        for number in range(views):
            hosts[number % CLIENTS].does(Look(session_id=session_id), Done)
        [hub] = person.hubs()
        with Memory(hub) as memory:
            for turns, prompt in enumerate(_PROMPTS, 1):
                hosts[0].does(Send(session_id=session_id, text=prompt), Sent)
                for host in hosts[:views]:
                    host.does(Over(turns=turns), Views)
    times: dict[str, float] = {}
    for prompt, taken in zip(_PROMPTS, _turn_times(person, session_id), strict=True):
        times[prompt] = min(taken, times.get(prompt, taken))
    return times, memory.growth_mb


def _turn_times(person: Person, session_id: SessionId) -> list[float]:
    at_ms: list[int] = []
    for line in Archive(person.profile / "transcripts").lines_after(session_id, 0):
        event = decode_recorded(line)
        if isinstance(event.body, TurnStarted | TurnCompleted):
            at_ms.append(event.at_ms)
    return [(end - start) / 1_000 for start, end in zip(at_ms[::2], at_ms[1::2], strict=True)]
