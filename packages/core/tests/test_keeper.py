"""Nobody is left behind, whoever dies first. Real processes throughout."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from enginehouse_core import keeper

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lets a process adopt orphans; elsewhere the keeper promises less"
)

DEATH_S = 2.0

# What commands do to survive. Each line leaves processes that would sleep for minutes.
HIDING_PLACES = {
    "in the background": "sleep 300 &",
    "in a session of its own": "setsid nohup sleep 300 >/dev/null 2>&1 &",
    "an orphan in a session of its own": "(setsid nohup sleep 300 >/dev/null 2>&1 &)",
    "deaf to SIGTERM": "(setsid bash -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' &)",
    "stopped": "(setsid bash -c 'kill -STOP $$; sleep 300' &)",
    "without our marker in its environment": "(env -i /bin/sh -c 'setsid sleep 300' &)",
    "forking": "(setsid bash -c 'for i in {1..100}; do (setsid sleep 300 &); done; sleep 300' &)",
}


class Program:
    """A kept program under test: `pid` is its keeper's; everything below carries a mark, also when it is orphaned."""

    def __init__(self, script: Path, *, launcher: tuple[str, ...] = (), stdin: int | None = subprocess.PIPE) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*launcher, sys.executable, str(script)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            env={**os.environ, "KEEPER_TEST": self.mark},
        )
        assert self.process.stdout is not None
        self.stdout: IO[bytes] = self.process.stdout
        self.seen: set[psutil.Process] = set()

    def line(self) -> str:
        return self.stdout.readline().decode().strip()

    def alive(self) -> list[psutil.Process]:
        """What carries the mark, and what was seen to descend from it."""
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if one.environ().get("KEEPER_TEST") == self.mark:
                    self.seen.add(one)
                    self.seen.update(one.children(recursive=True))
        living: list[psutil.Process] = []
        for one in self.seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                    living.append(one)
        return living

    def left_after(self, seconds: float) -> list[psutil.Process]:
        deadline = time.monotonic() + seconds
        while (living := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.01)  # the end of a stranger has no event
        return living

    def end(self) -> None:
        for one in self.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait(10)
        self.stdout.close()
        if self.process.stdin is not None:
            self.process.stdin.close()


class Scripts:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs: list[Program] = []

    def start(self, body: str, *, kept: bool = True, launcher: tuple[str, ...] = ()) -> Program:
        first = "from enginehouse_core import keeper\nkeeper.keep()\n" if kept else ""
        script = self._folder / f"program_{len(self._programs)}.py"
        script.write_text(first + "import os, signal, subprocess, sys, time\n" + textwrap.dedent(body))
        program = Program(script, launcher=launcher)
        self._programs.append(program)
        return program

    def end(self) -> None:
        for program in self._programs:
            program.end()


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    running = Scripts(tmp_path)
    yield running
    running.end()


def starting(commands: list[str]) -> str:
    """Script lines that start `commands` in shells of their own and then say who the program is."""
    return textwrap.dedent(f"""
        for command in {commands!r}:
            subprocess.run(["bash", "-c", command], start_new_session=True, check=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print(os.getpid(), flush=True)
    """)


@pytest.mark.parametrize(
    "ending, status",
    [
        ("sys.exit(0)", 0),
        ("sys.exit(7)", 7),
        ("sys.exit(130)", 130),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    ],
)
def test_the_keeper_leaves_the_way_the_program_did(scripts: Scripts, ending: str, status: int) -> None:
    assert scripts.start(ending).process.wait(10) == status


@pytest.mark.parametrize("hiding", HIDING_PLACES)
def test_what_a_program_leaves_behind_is_ended(scripts: Scripts, hiding: str) -> None:
    program = scripts.start(starting([HIDING_PLACES[hiding]]) + "sys.stdin.read()")
    program.line()
    assert len(program.alive()) > 2
    assert program.process.stdin is not None
    program.process.stdin.close()
    assert program.process.wait(10) == 0
    assert program.alive() == []


