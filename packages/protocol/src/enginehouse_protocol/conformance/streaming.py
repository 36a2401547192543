"""What a reply looks like while it comes and once it is there."""

from pathlib import Path

import pytest

from enginehouse_protocol.conformance.harness import EngineHarness, Reply, RunCommand
from enginehouse_protocol.conformance.opened import need, opened
from enginehouse_protocol.events import (
    Body,
    MessageAssistant,
    MessageDelta,
    MessageReset,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.testing.port import RecordingPort

PIECES = ("Once ", "upon ", "a ", "tïme", " – \u2028", "🙂", ".")


def streamed(port: RecordingPort, message: MessageAssistant) -> str:
    """What a view showed of this message just before it became durable."""
    shown = ""
    for body in port.bodies:
        match body:
            case MessageDelta() if body.message_id == message.message_id:
                shown += body.text
            case MessageReset() if body.message_id == message.message_id:
                shown = ""
            case _:
                pass
    return shown


def position(port: RecordingPort, kind: type[Body]) -> int:
    return next(at for at, body in enumerate(port.bodies) if isinstance(body, kind))


class Streaming:
    """Part of `EngineConformance`."""

    async def test_words_are_streamed_before_they_are_said_and_are_the_same(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """Deltas come first, under the `message_id` of the durable message, and add up to its text."""
        harness.expect(Reply(pieces=PIECES))
        async with opened(harness, tmp_path) as it:
            end = await it.run("tell me a story")
        messages = it.port.all(MessageAssistant)
        assert end.stop == "end"
        assert [message.text for message in messages] == ["".join(PIECES)]
        assert streamed(it.port, messages[0]) == messages[0].text
        assert messages[0].complete
        assert position(it.port, MessageDelta) < position(it.port, MessageAssistant)

    async def test_text_before_a_tool_use_is_a_message_of_its_own(self, harness: EngineHarness, tmp_path: Path) -> None:
        """Each contiguous text is one message; what was said before a use stands before it in the record."""
        need(harness, "run_command")
        harness.expect(Reply(pieces=("I ", "look."), uses=(RunCommand("true"),)), Reply(pieces=("Seen.",)))
        async with opened(harness, tmp_path) as it:
            await it.run("look around")
        messages = it.port.all(MessageAssistant, lambda message: message.text != "")
        assert [message.text for message in messages] == ["I look.", "Seen."]
        assert len({message.message_id for message in messages}) == 2
        assert position(it.port, MessageAssistant) < position(it.port, ToolUse)

    async def test_ill_formed_unicode_in_a_reply_does_not_end_the_turn(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """A lone surrogate becomes U+FFFD somewhere on the way; nothing else is lost."""
        need(harness, "ill_formed_text")
        harness.expect(Reply(pieces=("before ", "\ud83d", " after")))
        async with opened(harness, tmp_path) as it:
            assert (await it.run("say something odd")).stop == "end"
            text = it.port.texts()[-1]
            assert text.startswith("before ")
            assert text.endswith(" after")
            await it.still_works()

    async def test_usage_counts_each_request_once(self, harness: EngineHarness, tmp_path: Path) -> None:
        """`usage.updated` is an increment: the sum over two turns is what the provider reported."""
        need(harness, "usage", "run_command")
        harness.expect(Reply(uses=(RunCommand("true"),), usage=(100, 10)), Reply(pieces=("one",), usage=(130, 7)))
        async with opened(harness, tmp_path) as it:
            await it.run("first")
            harness.expect(Reply(pieces=("two",), usage=(150, 3)))
            await it.run("second")
        reported = it.port.all(UsageUpdated)
        assert sum(usage.input_tokens or 0 for usage in reported) == 380
        assert sum(usage.output_tokens or 0 for usage in reported) == 20

    async def test_what_a_request_cost_is_never_made_up(self, harness: EngineHarness, tmp_path: Path) -> None:
        """Where the provider reports nothing, tokens are unknown, never 0."""
        need(harness, "usage")
        harness.expect(Reply(pieces=("hello",)))
        async with opened(harness, tmp_path) as it:
            await it.run("hi")
        for usage in it.port.all(UsageUpdated):
            assert usage.input_tokens is None
            assert usage.output_tokens is None
            assert not usage.cost_usd

    async def test_nothing_is_emitted_before_the_first_turn_but_what_may_be(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """Opening and closing a session says nothing that needs a turn; the port would have refused it."""
        async with opened(harness, tmp_path) as it:
            pass
        assert it.port.violations == []
        if not it.description.abilities.native_resume and it.port.bodies:
            pytest.fail(f"a session without a turn emitted {it.port.bodies}")
