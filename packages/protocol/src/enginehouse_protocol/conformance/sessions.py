"""Opening, resuming, failing, describing: what surrounds the turns."""

from pathlib import Path

import anyio
import pytest

from enginehouse_protocol.conformance.harness import EngineHarness, Reply, RunCommand
from enginehouse_protocol.conformance.opened import Opened, need, opened
from enginehouse_protocol.conformance.tools import paired
from enginehouse_protocol.engine import Fresh, Resume, Start
from enginehouse_protocol.errors import EngineError, NativeSessionLost, SettingRefused
from enginehouse_protocol.events import MessageAssistant, MessageDelta, NativeUpdated
from enginehouse_protocol.settings import SessionSettings
from enginehouse_protocol.testing.port import RecordingPort


class Sessions:
    """Part of `EngineConformance`."""

    async def test_a_provider_that_fails_is_an_engine_error_and_the_session_goes_on(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """`run` raises only `EngineError`, with a code and a message without the secret."""
        need(harness, "fail")
        harness.expect(Reply(then="fail"))
        async with opened(harness, tmp_path) as it:
            with pytest.raises(EngineError) as caught:
                await it.run("go")
            assert caught.value.code
            assert str(caught.value)
            if harness.access.secret is not None:
                assert harness.access.secret.reveal() not in str(caught.value)
            await it.still_works()

    async def test_a_reply_that_is_lost_half_way_does_not_pretend_to_be_whole(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """A dropped connection fails the turn or is tried again; a cut text is never a complete message."""
        need(harness, "drop")
        harness.expect(Reply(pieces=("half ", "a "), then="drop"), Reply(pieces=("whole",)))
        async with opened(harness, tmp_path) as it:
            try:
                end = await it.run("go")
            except EngineError:
                pass
            else:
                assert end.stop == "end"
                assert it.port.texts()[-1] == "whole"
            cut = it.port.all(MessageAssistant, lambda message: str(message.text).startswith("half"))
            assert [message for message in cut if message.complete] == []

    async def test_sessions_at_the_same_time_do_not_mix(self, harness: EngineHarness, tmp_path: Path) -> None:
        """What one session says, asks and runs shows up in that session alone."""
        need(harness, "route", "run_command")
        names = ("ada", "bob", "cyd")
        for name in names:
            harness.expect(
                Reply(pieces=(f"{name} ", "starts"), uses=(RunCommand(f"echo {name} > who; cat who"),)),
                Reply(pieces=(f"{name} ", "ends")),
                about=f"I am {name}",
            )
        ports = {name: RecordingPort() for name in names}

        async def one(name: str) -> None:
            async with opened(harness, tmp_path / name, port=ports[name]) as it:
                await it.run(f"I am {name}")
                assert (it.workspace.directory / "who").read_text(encoding="utf-8") == f"{name}\n"

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)
        for name in names:
            assert ports[name].texts() == [f"{name} starts", f"{name} ends"]
            assert len(paired(ports[name])) == 1

    async def test_a_session_opened_again_knows_what_was_said(self, harness: EngineHarness, tmp_path: Path) -> None:
        """By its native id where it has a store, else from the history alone; in a new engine either way."""
        need(harness, "prompt")
        harness.expect(Reply(pieces=("Noted: ", "quince.")))
        async with opened(harness, tmp_path) as first:
            await first.run("the word is plum")
        port = RecordingPort(first.port.history)
        harness.expect(Reply(pieces=("plum",)))
        async with opened(harness, tmp_path, port=port, start=_start(first)) as again:
            await again.run("which word was it?")
        for words in ("the word is plum", "Noted: quince.", "which word was it?"):
            assert words in harness.prompt()

    async def test_an_interrupted_turn_is_known_afterwards(self, harness: EngineHarness, tmp_path: Path) -> None:
        """What was said and done before an interrupt is part of the conversation."""
        need(harness, "prompt", "hang")
        harness.expect(Reply(pieces=("half a pear",), then="hang"))
        async with opened(harness, tmp_path) as it:
            await it.interrupted("tell me of pears", lambda: it.port.heard(MessageDelta))
            await it.still_works()
        assert "tell me of pears" in harness.prompt()

    async def test_a_native_id_that_is_lost_is_said_on_opening(self, harness: EngineHarness, tmp_path: Path) -> None:
        """`NativeSessionLost`, before anything is written under an id whose history was not loaded."""
        async with opened(harness, tmp_path) as it:
            if not it.description.abilities.native_resume:
                pytest.skip("this engine does not declare native_resume")
        lost = RecordingPort()
        with pytest.raises(NativeSessionLost):
            async with opened(harness, tmp_path, port=lost, start=Resume(native_id="never-there")):
                pytest.fail("the session opened")
        assert lost.bodies == []

    async def test_a_recap_reaches_the_model(self, harness: EngineHarness, tmp_path: Path) -> None:
        """What core rendered of a lost history is in the first prompt of the fresh session."""
        need(harness, "prompt")
        async with opened(harness, tmp_path) as it:
            if not it.description.abilities.native_resume:
                pytest.skip("this engine does not declare native_resume: it reads the history itself")
        harness.expect(Reply(pieces=("I see",)))
        async with opened(harness, tmp_path, start=Fresh(recap="They spoke of plums.")) as it:
            await it.run("and then?")
        assert "They spoke of plums." in harness.prompt()

    async def test_a_broken_provider_is_described_not_raised(self, harness: EngineHarness) -> None:
        """`describe` answers with a `problem` that says what to do."""
        need(harness, "broken_provider")
        async with harness.broken() as access, harness.make_engine() as engine:
            with anyio.fail_after(20):
                description = await engine.describe(access)
        assert description.problem
        if access.secret is not None:
            assert access.secret.reveal() not in description.problem

    async def test_the_description_is_about_this_engine(self, harness: EngineHarness) -> None:
        """Its own name, a title and a version for people, a JSON Schema for its options."""
        async with harness.make_engine() as engine:
            description = await engine.describe(harness.access)
        assert description.name == engine.name
        assert description.title
        assert description.version
        assert description.problem is None
        assert isinstance(description.options_schema, dict)

    async def test_settings_can_be_changed_between_turns(self, harness: EngineHarness, tmp_path: Path) -> None:
        """`apply` says when they take effect, or refuses and nothing has changed; the next turn works."""
        async with opened(harness, tmp_path) as it:
            for change in (harness.settings, SessionSettings(model="no-such-model", effort="no-such-effort")):
                try:
                    assert await it.session.apply(change) in ("now", "next_turn", "reopen")
                except SettingRefused:
                    pass
            assert await it.session.apply(harness.settings) in ("now", "next_turn", "reopen")
            await it.still_works()

    async def test_ten_turns_are_ten_turns(self, harness: EngineHarness, tmp_path: Path) -> None:
        """Each turn says its own words once."""
        async with opened(harness, tmp_path) as it:
            for number in range(10):
                harness.expect(Reply(pieces=(f"answer {number}",)))
                assert (await it.run(f"question {number}")).stop == "end"
        assert it.port.texts() == [f"answer {number}" for number in range(10)]


def _start(first: Opened) -> Start:
    if not first.description.abilities.native_resume:
        return Fresh()
    return Resume(native_id=first.port.all(NativeUpdated)[-1].native_id)