def test_a_killed_program_takes_everything_with_it(scripts: Scripts) -> None:
    program = scripts.start(starting(list(HIDING_PLACES.values())) + "time.sleep(300)")
    worker = int(program.line())
    assert len(program.alive()) > len(HIDING_PLACES)
    os.kill(worker, signal.SIGKILL)
    assert program.process.wait(10) == -signal.SIGKILL
    assert program.alive() == []


def test_a_stopped_program_that_is_killed_takes_everything_with_it(scripts: Scripts) -> None:
    program = scripts.start(starting(["setsid sleep 300 &"]) + "time.sleep(300)")
    worker = int(program.line())
    assert len(program.alive()) == 3
    os.kill(worker, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    assert program.process.wait(10) == -signal.SIGKILL
    assert program.alive() == []


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param("time.sleep(300)", id="the main thread sleeps"),
        pytest.param("while True: pass", id="the main thread computes"),
        pytest.param(
            "signal.pthread_sigmask(0, signal.valid_signals()); print('deaf', flush=True); time.sleep(99)",
            id="the main thread hears no signal",
        ),
    ],
)
def test_a_killed_keeper_takes_everything_with_it(scripts: Scripts, busy: str) -> None:
    program = scripts.start(starting(list(HIDING_PLACES.values())) + busy)
    program.line()
    if "deaf" in busy:
        assert program.line() == "deaf"
    assert len(program.alive()) > len(HIDING_PLACES)
    program.process.kill()
    assert program.left_after(DEATH_S) == []


def test_a_killed_keeper_is_noticed_even_when_its_pipe_stays_open(scripts: Scripts) -> None:
    program = scripts.start(starting(list(HIDING_PLACES.values())) + "time.sleep(300)")
    program.line()
    folder = Path(f"/proc/{program.process.pid}/fd")
    (pipe,) = [link for link in folder.iterdir() if int(link.name) > 2 and os.readlink(link).startswith("pipe:")]
    held = os.open(pipe, os.O_WRONLY)
    try:
        program.process.kill()
        assert program.left_after(DEATH_S) == []
    finally:
        os.close(held)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_sent_to_the_keeper_reaches_the_program_once(scripts: Scripts, number: signal.Signals) -> None:
    program = scripts.start(f"""
        heard = []
        signal.signal({int(number)}, lambda number, frame: (heard.append(number), print("heard", flush=True)))
        print("ready", flush=True)
        sys.stdin.read()
        sys.exit(len(heard))
    """)
    assert program.line() == "ready"
    os.kill(program.process.pid, number)
    assert program.line() == "heard"
    assert program.process.stdin is not None
    program.process.stdin.close()
    assert program.process.wait(10) == 1


def test_the_keeper_holds_open_nothing_that_was_the_programs(scripts: Scripts) -> None:
    program = scripts.start("""
        os.close(1)
        sys.stdin.read()
    """)
    assert program.stdout.read() == b""  # the end of the pipe, while both are running
    assert program.process.poll() is None


def test_children_the_program_waits_for_keep_their_exit_status(scripts: Scripts) -> None:
    program = scripts.start("""
        import anyio
        async def work():
            codes = [(await anyio.run_process(["sh", "-c", f"(sleep 0.01 &) ; exit {n}"], check=False)).returncode
                     for n in range(20)]
            print(codes == list(range(20)), flush=True)
        anyio.run(work)
    """)
    assert program.line() == "True"
    assert program.process.wait(10) == 0


ON_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextlib.contextmanager
def on_a_terminal(command: list[str]) -> Generator[tuple[int, subprocess.Popen[bytes]], None, None]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, *command], stdin=theirs, stdout=subprocess.PIPE, close_fds=True
    )
    os.close(theirs)
    try:
        yield ours, process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(process.pid).children(recursive=True):
                one.kill()
        process.kill()
        process.wait(10)
        os.close(ours)
        assert process.stdout is not None
        process.stdout.close()


