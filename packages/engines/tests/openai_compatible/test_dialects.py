"""Which dialect is spoken where, and how a session that learned something goes on with it."""

from typing import Any

import pytest

from enginehouse_engines.openai_compatible.dialects import ALWAYS, DIALECT, NEVER, dialect_of, sends_reasoning
from enginehouse_protocol.events import Notice, StepStarted
from enginehouse_protocol.testing import MemoryHistory
from model_server import ModelServer, call, in_order, reply

from .conftest import Start
from .rebuilding import rebuild, rebuilt

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "base_url, dialect",
    [
        ("http://localhost:11434/v1", DIALECT),
        ("https://api.openai.com/v1", NEVER),
        ("https://mine.openai.azure.com/openai/v1", NEVER),
        ("https://api.mistral.ai/v1", NEVER),
        ("https://notapi.mistral.ai.example/v1", DIALECT),
        ("https://api.deepseek.com", DIALECT),
        ("https://openrouter.ai/api/v1", DIALECT),
        ("https://api.z.ai/api/paas/v4", ALWAYS),
        ("https://open.bigmodel.cn/api/paas/v4", ALWAYS),
    ],
)
def test_a_server_that_is_known_is_spoken_to_in_its_dialect(base_url: str, dialect: str) -> None:
    assert dialect_of(base_url, "auto") == dialect


@pytest.mark.parametrize("chosen, dialect", [("never", NEVER), ("with_calls", DIALECT), ("always", ALWAYS)])
def test_what_the_person_chose_counts_more_than_what_is_known(chosen: Any, dialect: str) -> None:
    assert dialect_of("https://api.z.ai/v4", chosen, recorded=NEVER) == dialect
    assert dialect_of("https://api.z.ai/v4", chosen, refused=True) == NEVER
    assert sends_reasoning(dialect) == chosen


def test_a_refusal_is_remembered_by_the_record() -> None:
    assert dialect_of("http://localhost/v1", "auto", recorded=NEVER) == NEVER
    assert dialect_of("http://localhost/v1", "auto", recorded=ALWAYS) == DIALECT


async def test_a_server_that_refuses_reasoning_is_asked_once_and_spared_after_a_restart(live: Start) -> None:
    thinks = reply("I look.", reasoning="hm", calls=[call("list_dir", {})])
    server = ModelServer(in_order(thinks, reply("Seen.")), tolerated=())
    async with live(server) as first:
        assert (await first.port.run(first.session, "go")).stop == "end"
        (notice,) = first.port.all(Notice)
        assert notice.code == "provider.adapted"
        assert "Unknown parameter: 'messages[2].reasoning_content'" in notice.text
        dialects = [step.header.dialect for step in first.port.all(StepStarted) if step.header is not None]
        assert dialects == [DIALECT, NEVER]
        rebuilt(first.port.history.events, [request.body for request in server.chats])
    history = MemoryHistory(events=tuple(first.port.history.events))
    again = ModelServer(in_order(thinks, reply("Seen again.")), tolerated=())
    async with live(again, history=history) as second:
        assert (await second.port.run(second.session, "go on")).stop == "end"
        assert second.port.all(Notice) == []
        bodies = [request.body for request in [*server.chats, *again.chats]]
        assert [rebuild(history.events, e) for e in history.events if isinstance(e.body, StepStarted)] == bodies
