"""kill -9 of the shared hub, of its keeper, or of both, at any moment, under three hosts: nothing is lost, decided
twice, run twice, or left behind, and nobody has to do anything about it.

The model behind it decides the next step from what the request holds, so it goes on after every death as a real one
would. A host stops after five deaths in a minute, so each gets fewer, and then others take its place.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from end_to_end.person import Person
from enginehouse.hub_place import hub_place
from enginehouse_core.profile.folders import Folders
from enginehouse_core.sessions.archive import Archive
from enginehouse_protocol.codec import decode_recorded
from enginehouse_protocol.events import (
    Event,
    PermissionDecided,
    PermissionRequested,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
    tag_of,
)
from enginehouse_protocol.ids import CallId, RequestId, SessionId
from enginehouse_protocol.local_socket import holder_of
from enginehouse_protocol.permissions import Allow
from integration.host_words import Answered, Create, Created, Done, Drive, Look, Over, Views
from integration.hub_clients import PATIENCE_S, HostProcess
from model_server import server_in_thread, steps

KILLS = int(os.environ.get("ENGINEHOUSE_TEST_KILLS", "50"))
STEPS = 40
WORKERS = 2
KILLS_A_HOST = 4
ANSWER_WITHIN_S = 0.1
LINES_BETWEEN = 24
MOMENTS = (
    *("permission.requested",) * 3,
    "turn.started",
    "step.started",
    "tool.use",
    "permission.decided",
    "tool.result",
)
FINAL = "all done"


def command(step: int) -> str:
    """A step that leaves its number, and a process that left its group, its session and its terminal behind."""
    return f"echo {step} >> steps.txt; (setsid nohup sleep 300 >/dev/null 2>&1 &) ; sleep 0.01"


@pytest.mark.timeout(1_800)
def test_whatever_is_killed_the_hosts_go_on_and_hear_everything_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("ENGINEHOUSE_TEST_SEED", str(random.SystemRandom().randrange(1 << 32))))
    with capsys.disabled():
        print(f"\n{KILLS} kills, seed {seed}")
    with (
        server_in_thread(steps(STEPS, command, final=FINAL)) as server,
        ThreadPoolExecutor(WORKERS) as pool,
        ExitStack() as stack,
    ):
        trials = [Trial(Person(tmp_path / str(number), server.base_url), seed + number) for number in range(WORKERS)]
        for trial in trials:
            stack.callback(trial.person.ends_hubs)
        list(pool.map(Trial.kill, trials, [KILLS // WORKERS] * WORKERS))
        assert server.problems() == []
    reached = sum((trial.reached for trial in trials), Counter[str]())
    outcomes = sum((trial.outcomes for trial in trials), Counter[str]())
    with capsys.disabled():
        print("killed:", dict(reached.most_common()))
        print("answers:", dict(outcomes.most_common()))
    assert sum(reached.values()) == KILLS // WORKERS * WORKERS


class Trial:
    """One person's hub, killed again and again."""

    def __init__(self, person: Person, seed: int) -> None:
        self.person = person
        self.reached: Counter[str] = Counter()
        """Who was killed after what was heard."""
        self.outcomes: Counter[str] = Counter()
        """Of answers to permission requests."""
        self._dice = random.Random(seed)
        self._archive = Archive(person.profile / "transcripts")
        self._place = hub_place(Folders.of(person.environment))
        self._steps = person.project / "steps.txt"

    def kill(self, kills: int) -> None:
        """Sessions of `STEPS` steps, each to its end."""
        while sum(self.reached.values()) < kills:
            self._steps.write_text("")
            mode = self._dice.choice(("default", "default", "yolo"))
            session_id: SessionId | None = None
            answered: list[Answered] = []
            finished = False
            while not finished:
                with ExitStack() as stack:
                    hosts = [
                        stack.enter_context(HostProcess(self.person.environment, self.person.project)) for _ in range(3)
                    ]
                    session_id = session_id or hosts[0].does(Create(mode=mode), Created).session_id
                    finished = self._under(hosts, session_id, kills)
                answered += [each for host in hosts for each in host.answered]
                for host in hosts:
                    assert (host.failed, host.process.returncode) == (None, 0)
                    lines = list(self._archive.lines_after(session_id, 0))
                    assert host.heard == lines[: len(host.heard)]
                    assert len(host.heard) == len(lines) or not finished
            assert session_id is not None
            self._check(session_id, answered)
            assert self._left_behind(session_id) == []
            self.person.ends_hubs()
            assert self.person.alive() == []

    def _under(self, hosts: list[HostProcess], session_id: SessionId, kills: int) -> bool:
        """Kill the hub under these, as often as they may stand it; returns whether the session's work is done."""
        driver, _, onlooker = hosts
        for number, host in enumerate(hosts):
            within = None if host is onlooker else ANSWER_WITHIN_S
            seed = self._dice.randrange(1 << 32) + number
            host.does(Look(session_id=session_id, aloud=True, answer_within_s=within, seed=seed), Done)
        done = driver.told(Drive(session_id=session_id, text="go on", until=FINAL))
        for _ in range(KILLS_A_HOST):
            if sum(self.reached.values()) >= kills:
                break
            self._wait_for_a_moment(driver, done)
            if driver.has(done):
                break
            before = [len(host.heard) for host in hosts]
            self._strike(driver)
            for host, heard in zip(hosts, before, strict=True):
                host.until(
                    lambda host=host, heard=heard: len(host.heard) > heard, PATIENCE_S, "something after a death"
                )
        else:
            return False
        driver.answer(done, Done)
        for host in hosts:
            host.does(Over(turns=1), Views)
        return True

    def _wait_for_a_moment(self, driver: HostProcess, done: int) -> None:
        place = len(driver.heard) + self._dice.randrange(LINES_BETWEEN)
        driver.until(lambda: len(driver.heard) >= place or driver.has(done), PATIENCE_S, "another event")
        if self._dice.random() < 0.6:
            wanted, place = f'"type":"{self._dice.choice(MOMENTS)}"'.encode(), len(driver.heard)
            later = place + 3 * LINES_BETWEEN  # it need not happen again
            driver.until(
                lambda: (
                    any(wanted in line for line in driver.heard[place:])
                    or len(driver.heard) > later
                    or driver.has(done)
                ),
                PATIENCE_S,
                "the moment",
            )
        else:
            time.sleep(self._dice.random() * 0.1)

    def _strike(self, driver: HostProcess) -> None:
        """Kill the hub, its keeper, or, now and then, both."""
        hub = self._hub()
        after = _tag(driver.heard[-1]) if driver.heard else "nothing heard"
        whom = self._dice.choices(("hub", "keeper", "both"), (45, 45, 10))[0]
        with suppress(psutil.NoSuchProcess):
            keeper = hub.parent()
            assert keeper is not None
            assert "serve" in keeper.cmdline()
            for victim in {"hub": [hub], "keeper": [keeper], "both": [keeper, hub]}[whom]:
                victim.kill()
        self.reached[f"{whom} after {after}"] += 1
        hub.wait(20)

    def _hub(self) -> psutil.Process:
        """The one that has the lock; another may just have been started, to find that out."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < deadline, "no hub came"
            holder = holder_of(self._place)
            if holder is not None and holder.pid is not None:
                with suppress(psutil.NoSuchProcess):
                    return psutil.Process(holder.pid)
            time.sleep(0.01)

    # --- what must be true ----------------------------------------------------------------------------------------

    def _check(self, session_id: SessionId, answered: list[Answered]) -> None:
        events = self._events(session_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        requested = [event.body.request_id for event in events if isinstance(event.body, PermissionRequested)]
        decided = [event.body for event in events if isinstance(event.body, PermissionDecided)]
        outcomes = {body.request_id: body for body in decided if body.request_id is not None}
        assert sorted(outcomes) == sorted(requested)
        assert len([body for body in decided if body.request_id is not None]) == len(requested)
        assert _more_than_once(body.call_id for body in decided) == []
        self._check_answers(outcomes, answered)

        uses = {event.body.call_id: event.body for event in events if isinstance(event.body, ToolUse)}
        results = [event.body for event in events if isinstance(event.body, ToolResult)]
        assert sorted(result.call_id for result in results) == sorted(uses)
        ran = Counter(self._steps.read_text().split())
        assert set(ran.values()) <= {1}, ran
        allowed = {body.call_id for body in decided if isinstance(body.decision, Allow)}
        by_step = {_step(use): call_id for call_id, use in uses.items()}
        assert len(by_step) == len(uses)
        assert {by_step[step] for step in ran} <= allowed
        assert {result.call_id for result in results if result.status == "ok"} <= {by_step[step] for step in ran}

        in_turn = [event for event in events if isinstance(event.body, TurnStarted | TurnCompleted | TurnFailed)]
        assert [isinstance(event.body, TurnStarted) for event in in_turn] == [True, False] * (len(in_turn) // 2)
        assert isinstance(in_turn[-1].body, TurnCompleted)
        assert self._archive.info(session_id).queued == 0

    def _check_answers(self, outcomes: dict[RequestId, PermissionDecided], answered: list[Answered]) -> None:
        self.outcomes.update(each.outcome for each in answered)
        counted = [each.request_id for each in answered if each.outcome == "counted"]
        assert _more_than_once(counted) == []
        assert {outcomes[request_id].by for request_id in counted} <= {"person"}

    def _events(self, session_id: SessionId) -> list[Event]:
        decoded = map(decode_recorded, self._archive.lines_after(session_id, 0))
        return [event for event in decoded if isinstance(event, Event)]

    def _left_behind(self, session_id: SessionId, within_s: float = 3) -> list[str]:
        """What commands of the session still run while it is at rest and its hub lives."""
        deadline = time.monotonic() + within_s
        while (left := _of_session(session_id)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left


def _of_session(session_id: SessionId) -> list[str]:
    found: list[str] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("ENGINEHOUSE_SESSION") == session_id:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def _more_than_once(ids: Iterable[CallId] | Iterable[RequestId]) -> list[str]:
    return [each for each, count in Counter(map(str, ids)).items() if count > 1]


def _step(use: ToolUse) -> str:
    return str(use.input["command"]).split()[1]


def _tag(line: bytes) -> str:
    event = decode_recorded(line)
    return tag_of(event.body)
