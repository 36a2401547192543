"""Two shells with keys, paths and proxies of their own on one hub: nothing of one reaches the other, no key the disk.

Rule: each model answers only whoever brings its key, and is reached only through its own proxy; what is kept and what
processes show is searched for the keys themselves, not for what hides them.
"""

import base64
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from end_to_end.person import ENGINEHOUSE, PATIENCE_S, Person
from model_server import Distant, call, reply, server_in_thread, text_of

KEYS = ("sk-left-shell-0aB3dE6gH9jK2mN5", "sk-right-shell-9zY6xW3vU0tS7rQ4")
PROXY_PASSWORDS = ("left-proxy-word-4711", "right-proxy-word-0815")
PRINT = 'echo "path=$PATH http=$HTTP_PROXY https=$HTTPS_PROXY"; mkfifo waiting && cat waiting'


class Shell:
    """One terminal: its own key, PATH and proxies, and a model only it can talk to."""

    def __init__(self, stack: ExitStack, name: str, key: str, password: str, home: Path, profile: Path) -> None:
        self.name = name
        self.key = key
        script = [reply(calls=[call("bash", {"command": PRINT})]), reply(f"Seen, {name}.")]
        self.server: Distant = stack.enter_context(server_in_thread(script, api_key=key))
        self.person = Person(home)
        self.person.keeps_profile_at(profile)
        self.bin = home / "bin"
        self.bin.mkdir()
        self.person.environment |= {
            "OPENAI_API_KEY": key,
            # Nobody has this name: only the proxy, which is the model itself, can make anything of it.
            "OPENAI_BASE_URL": f"http://{name}.invalid/v1",
            "HTTP_PROXY": self.server.base_url.removesuffix("/v1"),
            "HTTPS_PROXY": f"http://{name}:{password}@{name}-proxy.invalid:3128",
            "PATH": f"{self.bin}:{self.person.environment['PATH']}",
        }

    def runs(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [ENGINEHOUSE, "run", "--json", "--mode", "yolo", f"what does {self.name} see?"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.person.project,
            env=self.person.environment,
        )

    @property
    def told(self) -> str:
        """What its model heard from the tool."""
        body = self.server.quiet(PATIENCE_S)[-1].json or {}
        return "\n".join(text_of(message) for message in body["messages"] if message["role"] == "tool")


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[tuple[Shell, Shell]]:
    with ExitStack() as stack:
        left, right = (
            Shell(stack, name, key, password, tmp_path / name, tmp_path / "profile")
            for name, key, password in zip(("left", "right"), KEYS, PROXY_PASSWORDS, strict=True)
        )
        stack.callback(left.person.ends_hubs)
        yield left, right


def test_two_shells_on_one_hub_each_use_what_is_theirs_and_nothing_secret_is_kept(
    shells: tuple[Shell, Shell], tmp_path: Path
) -> None:
    runs = [shell.runs() for shell in shells]
    try:
        waiting = [_opened(shell.person.project / "waiting", run) for shell, run in zip(shells, runs, strict=True)]
        # Both turns are under way, each with a command that runs.
        [hub] = shells[0].person.hubs()
        assert _in_processes(besides={run.pid for run in runs}) == []
        commands = hub.children(recursive=True)
        assert len([each for each in commands if each.name() == "cat"]) == len(shells)
        for descriptor in waiting:
            os.close(descriptor)
        ended = [run.communicate(timeout=PATIENCE_S) for run in runs]
    finally:
        for run in runs:
            if run.poll() is None:
                run.kill()
                run.communicate()
    assert [run.returncode for run in runs] == [0, 0], ended
    assert shells[0].person.hubs() == [hub]
    for shell, (out, _) in zip(shells, ended, strict=True):
        assert f"Seen, {shell.name}." in out.decode()
        path = shell.person.environment["PATH"]
        proxy = shell.person.environment["HTTP_PROXY"]
        assert f"path={path} http={proxy} https=http://{shell.name}-proxy.invalid:3128" in shell.told
        asked = shell.server.quiet(PATIENCE_S)
        assert {request.headers["authorization"] for request in asked} == {f"Bearer {shell.key}"}
        assert {request.status for request in asked} == {200}
        assert shell.server.problems() == []
    assert len(shells[0].person.runs("sessions", "list", "--json").out.splitlines()) == len(shells)

    assert [secret for out, err in ended for secret in _found_in(out + err)] == []
    assert _in_files(tmp_path) == []
    for shell in shells:
        shell.person.ends_hubs()
    assert _in_files(tmp_path) == []  # also not in what it wrote at its end


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    for secret in (*KEYS, *PROXY_PASSWORDS):
        for before in (b"", b"x", b"xy"):
            assert _found_in(before + secret.encode()) == [secret]
            assert _found_in(base64.b64encode(before + secret.encode() + b"after")) == [secret]
    (tmp_path / "kept").write_text(f"key={KEYS[0]}")
    assert _in_files(tmp_path) == [f"{KEYS[0]} in {tmp_path / 'kept'}"]
    shown = subprocess.Popen(["sleep", "60"], env={"KEY": KEYS[1]})
    try:
        assert _in_processes(besides=set()) == [f"{KEYS[1]} in process {shown.pid}"]
    finally:
        shown.kill()
        shown.wait()


def _opened(fifo: Path, run: subprocess.Popen[bytes]) -> int:
    """The writing end, once the command reads."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if run.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the command never ran: {run.communicate(timeout=5)}") from error
        time.sleep(0.01)


def _found_in(data: bytes) -> list[str]:
    return [secret for secret in (*KEYS, *PROXY_PASSWORDS) if any(each in data for each in _spellings(secret))]


def _spellings(secret: str) -> list[bytes]:
    """As it is, and what base64 makes of it wherever it stands: the part that depends on nothing beside it."""
    data = secret.encode()
    spelled = [data]
    for offset in range(3):
        whole = base64.b64encode(b"\0" * offset + data)
        spelled.append(whole[(offset * 8 + 5) // 6 : (offset + len(data)) * 8 // 6])
    return spelled


def _in_files(folder: Path) -> list[str]:
    return [
        f"{secret} in {path}"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
        for secret in _found_in(path.read_bytes())
    ]


def _in_processes(*, besides: set[int]) -> list[str]:
    """In the command line of any process, and in the environment of all but these."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            if process.pid not in besides:
                shown += Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue  # it ended, or is another user's
        found += [f"{secret} in process {process.pid}" for secret in _found_in(shown)]
    return found
