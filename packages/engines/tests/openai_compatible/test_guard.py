"""A model that gets nowhere is told, told at last, and stopped; one that gets somewhere is left alone."""

import itertools
from collections.abc import Callable, Sequence

import pytest

from enginehouse_engines.openai_compatible.guard import (
    OTHER_RESULTS,
    REPEATED,
    SAME_RESULT,
    STOPPED,
    Guard,
    steps_left,
)
from enginehouse_engines.openai_compatible.tool_fragments import Call
from enginehouse_protocol.content import content_text
from enginehouse_protocol.engine import TurnLimits
from enginehouse_protocol.events import Notice, ToolResult, ToolUse
from model_server import Answer, ChatRequest, assert_prefix_chain, call, in_order, reply, steps

from .conftest import Live, Start
from .rebuilding import rebuilt

pytestmark = pytest.mark.anyio
TOLD, WARNED, ENDED = SAME_RESULT


def calls(*commands: str) -> list[Call]:
    return [Call(id="", name="bash", arguments=command) for command in commands]


def played(commands: Sequence[str], result: Callable[[int], str] = lambda _: "same") -> list[str]:
    """What the guard does at every step: nothing, `told` or `stop`."""
    guard = Guard()
    found: list[str] = []
    for step, command in enumerate(commands):
        advice = guard.about_to(calls(command))
        found.append("" if advice is None else "stop" if advice.stop else "told")
        if advice is not None and advice.stop:
            break
        if advice is not None and not advice.holds(("ok", result(step))):
            found[-1] = ""
        guard.came_of(calls(command), [("ok", result(step))])
    return found


# --- what counts as getting nowhere -----------------------------------------------------------------------------------


def test_the_same_call_with_the_same_result_is_told_twice_and_then_stopped() -> None:
    found = played(["a"] * 20)
    assert [at + 1 for at, what in enumerate(found) if what == "told"] == [TOLD, WARNED]
    assert (len(found), found[-1]) == (ENDED, "stop")


@pytest.mark.parametrize("cycle", ["ab", "abc"])
def test_calls_in_turns_are_seen_as_soon_as_the_rounds_are_complete(cycle: str) -> None:
    found = played(list(itertools.islice(itertools.cycle(cycle), 60)))
    rounds = len(cycle)
    assert [at + 1 for at, what in enumerate(found) if what == "told"] == [TOLD * rounds, WARNED * rounds]
    assert (len(found), found[-1]) == (ENDED * rounds, "stop")


def test_waiting_for_something_that_changes_has_far_more_patience() -> None:
    found = played(["a"] * 100, result=str)
    assert [at + 1 for at, what in enumerate(found) if what == "told"] == list(OTHER_RESULTS[:2])
    assert (len(found), found[-1]) == (OTHER_RESULTS[2], "stop")


def test_another_call_in_between_begins_anew() -> None:
    assert set(played(["a", "a", "b", "a", "a", "c", "a", "a", "d"])) == {""}


