"""Claude from the command line: the same `run`, another engine. The CLI is real, the model behind it a script."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.person import Person
from model_server import ChatRequest, MessagesServer, call, reply, server_in_thread
from model_server.script import Answer

KEY = "sk-ant-end-to-end-0123456789"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("claude_agent_sdk") is None,
    reason="the extra `claude` is not installed: `uv sync --group dev` brings the SDK and the CLI in it",
)


@pytest.fixture
def ada(tmp_path: Path) -> Iterator[Person]:
    def write_then_tell(request: ChatRequest) -> Answer:
        if request.steps_this_turn:
            return reply(f"You said: {request.tool_results[-1].text}")
        make = {"command": "echo made > made.txt", "description": "make a file"}
        return reply(calls=[call("Bash", make)])

    with server_in_thread(write_then_tell, api_key=KEY, kind=MessagesServer) as server:
        person = Person(tmp_path / "home")
        person.environment["ANTHROPIC_BASE_URL"] = server.base_url.removesuffix("/v1")
        person.environment["ANTHROPIC_API_KEY"] = KEY
        yield person
        person.ends_hubs()


def test_claude_works_in_the_project_and_its_key_is_nowhere_to_be_found(ada: Person) -> None:
    done = ada.runs("run", "--engine", "claude", "--mode", "yolo", "make the file")
    assert done.code == 0, done
    assert done.out.startswith("You said:")
    assert (ada.project / "made.txt").read_text() == "made\n"
    again = ada.runs("run", "-c", "and once more")
    assert again.code == 0, again
    assert ada.newest_session()["turns"] == 2
    held = [path for path in ada.home.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert held == []


def test_what_nobody_can_be_asked_about_does_not_happen_on_claude_either(ada: Person) -> None:
    done = ada.runs("run", "--engine", "claude", "make the file")
    assert done.code == 4, done
    assert not (ada.project / "made.txt").exists()
    assert "nobody is there to ask" in done.out
