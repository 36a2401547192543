"""People and model servers for the tests of the command line."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from end_to_end.person import PATIENCE_S, Person
from model_server import ChatRequest, Distant, server_in_thread
from model_server.programs import Script


class Introduction:
    """Makes a person whose model plays a script. `server` is the last one made."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.server: Distant

    def __call__(self, script: Script, *, models: Collection[str] = ("scripted",)) -> Person:
        self.server = self._stack.enter_context(server_in_thread(script, models=models))
        person = Person(self._folder / "home", self.server.base_url)
        self._stack.callback(person.ends_hubs)
        return person

    def asked(self) -> list[ChatRequest]:
        """The chat requests the model has had, once no answer is under way."""
        return [
            ChatRequest(number=each.number, body=each.json or {}, raw=each.body, headers=each.headers)
            for each in self.server.quiet(PATIENCE_S)
        ]


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Introduction]:
    with ExitStack() as stack:
        yield Introduction(stack, tmp_path)


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    """Somebody without a model."""
    person = Person(tmp_path / "home")
    yield person
    person.ends_hubs()


@pytest.fixture(params=["through the hub", "in process"])
def run(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The command, both ways, for what is promised of both."""
    return ("run",) if request.param == "through the hub" else ("run", "--no-hub")