def test_another_result_begins_anew() -> None:
    assert set(played(["a"] * 8, result=lambda step: str(step // 2))) == {""}, (
        "told is only what still holds afterwards"
    )


def test_work_that_goes_on_is_never_spoken_to() -> None:
    assert set(played([f"edit {n}" if n % 2 else "pytest" for n in range(200)], result=str)) == {""}


def test_several_calls_of_one_reply_are_one_step() -> None:
    guard = Guard()
    both = calls("a", "b")
    for _ in range(TOLD - 1):
        assert guard.about_to(both) is None
        guard.came_of(both, [("ok", ""), ("ok", "")])
    assert guard.about_to(calls("a")) is None
    assert guard.about_to(both) is not None


@pytest.mark.parametrize(
    "left, limit, said", [(1, 2, False), (1, 4, True), (5, 9, False), (5, 10, True), (3, 10, False), (0, 10, False)]
)
def test_a_limit_of_steps_is_told_before_it_comes_unless_it_is_tiny(left: int, limit: int, said: bool) -> None:
    assert bool(steps_left(left, limit)) is said


# --- in a session -----------------------------------------------------------------------------------------------------


def told(it: Live) -> list[str]:
    """What the results of each call said, in order."""
    found = {result.call_id: result for result in it.port.all(ToolResult)}
    return [content_text(found[use.call_id].content) for use in it.port.all(ToolUse)]


def whole(it: Live) -> None:
    assert_prefix_chain(it.server.chats)
    rebuilt(it.port.history.events, [request.body for request in it.server.chats])


async def test_a_call_made_over_and_over_is_told_in_its_results_and_the_last_one_does_not_run(live: Start) -> None:
    def again(request: ChatRequest) -> Answer:
        if "Are you there" in request.last_user_text:
            return reply("Yes.")
        return reply(calls=[call("bash", {"command": "echo ran >> ran; echo same"})])

    async with live(again) as it:
        ended = await it.port.run(it.session, "go")
        assert ended.stop == "max_steps"
        assert "the same call 8 times in a row with the same result" in ended.detail
        said = told(it)
        assert len(said) == ENDED
        assert [at + 1 for at, text in enumerate(said) if "[You have now made the same call" in text] == [TOLD, WARNED]
        assert "At the 8th time the turn ends" in said[WARNED - 1]
        assert said[-1].startswith("This call was not run")
        assert (it.workspace.directory / "ran").read_text() == "ran\n" * (ENDED - 1)
        assert len(it.port.asked) == ENDED - 1, "nobody is asked about a call that will not run"
        assert [notice.code for notice in it.port.all(Notice)] == [REPEATED, REPEATED, STOPPED]
        assert (await it.port.run(it.session, "Are you there?")).stop == "end"
        whole(it)


async def test_calls_in_turns_are_stopped_too(live: Start) -> None:
    def in_turns(request: ChatRequest) -> Answer:
        return reply(calls=[call("list_dir", {}) if request.steps_taken % 2 else call("bash", {"command": "true"})])

    async with live(in_turns) as it:
        ended = await it.port.run(it.session, "go")
        assert "the same 2 calls in turns 8 times in a row" in ended.detail
        assert len(it.port.all(ToolUse)) == 2 * ENDED
        whole(it)


async def test_calls_that_cannot_be_understood_are_counted_like_others(live: Start) -> None:
    async with live(reply(calls=[call("bash", '{"command": "ls')])) as it:
        assert (await it.port.run(it.session, "go")).stop == "max_steps"
        assert it.port.asked == []
        whole(it)


async def test_a_new_message_begins_anew(live: Start) -> None:
    same = reply(calls=[call("bash", {"command": "true"})])
    async with live(in_order(same, same, reply("one"), same, same, reply("two"))) as it:
        await it.port.run(it.session, "go")
        await it.port.run(it.session, "again, please")
        assert it.port.all(Notice) == []


async def test_the_last_steps_of_a_limit_are_told_in_the_results(live: Start) -> None:
    async with live(steps(99, lambda k: f"echo {k}")) as it:
        ended = await it.port.run(it.session, "go", limits=TurnLimits(max_steps=10))
        assert (ended.stop, ended.detail) == ("max_steps", "10 model calls")
        said = told(it)
        assert said[4] == "5\n[Only 5 more replies are possible in this turn. Bring the work into a good state.]"
        assert said[8].startswith("9\n[Your next reply is the last of this turn")
        assert [text for at, text in enumerate(said) if at not in (4, 8)] == [
            str(k) for k in range(1, 11) if k not in (5, 9)
        ]
        whole(it)


async def test_an_empty_reply_after_a_tool_is_answered_by_us_and_keeps_roles_in_order(live: Start) -> None:
    answers = in_order(reply(calls=[call("list_dir", {})]), reply(), reply(), reply("There."))
    async with live(answers) as it:
        assert (await it.port.run(it.session, "go")).stop == "end"
        roles = [message["role"] for message in it.sent()]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "user"]
        assert it.sent()[4]["content"] == it.sent()[6]["content"] == "[no answer came]"
        first, second = (notice.text for notice in it.port.all(Notice))
        assert it.sent()[5]["content"] == f"[{first}]"
        assert it.sent()[7]["content"] == f"[{second}]"
        assert "After another empty reply the turn ends." in second
        whole(it)