def test_control_c_reaches_the_program_once_and_does_not_end_the_keeper(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent("""
        from enginehouse_core import keeper
        keeper.keep()
        import os, signal, sys
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)  # a byte for each signal, also for two that Python would handle as one
        for number in (signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: None)
        print("ready", flush=True)
        heard = b""
        while signal.SIGUSR1 not in heard:
            heard += os.read(reader, 1)
            print(heard[-1], flush=True)
        sys.exit(40 + heard.count(signal.SIGINT))
        """)
    )
    with on_a_terminal([sys.executable, str(script)]) as (terminal, process):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.write(terminal, b"\x03")
        assert process.stdout.readline() == b"%d\n" % signal.SIGINT
        os.kill(process.pid, signal.SIGUSR1)  # comes through the keeper, and after whatever it made of SIGINT
        assert process.wait(10) == 41


def test_a_hang_up_reaches_the_program_although_the_kernel_tells_only_the_keeper(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent("""
        from enginehouse_core import keeper
        keeper.keep()
        import os, signal, sys
        signal.signal(signal.SIGHUP, lambda number, frame: sys.exit(41))
        signal.alarm(8)
        print("ready", flush=True)
        while True:
            signal.pause()
        """)
    )
    with on_a_terminal([sys.executable, str(script)]) as (terminal, process):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, terminal)  # which closes our side: the window is gone
        os.close(nothing)
        assert process.wait(10) == 41


def test_whether_orphans_are_handed_over_is_found_without_a_trace(scripts: Scripts) -> None:
    program = scripts.start(
        """
        import ctypes
        from enginehouse_core import keeper
        adopts = ctypes.c_int()
        found = keeper.hands_orphans_over()
        ctypes.CDLL(None).prctl(37, ctypes.byref(adopts), 0, 0, 0)
        print(found, adopts.value, flush=True)
        """,
        kept=False,
    )
    assert program.line() == "True 0"


