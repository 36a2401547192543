"""Somebody with a home folder, a project and the command line.

Rule: nothing of the machine's own home, profile or variables comes in, and every wait has a deadline.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any, Self

import msgspec
import psutil

ENGINEHOUSE = str(Path(sysconfig.get_path("scripts")) / "enginehouse")
PATIENCE_S = 60
_HUB_ENDS_WITHIN_S = 15
_ON_A_TERMINAL = "import fcntl,os,sys,termios;fcntl.ioctl(2,termios.TIOCSCTTY,0);os.execv(sys.argv[1],sys.argv[1:])"


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    out_bytes: bytes = b""

    @property
    def events(self) -> list[dict[str, Any]]:
        """What stdout has, one JSON object a line."""
        return [msgspec.json.decode(line) for line in self.out_bytes.splitlines()]

    @property
    def durable(self) -> bytes:
        """The lines of stdout that are events of the record, as they came."""
        return b"".join(line for line in self.out_bytes.splitlines(keepends=True) if "seq" in msgspec.json.decode(line))

    def bodies(self, tag: str) -> list[dict[str, Any]]:
        return [event["body"] for event in self.events if event["body"]["type"] == tag]


class Person:
    def __init__(self, home: Path, base_url: str = "") -> None:
        self.home = home
        self.profile = home / "profile"
        self._profiles = {self.profile}
        self.project = home / "project"
        self.project.mkdir(parents=True)
        self.environment = {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin")),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "ENGINEHOUSE_PROFILE": str(self.profile),
            **{f"XDG_{name}_HOME": str(home / "xdg" / name.lower()) for name in ("DATA", "CACHE", "STATE", "CONFIG")},
        }
        if base_url:
            self.environment |= {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "sk-end-to-end-0123456789"}

    def keeps_profile_at(self, profile: Path) -> None:
        self.profile = profile
        self._profiles.add(profile)
        self.environment["ENGINEHOUSE_PROFILE"] = str(profile)

    def runs(
        self,
        *arguments: str | bytes,
        typed: bytes = b"",
        cwd: Path | None = None,
        also: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run a command to its end; stdin is a pipe with `typed` in it."""
        ended = subprocess.run(
            [ENGINEHOUSE, *arguments],
            input=typed,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=cwd or self.project,
            env={**self.environment, **(also or {})},
        )
        return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode(), ended.stdout)

    @contextmanager
    def starts(self, *arguments: str, stdout: int = subprocess.PIPE) -> "Iterator[subprocess.Popen[bytes]]":
        """Start a command that can ask nobody. What still runs at the end is killed."""
        process = subprocess.Popen(
            [ENGINEHOUSE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd=self.project,
            env=self.environment,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def sits_at(self, *arguments: str, piped: bool = False, also: Mapping[str, str] | None = None) -> "Terminal":
        """Run a command on a terminal of its own; `piped`: only its stdout goes elsewhere."""
        return Terminal([ENGINEHOUSE, *arguments], self.project, {**self.environment, **(also or {})}, piped=piped)

    def session_id(self) -> str:
        """Of the newest session. An only one is found without a process: this is asked again and again."""
        known = list((self.profile / "transcripts").glob("s_*"))
        return known[0].name if len(known) == 1 else self.newest_session()["id"]

    def newest_session(self) -> dict[str, Any]:
        """As `sessions list --json` tells it."""
        listed = self.runs("sessions", "list", "--json")
        return msgspec.json.decode(listed.out_bytes.splitlines()[0])

    def alive(self, *commands: str) -> list[str]:
        """What runs of this person's beside the hub: known by the home folder in its environment, or by being one of
        `commands`."""
        mark = f"HOME={self.home}".encode()
        return [
            command
            for _, command, environment in _processes()
            if (mark in environment or command in commands) and not _is_hub(command)
        ]

    def hubs(self) -> list[psutil.Process]:
        """The hubs of this person's profiles: of each the process that serves, not its keeper."""
        return [each for each in self._hub_processes() if (parent := _parent(each)) and _is_hub(_words(parent))]

    def ends_hubs(self) -> None:
        """As a log-out does it, and within a deadline: what a test leaves running is a failure of the hub."""
        processes = self._hub_processes()
        for each in processes:
            if (parent := _parent(each)) is None or parent not in processes:  # the keeper passes it on
                _signal(each, signal.SIGTERM)
        deadline = time.monotonic() + _HUB_ENDS_WITHIN_S
        while left := self._hub_processes():
            if time.monotonic() > deadline:
                for each in left:
                    _signal(each, signal.SIGKILL)
                raise AssertionError(f"the hub did not end within {_HUB_ENDS_WITHIN_S} s: {left}")
            time.sleep(0.01)

    def _hub_processes(self) -> list[psutil.Process]:
        marks = {f"ENGINEHOUSE_PROFILE={profile}".encode() for profile in self._profiles}
        found: list[psutil.Process] = []
        for pid, command, environment in _processes():
            if _is_hub(command) and marks & environment:
                with suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(pid))
        return found


def _processes() -> Iterator[tuple[int, str, set[bytes]]]:
    """What runs: number, command line, environment."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            yield int(process.name), b" ".join(words).decode("utf-8", "replace"), set(environment)


def _is_hub(command: str) -> bool:
    return "enginehouse hub serve" in command


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.NoSuchProcess:
        return None


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def hub_status(person: Person) -> dict[str, Any]:
    return msgspec.json.decode(person.runs("hub", "status", "--json").out)


def one_line(ended: Ended, code: int, says: str) -> None:
    """It ended with `code`, and what it said is one line with `says` in it."""
    assert (ended.code, ended.out) == (code, ""), ended
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1, ended.err


def until(holds: Callable[[], bool]) -> None:
    """What another process does can only be seen by looking."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Terminal:
    """A pseudo-terminal with one command on it. Use as a context manager: what still runs at the end is killed."""

    def __init__(self, command: list[str], cwd: Path, environment: Mapping[str, str], *, piped: bool) -> None:
        self._ours, theirs = os.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_A_TERMINAL, *command],
            stdin=theirs,
            stdout=subprocess.PIPE if piped else theirs,
            stderr=theirs,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""
        self._read_to = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        os.close(self._ours)

    def until(self, text: str) -> str:
        """Wait until `text` is shown, after whatever was waited for before; returns what was shown up to it."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.shown.find(text, self._read_to)) < 0:
            if not self._more(deadline):
                raise AssertionError(f"{text!r} never came; the terminal shows:\n{self.shown}")
        before, self._read_to = self.shown[self._read_to : found], found + len(text)
        return before

    def fileno(self) -> int:
        """Our side, for whoever reads it instead of `until` and `ends`."""
        return self._ours

    def code(self) -> int | None:
        """How the command ended; None while it runs."""
        return self._process.poll()

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def presses_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def gets(self, number: signal.Signals) -> None:
        """A signal, sent to the command by its number."""
        self._process.send_signal(number)

    def is_closed(self) -> int:
        """The window goes away. How the command ends then, as a shell tells it."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._ours)  # which closes our side of the terminal
        os.close(nothing)
        code = self._process.wait(PATIENCE_S)
        return code if code >= 0 else 128 - code

    def ends(self) -> Ended:
        """Wait for the command's end."""
        deadline = time.monotonic() + PATIENCE_S
        while self._more(deadline):
            pass
        out = b"" if self._process.stdout is None else self._process.stdout.read()
        return Ended(self._process.wait(PATIENCE_S), out.decode(), self.shown, out)

    def _more(self, deadline: float) -> bool:
        """Read what is shown next; False at the end of the command or of our patience."""
        if not select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise AssertionError(f"nothing more came in {PATIENCE_S} s; the terminal shows:\n{self.shown}")
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the last descriptor of the other side is closed
            return False
        self.shown += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)
