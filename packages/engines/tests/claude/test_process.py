"""What the CLI's process may see, what it may reach, and what is left of it afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from enginehouse_engines.claude import create
from enginehouse_protocol.conformance.opened import until
from enginehouse_protocol.content import content_text
from enginehouse_protocol.engine import Access, Provider
from enginehouse_protocol.events import Notice, ToolResult
from model_server import MessagesServer, call, reply

from .conftest import KEY, Opener, Setup, access_to, home_in
from .processes import clis

pytestmark = pytest.mark.anyio


async def test_the_key_is_in_no_argument_no_environment_and_no_file_but_in_the_request(
    live: Opener, tmp_path: Path
) -> None:
    """It goes through a pipe, and not even a command of the CLI sees it."""
    look = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'"
    script = [reply(calls=[call("Bash", {"command": look})]), reply("done")]
    async with live(script) as it:
        await it.port.run(it.session, "go")
        assert {request.headers.get("x-api-key") for request in it.server.chats} == {KEY}
        for process in psutil.Process().children(recursive=True):
            assert KEY not in " ".join(process.cmdline())
            assert KEY not in process.environ().values()
        seen = content_text(it.port.all(ToolResult)[0].content)
        assert "CLAUDE_CODE_TMPDIR" in seen
        assert KEY not in seen
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert KEY.encode() not in file.read_bytes(), file


async def test_the_environment_is_what_was_given_and_nothing_of_ours(
    live: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBS_OWN", "hub-secret-plum")
    monkeypatch.setenv("CLAUDECODE", "1")
    script = [reply(calls=[call("Bash", {"command": "env"})]), reply("done")]
    async with live(script, Setup(environment={"PERSONS_OWN": "person-pear", "CLAUDE_CODE_SSE_PORT": "1"})) as it:
        await it.port.run(it.session, "go")
        environments = [process.environ() for process in clis()]
    seen = content_text(it.port.all(ToolResult)[0].content)
    assert "person-pear" in seen
    assert "hub-secret-plum" not in seen
    assert all("CLAUDE_CODE_SSE_PORT" not in environment for environment in environments)


async def test_the_persons_settings_neither_redirect_the_model_nor_hide_that_they_set_another_key(live: Opener) -> None:
    """Traps: `env` in the person's settings beats our environment, but not `--settings`; its key beats the pipe."""
    theirs = {"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "ANTHROPIC_API_KEY": "sk-theirs-0123456789"}}
    async with live(reply("hi"), Setup(user_settings=theirs)) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        assert len(it.server.chats) == 1
    told = it.port.all(Notice, lambda notice: notice.code == "claude.other_key")
    assert len(told) == 1
    assert "ANTHROPIC_API_KEY" in told[0].text
    assert "sk-theirs" not in told[0].text


async def test_temporary_files_are_private_and_gone_afterwards(live: Opener) -> None:
    """Trap: the CLI keeps sockets and outputs in the common temporary folder."""
    script = [reply(calls=[call("Bash", {"command": "echo $TMPDIR; touch $TMPDIR/mine"})]), reply("done")]
    async with live(script) as it:
        await it.port.run(it.session, "go")
        folder = Path(content_text(it.port.all(ToolResult)[0].content).split()[0])
        assert (folder / "mine").exists()
        assert folder.stat().st_mode & 0o777 == 0o700
        # Its sockets are made there too, not in a folder that all sessions share.
        assert [path for path in folder.rglob("*") if path.is_socket()] != []
    assert not folder.exists()


async def test_a_session_that_is_left_leaves_no_process_behind(live: Opener) -> None:
    detach = "(setsid tail -f /dev/null > /dev/null 2>&1 &) ; touch begun"
    script = [reply(calls=[call("Bash", {"command": detach})]), reply("done")]
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    async with live(script) as it:
        await it.port.run(it.session, "go")
        assert (it.workspace.directory / "begun").exists()
    now = {process.pid for process in psutil.Process().children(recursive=True)}
    assert now <= before
    await until(lambda: not any(process.name() == "tail" for process in psutil.Process().children(recursive=True)))


async def test_nothing_is_called_but_the_model(live: Opener) -> None:
    """Every other way out leads through the proxy here, and nobody comes by."""
    visitors: list[bytes] = []
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)

    async def visited(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            visitors.append(await stream.receive())

    proxy = f"http://127.0.0.1:{port}"
    proxied = {"HTTPS_PROXY": proxy, "HTTP_PROXY": proxy, "NO_PROXY": "127.0.0.1"}
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, visited)
        async with live(reply("hi"), Setup(environment=proxied)) as it:
            await it.port.run(it.session, "go")
            assert [request.path for request in it.server.requests] == ["/v1/messages"]
        tasks.cancel_scope.cancel()
    assert visitors == []


async def test_an_isolated_provider_keeps_its_sessions_in_the_profile(live: Opener, tmp_path: Path) -> None:
    async with live(reply("hi"), Setup(options={"isolated": True})) as it:
        await it.port.run(it.session, "go")
    own = it.home.state / "backends" / "scripted"
    assert own.stat().st_mode & 0o777 == 0o700
    assert list(own.rglob("*.jsonl")) != []
    assert list(it.configuration.rglob("*.jsonl")) == []


async def test_instructions_reach_the_model_beside_claudes_own(live: Opener) -> None:
    async with live(reply("hi"), Setup(instructions="Answer in plums – only.")) as it:
        await it.port.run(it.session, "go")
        system = str((it.server.chats[0].json or {})["system"])
    assert "Answer in plums – only." in system
    assert "Claude Code" in system


def test_importing_the_engine_imports_no_sdk_and_without_it_says_how_to_get_it(tmp_path: Path) -> None:
    """In a Python of its own: here the SDK may have been imported already."""
    program = f"""
import sys, logging, anyio
from pathlib import Path
from enginehouse_engines.claude import create
from enginehouse_protocol.engine import Access, EngineHome
assert "claude_agent_sdk" not in sys.modules
sys.modules["claude_agent_sdk"] = None  # as if it were not installed
async def main():
    engine = create(EngineHome(state=Path({str(tmp_path)!r}), kept=list, log=logging.getLogger("x")))
    async with engine:
        print((await engine.describe(Access())).problem)
anyio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'enginehouse[claude]'" in done.stdout


async def test_a_description_is_asked_of_the_cli_and_calls_no_model(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with MessagesServer(reply("hi")) as server, create(home_in(tmp_path)) as engine:
            found = await engine.describe(access_to(server.address, tmp_path))
            assert server.requests == []
    assert found.problem is None
    assert {"opus", "sonnet"} <= {model.name for model in found.models}
    assert found.efforts[0] == "low"


@pytest.mark.parametrize(
    "access, words",
    [
        (Access(provider=Provider(name="p", options={"colour": "blue"})), "colour"),
        (Access(provider=Provider(name="p", options={"max_retries": -1})), "max_retries"),
        (Access(provider=Provider(name="p", options={"executable": "/nowhere/claude"})), "/nowhere/claude"),
        (Access(provider=Provider(name="p", base_url="plum")), "no web address"),
        (Access(environment={"HOME": "/nonexistent"}), "not logged in"),
    ],
    ids=["unknown option", "bad option", "no program", "no address", "no account"],
)
async def test_what_stands_in_the_way_is_described(tmp_path: Path, access: Access, words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with anyio.fail_after(30):
        async with create(home_in(tmp_path)) as engine:
            found = await engine.describe(Access(provider=access.provider, environment=environment))
    assert words in (found.problem or "")