def test_control_z_stops_both_for_the_shell_and_its_fg_continues_both(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        from enginehouse_core import keeper
        keeper.keep()
        import sys
        print("ready", flush=True)
        print("read", sys.stdin.readline().strip(), flush=True)
        """)
    )
    shell = tmp_path / "shell.py"  # what a shell with job control does for one job
    shell.write_text(
        textwrap.dedent(f"""
        import os, signal, sys
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpgrp())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execv(sys.executable, [sys.executable, {str(program)!r}])
        stopped = os.waitpid(job, os.WUNTRACED)[1]
        os.tcsetpgrp(0, os.getpgrp())
        print("stopped", os.WIFSTOPPED(stopped), flush=True)
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)
        print("ended", os.waitpid(job, os.WUNTRACED)[1], flush=True)
        """)
    )
    with on_a_terminal([sys.executable, str(shell)]) as (terminal, process):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.write(terminal, b"\x1a")
        assert process.stdout.readline() == b"stopped True\n"
        os.write(terminal, b"hello\n")
        assert process.stdout.readline() == b"read hello\n"
        assert process.stdout.readline() == b"ended 0\n"


# In front of an engine


def kept(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(keeper.command_kept(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_in_front_of_an_engine_its_streams_and_status_are_the_engines(tmp_path: Path) -> None:
    with kept("bash", "-c", "read line; echo got $line; exit 5") as process:
        output, _ = process.communicate(b"hello\n", timeout=10)
    assert (output, process.returncode) == (b"got hello\n", 5)


def test_a_signal_that_ends_the_engine_ends_its_keeper_alike() -> None:
    with kept("bash", "-c", "kill -USR1 $$") as process:
        assert process.wait(10) == -signal.SIGUSR1


def test_the_documented_command_line_works_and_says_what_cannot_be_started() -> None:
    command = [sys.executable, "-m", "enginehouse_core.keeper", "--", "no-such-engine"]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=10, check=False)
    assert done.returncode == 127
    assert b"cannot start 'no-such-engine'" in done.stderr


def test_a_project_cannot_slip_modules_under_the_keeper(tmp_path: Path) -> None:
    for name in ("signal", "enginehouse_core", "os"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    done = subprocess.run(
        keeper.command_kept(["true"]), cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, timeout=10, check=False
    )
    assert done.returncode == 0


ENGINE_WITH_A_FAMILY = "\n".join([*HIDING_PLACES.values(), "echo up", "wait; sleep 300"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_everything_below_an_engine_dies_with_whoever_started_it(scripts: Scripts, number: signal.Signals) -> None:
    starter = scripts.start(
        f"""
        from enginehouse_core import keeper
        subprocess.Popen(keeper.command_kept(["bash", "-c", {ENGINE_WITH_A_FAMILY!r}]))
        time.sleep(300)
        """,
        kept=False,
    )
    assert starter.line() == "up"
    assert len(starter.alive()) > len(HIDING_PLACES)
    starter.process.send_signal(number)
    assert starter.left_after(DEATH_S) == []


def test_sigterm_to_the_keeper_ends_the_engine_and_everything_below(scripts: Scripts) -> None:
    starter = scripts.start(
        f"""
        from enginehouse_core import keeper
        front = subprocess.Popen(keeper.command_kept(["bash", "-c", {ENGINE_WITH_A_FAMILY!r}]))
        sys.stdin.readline()
        front.terminate()
        print(front.wait(), flush=True)
        sys.stdin.readline()
        """,
        kept=False,
    )
    assert starter.line() == "up"
    assert len(starter.alive()) > len(HIDING_PLACES)
    assert starter.process.stdin is not None
    starter.process.stdin.write(b"now\n")
    starter.process.stdin.flush()
    assert starter.line() == str(-signal.SIGTERM)
    assert [one.pid for one in starter.alive()] == [starter.process.pid]


def test_an_engine_does_not_outlive_a_killed_keeper(scripts: Scripts) -> None:
    starter = scripts.start(
        """
        from enginehouse_core import keeper
        front = subprocess.Popen(keeper.command_kept(["sh", "-c", "echo $$; exec sleep 300"]))
        sys.stdin.readline()
        front.kill()
        sys.stdin.readline()
        """,
        kept=False,
    )
    engine = psutil.Process(int(starter.line()))
    assert engine.is_running()
    assert starter.process.stdin is not None
    starter.process.stdin.write(b"now\n")
    starter.process.stdin.flush()
    assert psutil.wait_procs([engine], timeout=DEATH_S)[1] == []


def test_an_engine_outlives_the_thread_that_started_it(scripts: Scripts) -> None:
    starter = scripts.start(
        """
        import threading
        from enginehouse_core import keeper
        made = []
        def echo():
            made[0].stdin.write(b"hello\\n")
            made[0].stdin.flush()
            return made[0].stdout.readline() == b"hello\\n"
        def work():
            made.append(subprocess.Popen(keeper.command_kept(["cat"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            echo()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        while len(os.listdir("/proc/self/task")) > 1:
            pass
        until = time.monotonic() + 0.5
        while echo() and time.monotonic() < until:
            pass
        made[0].stdin.close()
        print(made[0].wait(), flush=True)
        """,
        kept=False,
    )
    assert starter.line() == "0"


def test_the_keeper_imports_nothing_that_costs() -> None:
    packages = str(Path(keeper.__file__).parents[1])
    code = (
        f"import sys, json; sys.path.insert(0, {packages!r}); import signal; before = set(sys.modules);"
        "import enginehouse_core.keeper; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE, timeout=10, check=True)
    assert set(json.loads(done.stdout)) <= {
        "__future__",
        "enginehouse_core",
        "enginehouse_core.keeper",
        "enginehouse_core.workspace",
        "enginehouse_core.workspace.process_tree",
        "os", "os.path", "posixpath", "genericpath", "stat", "_stat", "abc", "_abc", "_collections_abc",
    }  # fmt: skip
