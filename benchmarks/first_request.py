"""From the start of a command to its first complete request at the model: ours, hub running and not, beside others.

Others are measured where they are installed: `codex` and `pi` on the PATH, or where ENGINEHOUSE_BENCH_CODEX and
ENGINEHOUSE_BENCH_PI say. Nothing is downloaded. The model is deaf: it notes the time and refuses, so what a peer would
do with an answer does not count.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from benchmarks.row import Row
from end_to_end.person import ENGINEHOUSE, Person

ROUNDS = 7
_PATIENCE_S = 30.0
_REFUSAL = b'{"error":{"message":"refused","type":"invalid_request_error","param":null,"code":"refused"}}'
_MODELS = b'{"object":"list","data":[{"id":"scripted","object":"model","created":0,"owned_by":"bench"}]}'
_IMPORT = "import time;a=time.process_time();import openai;print(time.process_time()-a)"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever is killed leaves its connection as it is."""


class DeafModel:
    """Says when a request was complete, and refuses it. Which models there are it tells."""

    def __init__(self) -> None:
        arrived: Queue[float] = Queue()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                arrived.put(time.monotonic())
                self._answer(400, _REFUSAL)

            def do_GET(self) -> None:
                self._answer(200, _MODELS) if self.path == "/v1/models" else self._answer(404, _REFUSAL)

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._arrived = arrived
        self._server = _Server(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @contextmanager
    def listening(self) -> Iterator["DeafModel"]:
        thread = Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(5)

    def forget(self) -> None:
        while not self._arrived.empty():
            self._arrived.get_nowait()

    def first_after(self, start_s: float) -> float | None:
        """Milliseconds; None: none came."""
        try:
            return 1_000 * (self._arrived.get(timeout=_PATIENCE_S) - start_s)
        except Empty:
            return None


@dataclass
class Contender:
    name: str
    argv: list[str]
    environment: Mapping[str, str]
    prepare: Callable[[], object] = lambda: None
    """Before each round, not timed."""
    ours: bool = False
    silent: bool = False
    """It sent nothing, so it is not waited for again."""
    times_ms: list[float] = field(default_factory=list[float])

    @property
    def median_ms(self) -> float:
        return sorted(self.times_ms)[len(self.times_ms) // 2]


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as place, DeafModel().listening() as model:
        person = Person(Path(place) / "home", model.base_url)
        warm = Contender("warm", [ENGINEHOUSE, "run", "hi"], person.environment, lambda: _warm(person), ours=True)
        cold = Contender("cold", [ENGINEHOUSE, "run", "hi"], person.environment, person.ends_hubs, ours=True)
        codex, pi = _codex(Path(place), person, model), _pi(Path(place), person, model)
        try:
            for _ in range(ROUNDS):
                for each in (warm, cold, codex, pi):
                    if each is not None and not each.silent:
                        _run(each, person.project, model)
        finally:
            person.ends_hubs()
    import_ms = 1_000 * float(subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, check=True).stdout)
    return [
        _row("start to first request, hub running", warm, "codex exec", codex, "<= 1.0"),
        _row("start to first request, hub started too", cold, "pi", pi, "<= 1.0"),
        Row(
            "of which importing openai, CPU",
            f"{import_ms:.0f} ms",
            f"cold start {cold.median_ms:.0f} ms",
            import_ms / cold.median_ms,
            "reported",
        ),
    ]


def _row(what: str, ours: Contender, name: str, other: Contender | None, target: str) -> Row:
    told = f"{ours.median_ms:.0f} ms"
    if other is None:
        return Row(what, told, f"{name} IS NOT INSTALLED", float("nan"), f"{target}, NOT COMPARED")
    if not other.times_ms:
        return Row(what, told, f"{name} SENT NOTHING", float("nan"), f"{target}, NOT COMPARED")
    return Row(what, told, f"{name} {other.median_ms:.0f} ms", ours.median_ms / other.median_ms, target)


def _run(contender: Contender, project: Path, model: DeafModel) -> None:
    contender.prepare()
    model.forget()
    start = time.monotonic()
    process = subprocess.Popen(
        contender.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=project,
        env=dict(contender.environment),
        start_new_session=True,
    )
    if (taken := model.first_after(start)) is None:
        contender.silent = True
    else:
        contender.times_ms.append(taken)
    if not contender.ours:  # which would go on trying
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_PATIENCE_S)


def _warm(person: Person) -> None:
    """A hub that has served before."""
    person.runs("run", "hello")


def _found(variable: str, program: str) -> str | None:
    return os.environ.get(variable) or shutil.which(program)


def _codex(place: Path, person: Person, model: DeafModel) -> Contender | None:
    program = _found("ENGINEHOUSE_BENCH_CODEX", "codex")
    if program is None:
        return None
    home = place / "codex"
    home.mkdir()
    (home / "config.toml").write_text(
        'model = "scripted"\nmodel_provider = "bench"\n\n[model_providers.bench]\nname = "bench"\n'
        f'base_url = "{model.base_url}"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
        "request_max_retries = 0\nstream_max_retries = 0\n"
    )
    argv = [program, "exec", "--json", "--skip-git-repo-check", "hi"]
    return Contender("codex", argv, _theirs(person) | {"CODEX_HOME": str(home)})


def _pi(place: Path, person: Person, model: DeafModel) -> Contender | None:
    program = _found("ENGINEHOUSE_BENCH_PI", "pi")
    if program is None:
        return None
    home = place / "pi"
    home.mkdir()
    provider = {"baseUrl": model.base_url, "api": "openai-completions", "apiKey": "any", "models": [{"id": "scripted"}]}
    (home / "models.json").write_text(json.dumps({"providers": {"bench": provider}}))
    argv = [program, "--print", "--offline", "--no-session", "--provider", "bench", "--model", "scripted", "hi"]
    return Contender("pi", argv, _theirs(person) | {"PI_CODING_AGENT_DIR": str(home), "PI_TELEMETRY": "0"})


def _theirs(person: Person) -> dict[str, str]:
    """Ours, with the programs theirs are made of."""
    return {**person.environment, "PATH": os.environ["PATH"]}
