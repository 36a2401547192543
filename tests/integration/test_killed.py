"""kill -9 of `enginehouse run`, or of its keeper, at any moment: nothing is lost, runs twice, or stays behind.

The model behind it is a process of its own that decides the next step from what the request holds, so it goes on after
every death as a real one would.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import psutil
import pytest

from enginehouse_core.sessions.archive import Archive
from enginehouse_protocol.ids import SessionId
from model_server import server_in_thread, steps

KILLS = int(os.environ.get("ENGINEHOUSE_TEST_KILLS", "50"))
STEPS = 20
PATIENCE_S = 60
WORKERS = 2
MOMENTS = ("step.started", "tool.use", "permission.decided", "tool.result", "usage.updated", "turn.completed")
LINES_A_SESSION = STEPS * 9
ENGINEHOUSE = str(Path(sys.executable).parent / "enginehouse")


def command(step: int) -> str:
    """A step that leaves its number, and a process that left its group, its session and its terminal behind."""
    return f"echo {step} >> steps.txt; (setsid nohup sleep 300 >/dev/null 2>&1 &) ; sleep 0.01"


class Run:
    """One `enginehouse run`, listened to while it lives."""

    def __init__(self, home: "Home", arguments: list[str]) -> None:
        argv = [ENGINEHOUSE, "run", "--no-hub", "--json", "--mode", "yolo", "-C", str(home.project)]
        argv += [*arguments, "go on"]
        self.heard: list[bytes] = []
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=home.environment
        )
        self._listener = Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.heard.append(line[:-1])

    def wait_for_lines(self, count: int) -> None:
        until = time.monotonic() + PATIENCE_S
        while len(self.heard) < count and self.process.poll() is None:
            assert time.monotonic() < until, f"nothing moves any more; last heard: {self.heard[-3:]}"
            time.sleep(0.002)

    def wait_for(self, tag: str) -> None:
        """Until an event of this kind is heard from now on, or the run is over."""
        until, place, wanted = time.monotonic() + PATIENCE_S, len(self.heard), f'"type":"{tag}"'.encode()
        while self.process.poll() is None:
            if any(wanted in line for line in self.heard[place:]):
                return
            assert time.monotonic() < until, f"no {tag} any more; last heard: {self.heard[-3:]}"
            time.sleep(0.001)

    def kill(self, keeper: bool) -> None:
        """End the keeper (the process the shell knows) or the process it keeps."""
        try:
            known = psutil.Process(self.process.pid)
            target = known if keeper else next(iter(known.children()), known)
            target.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            pass  # it was faster

    def ended(self) -> None:
        self.process.wait(20)
        self._listener.join(20)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    @property
    def durable(self) -> list[bytes]:
        return [line for line in self.heard if b'"seq":' in line[:80]]


class Home:
    """A fresh profile, a project, and the environment they are used from."""

    def __init__(self, tmp_path: Path, base_url: str) -> None:
        self.project = tmp_path / "project"
        self.project.mkdir(parents=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "ENGINEHOUSE_PROFILE": str(tmp_path / "profile"),
            "XDG_RUNTIME_DIR": str(tmp_path / "run"),
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": "sk-test-0123456789",
        }
        (tmp_path / "run").mkdir(mode=0o700)

    @property
    def archive(self) -> Archive:
        return Archive(Path(self.environment["ENGINEHOUSE_PROFILE"]) / "transcripts")

    def processes(self) -> list[psutil.Process]:
        """Every process that was started from this home, however far it ran away."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get("ENGINEHOUSE_PROFILE") == self.environment["ENGINEHOUSE_PROFILE"]
                    or process.environ().get("ENGINEHOUSE_SESSION") in self.sessions()
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]

    def sessions(self) -> set[str]:
        return set(self.archive.ids())

    def left_behind(self, within_s: float = 3) -> list[psutil.Process]:
        until = time.monotonic() + within_s
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.05)
        return left


def body_of(line: bytes) -> dict[str, Any]:
    return msgspec.json.decode(line)["body"]


@pytest.mark.timeout(1_800)
def test_a_session_survives_being_killed_at_any_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("ENGINEHOUSE_TEST_SEED", str(random.SystemRandom().randrange(1 << 32))))
    with capsys.disabled():
        print(f"\n{KILLS} kills, seed {seed}")
    with server_in_thread(steps(STEPS, command, final="all done")) as server, ThreadPoolExecutor(WORKERS) as pool:
        homes = [Home(tmp_path / str(number), server.base_url) for number in range(WORKERS)]
        draws = [random.Random(seed + number) for number in range(WORKERS)]
        counts = [KILLS // WORKERS] * WORKERS
        reached = sum(pool.map(kill_again_and_again, homes, draws, counts), Counter[str]())
        assert server.problems() == []
    with capsys.disabled():
        print("last heard before a kill:", dict(reached.most_common()))
    assert sum(reached.values()) == KILLS // WORKERS * WORKERS


def kill_again_and_again(home: Home, draw: random.Random, kills: int) -> Counter[str]:
    """Sessions of `STEPS` steps, each killed and continued until it is done; returns what was heard before each."""
    reached: Counter[str] = Counter()
    while sum(reached.values()) < kills:
        session_id = SessionId("")
        heard: list[bytes] = []
        (home.project / "steps.txt").write_text("")
        finished = False
        while not finished:
            run = Run(home, ["--session", session_id] if session_id else [])
            run.wait_for_lines(draw.randrange(1, LINES_A_SESSION))
            if draw.random() < 0.5:
                run.wait_for(draw.choice(MOMENTS))
            else:
                time.sleep(draw.random() * 0.05)
            if run.process.poll() is None and sum(reached.values()) < kills:
                run.kill(keeper=sum(reached.values()) % 2 == 1)
                reached[body_of(run.heard[-1])["type"] if run.heard else "nothing heard"] += 1
            run.ended()
            assert home.left_behind() == []
            heard += run.durable
            if not session_id and heard:
                session_id = SessionId(msgspec.json.decode(heard[0])["session_id"])
            if session_id:
                finished = check(home, session_id, heard)
    return reached


def check(home: Home, session_id: SessionId, heard: list[bytes]) -> bool:
    """Everything that must be true after a death; returns whether the session's work is done."""
    lines = list(home.archive.lines_after(session_id, 0))
    assert set(heard) <= set(lines)
    assert [msgspec.json.decode(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
    ran = (home.project / "steps.txt").read_text().split()
    twice = [number for number, count in Counter(ran).items() if count > 1]
    assert twice == []
    bodies = [body_of(line) for line in lines]
    queued = {body["message_id"] for body in bodies if body["type"] == "message.queued"}
    delivered = {body["message_id"] for body in bodies if body["type"] == "message.user"}
    assert home.archive.info(session_id).queued == len(queued - delivered)
    said = [body["text"] for body in bodies if body["type"] == "message.assistant"]
    return "all done" in said
