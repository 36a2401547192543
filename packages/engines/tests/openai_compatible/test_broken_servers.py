"""Whatever a server does, the turn ends as it should, the next one works, and the conversation stays whole.

The behaviours stand in `broken_streams`, `broken_answers` and `broken_replies`; each meets the real loop over real
HTTP. The model server refuses every conversation that is not valid, so a next turn that works says that calls and
results are still paired.
"""

import itertools
from collections.abc import Callable

import pytest

from enginehouse_protocol.engine import TurnEnd
from enginehouse_protocol.errors import EngineError
from enginehouse_protocol.events import (
    MessageAssistant,
    MessageReset,
    Notice,
    StepStarted,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from model_server import ChatRequest, ModelServer, assert_prefix_chain, reply
from model_server.script import ANSWERS, Answer

from . import broken_answers, broken_replies, broken_streams
from .behaviour import Case
from .conftest import KEY, Live, Start
from .rebuilding import rebuilt

pytestmark = pytest.mark.anyio
CASES = (
    *broken_streams.HOW_BYTES_COME,
    *broken_streams.WHERE_IT_ENDS,
    *broken_streams.WHAT_CHUNKS_HOLD,
    *broken_streams.HOW_CALLS_COME,
    *broken_answers.STATUSES,
    *broken_answers.ERRORS_IN_A_SUCCESS,
    *broken_answers.NO_API,
    *broken_answers.CUTS_AND_SILENCE,
    *broken_replies.SHORT_REPLIES,
    *broken_replies.REASONING,
)


def playing(case: Case) -> Callable[[ChatRequest], Answer]:
    """What the case meets, in order of the requests; then an ordinary server."""
    count = itertools.count()

    def program(request: ChatRequest) -> Answer:
        number = next(count)
        if number >= len(case.meets):
            return reply("Done.")
        chosen = case.meets[number]
        return chosen if isinstance(chosen, ANSWERS) else chosen(request)

    return program


async def outcome(it: Live) -> TurnEnd | EngineError:
    try:
        return await it.port.run(it.session, "go")
    except EngineError as error:
        return error


def texts(it: Live, *, complete: bool) -> list[str]:
    return [str(message.text) for message in it.port.all(MessageAssistant) if message.complete is complete]


def test_there_are_enough_of_them_and_no_two_have_one_name() -> None:
    names = [case.name for case in CASES]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_broken_server_has_its_right_outcome_and_the_next_turn_works(live: Start, case: Case) -> None:
    server = ModelServer(playing(case), tolerated=case.tolerated)
    async with live(server, options=case.options) as it:
        ended = await outcome(it)
        requests = len(server.chats)
        _ended_right(case, ended, server.base_url)
        _called_right(case, it)
        _said_right(case, it)
        assert requests == (case.steps or (2 if case.calls else 1)) + case.retries
        told = [notice.code for notice in it.port.all(Notice)]
        assert [code for code in told if code != "provider.retry"] == list(case.notices)
        assert told.count("provider.retry") == case.retries
        read = str(it.sent(requests - 1))
        assert all(words in read for words in case.told)

        assert (await it.port.run(it.session, "Are you there?")).stop == "end"
        assert it.port.texts()[-1] == "Done."
        assert_prefix_chain(server.chats) if not _dialect_changed(it) else None
        rebuilt(it.port.history.events, [request.body for request in server.chats])
        _paired(it)


def _ended_right(case: Case, ended: TurnEnd | EngineError, address: str) -> None:
    if isinstance(ended, TurnEnd):
        assert not case.fails
        assert ended.stop == case.stop
        assert all(words in ended.detail for words in case.words)
        return
    message = str(ended)
    assert (ended.code, ended.http_status) == (case.fails, case.status), message
    assert message.startswith(f"{address}: ")
    assert "; " in message, "what to check follows what was said"
    assert all(words in message for words in case.words), message
    assert KEY not in message
    assert "Traceback" not in message
    assert "\n" not in message


def _called_right(case: Case, it: Live) -> None:
    results = {result.call_id: result.status for result in it.port.all(ToolResult)}
    uses = it.port.all(ToolUse)
    assert tuple((use.name, use.arguments, results[use.call_id]) for use in uses) == case.calls
    assert len(it.port.asked) == (len(case.calls) if case.asked is None else case.asked)


def _said_right(case: Case, it: Live) -> None:
    whole = [text for text in texts(it, complete=True) if text.strip()]
    again = case.retries or case.steps > 1 or (case.calls and case.steps != 1)
    says = ("Done." if again else "Hi") if case.says == "" else case.says
    assert whole[-1:] == ([] if says is None or case.fails else [says])
    assert texts(it, complete=False) == ([] if case.partial is None else [case.partial])
    resets = [reset.message_id for reset in it.port.all(MessageReset)]
    assert len(resets) == len(set(resets)) == case.resets
    assert not set(resets) & {message.message_id for message in it.port.all(MessageAssistant)}
    if case.tokens != "any":
        counted = [(usage.input_tokens, usage.output_tokens) for usage in it.port.all(UsageUpdated)]
        assert counted == [case.tokens or (None, None)]


def _dialect_changed(it: Live) -> bool:
    headers = [step.header for step in it.port.all(StepStarted) if step.header is not None]
    return len({header.dialect for header in headers}) > 1


def _paired(it: Live) -> None:
    """Every call has one result, in the record and in the last request."""
    assert sorted(use.call_id for use in it.port.all(ToolUse)) == sorted(r.call_id for r in it.port.all(ToolResult))
    sent = it.sent()
    asked = [call["id"] for message in sent for call in message.get("tool_calls", [])]
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == asked
    assert len(set(asked)) == len(asked)
