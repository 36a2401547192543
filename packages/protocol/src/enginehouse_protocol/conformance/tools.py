"""How tool uses are asked about, run, and answered."""

from pathlib import Path

import anyio
import pytest

from enginehouse_protocol.conformance.harness import (
    EngineHarness,
    RawArguments,
    Reply,
    RunCommand,
    WriteFile,
)
from enginehouse_protocol.conformance.opened import need, opened
from enginehouse_protocol.content import content_text
from enginehouse_protocol.engine import TurnLimits
from enginehouse_protocol.events import ToolResult, ToolUse
from enginehouse_protocol.permissions import Allow, Decision, Expired
from enginehouse_protocol.testing.answers import deny
from enginehouse_protocol.testing.port import RecordingPort
from enginehouse_protocol.testing.script import Gate


def paired(port: RecordingPort) -> list[tuple[ToolUse, ToolResult]]:
    """Every use with its result. Fails when there is not exactly one, after the use."""
    results = {result.call_id: result for result in port.all(ToolResult)}
    uses = port.all(ToolUse)
    assert len(port.all(ToolResult)) == len(results) == len(uses), "one result for every use"
    assert len({use.call_id for use in uses}) == len(uses), "call ids are ours and unique"
    for use in uses:
        assert port.bodies.index(use) < port.bodies.index(results[use.call_id])
    return [(use, results[use.call_id]) for use in uses]


def ran_only_what_was_allowed(port: RecordingPort) -> None:
    for use, result in paired(port):
        if result.status == "ok":
            assert isinstance(port.decisions.get(use.call_id), Allow), f"{use.title} ran without an allow"


class Tools:
    """Part of `EngineConformance`."""

    async def test_nothing_runs_before_it_is_allowed(self, harness: EngineHarness, tmp_path: Path) -> None:
        """The use is recorded, then asked about; only an allow runs it."""
        need(harness, "run_command")
        gate = Gate()

        async def slow(_use: ToolUse) -> Decision:
            await gate.passed()
            return Allow()

        harness.expect(Reply(uses=(RunCommand("touch ran"),)), Reply(pieces=("done",)))
        async with opened(harness, tmp_path, port=RecordingPort(policy=slow)) as it:
            ran = it.workspace.directory / "ran"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(it.run, "touch it")
                await gate.reached()
                assert [use.call_id for use in it.port.all(ToolUse)] == [it.port.asked[0].call_id]
                assert not ran.exists()
                gate.open()
            assert ran.exists()
            assert [result.status for _, result in paired(it.port)] == ["ok"]
            ran_only_what_was_allowed(it.port)

    async def test_a_use_says_what_it_is_to_a_person_and_to_a_rule(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """A neutral kind, a title of one line, the paths it names."""
        need(harness, "run_command", "write_file")
        harness.expect(
            Reply(uses=(RunCommand("echo one\necho two"),)),
            Reply(uses=(WriteFile("notes/a.txt", "hello\n"),)),
            Reply(pieces=("done",)),
        )
        async with opened(harness, tmp_path) as it:
            await it.run("go")
        command, write = it.port.all(ToolUse)
        assert (command.kind, write.kind) == ("execute", "edit")
        assert len(command.title.splitlines()) == len(write.title.splitlines()) == 1
        assert any(path.endswith("notes/a.txt") for path in write.paths)
        assert (it.workspace.directory / "notes/a.txt").read_text(encoding="utf-8") == "hello\n"

    async def test_a_denied_use_does_not_run_and_the_model_learns_why(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """Deny: result `denied`, the reason in the next prompt, and the turn goes on."""
        need(harness, "run_command")
        harness.expect(Reply(uses=(RunCommand("touch ran"),)), Reply(pieces=("then not",)))
        async with opened(harness, tmp_path, port=RecordingPort(policy=deny("plums only, says Ada"))) as it:
            assert (await it.run("touch it")).stop == "end"
        assert [result.status for _, result in paired(it.port)] == ["denied"]
        assert not (it.workspace.directory / "ran").exists()
        assert it.port.texts()[-1] == "then not"
        if "prompt" in harness.can:
            assert "plums only, says Ada" in harness.prompt()

    async def test_silence_is_a_deny(self, harness: EngineHarness, tmp_path: Path) -> None:
        """An expired request runs nothing and leaves nothing open."""
        need(harness, "run_command")

        async def expired(_use: ToolUse) -> Decision:
            return Expired(reason="nobody answered")

        harness.expect(Reply(uses=(RunCommand("touch ran"),)), Reply(pieces=("then not",)))
        async with opened(harness, tmp_path, port=RecordingPort(policy=expired)) as it:
            await it.run("touch it")
        assert [result.status in ("denied", "interrupted") for _, result in paired(it.port)] == [True]
        assert not (it.workspace.directory / "ran").exists()

    async def test_an_edited_input_is_what_runs(self, harness: EngineHarness, tmp_path: Path) -> None:
        """Where the description says `edited_input`, the person's input runs and not the model's."""
        need(harness, "run_command")

        async def edited(_use: ToolUse) -> Decision:
            return Allow(input=harness.input_for(RunCommand("touch edited")))

        harness.expect(Reply(uses=(RunCommand("touch asked"),)), Reply(pieces=("done",)))
        async with opened(harness, tmp_path, port=RecordingPort(policy=edited)) as it:
            if not it.description.abilities.edited_input:
                pytest.skip("this engine does not declare edited_input")
            await it.run("touch it")
            there = sorted(path.name for path in it.workspace.directory.iterdir())
        assert there == ["edited"]
        assert [result.status for _, result in paired(it.port)] == ["ok"]

    async def test_a_failing_command_is_an_error_the_model_sees(self, harness: EngineHarness, tmp_path: Path) -> None:
        """An exit code other than 0 is `error`, with its output, and the turn goes on."""
        need(harness, "run_command")
        harness.expect(Reply(uses=(RunCommand("echo broken pear; exit 3"),)), Reply(pieces=("I see",)))
        async with opened(harness, tmp_path) as it:
            assert (await it.run("try")).stop == "end"
        result = paired(it.port)[0][1]
        assert result.status == "error"
        assert "broken pear" in content_text(result.content)
        if "prompt" in harness.can:
            assert "broken pear" in harness.prompt()

    async def test_a_command_ended_by_a_signal_is_no_success(self, harness: EngineHarness, tmp_path: Path) -> None:
        """Killed is neither ok nor hidden."""
        need(harness, "run_command")
        harness.expect(Reply(uses=(RunCommand("kill -TERM $$"),)), Reply(pieces=("I see",)))
        async with opened(harness, tmp_path) as it:
            await it.run("try")
        assert paired(it.port)[0][1].status in ("error", "interrupted")

    async def test_several_uses_of_one_reply_each_get_their_own_result(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """Also when the provider gives them all the same id."""
        need(harness, "run_command")
        uses = tuple(RunCommand(f"echo number-{number}") for number in range(3))
        harness.expect(Reply(uses=uses), Reply(uses=uses, same_provider_ids=True), Reply(pieces=("done",)))
        async with opened(harness, tmp_path) as it:
            await it.run("go")
        texts = [content_text(result.content) for _, result in paired(it.port)]
        assert len(texts) == 6
        for number, text in enumerate(texts):
            assert f"number-{number % 3}" in text
        ran_only_what_was_allowed(it.port)

    async def test_one_denied_use_does_not_take_its_neighbours_along(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """Decisions are per use, also within one reply."""
        need(harness, "run_command")

        async def not_b(use: ToolUse) -> Decision:
            return await deny("not b")(use) if "touch b" in str(use.input) else Allow()

        harness.expect(Reply(uses=tuple(RunCommand(f"touch {name}") for name in "abc")), Reply(pieces=("done",)))
        async with opened(harness, tmp_path, port=RecordingPort(policy=not_b)) as it:
            await it.run("go")
        assert sorted(path.name for path in it.workspace.directory.iterdir()) == ["a", "c"]
        assert [result.status for _, result in paired(it.port)] == ["ok", "denied", "ok"]

    @pytest.mark.parametrize(
        "text",
        [
            '{"command": "touch ran"',
            "[1, 2]",
            "touch ran",
            '{"command": NaN}',
            '{"command": {"a": [Infinity]}}',
            '{"command": ' + '{"a": ' * 300 + "1" + "}" * 301,
            '{"command": ' + '{"a": ' * 9000 + "1" + "}" * 9001,
            "",
        ],
        ids=["cut", "a list", "no JSON", "NaN", "infinity", "deep", "very deep", "nothing"],
    )
    async def test_arguments_that_make_no_sense_run_nothing(
        self, harness: EngineHarness, tmp_path: Path, text: str
    ) -> None:
        """Malformed arguments end in an error the model sees; the turn goes on."""
        need(harness, "raw_arguments")
        harness.expect(Reply(uses=(RawArguments(text),)), Reply(pieces=("sorry",)))
        async with opened(harness, tmp_path) as it:
            assert (await it.run("go")).stop == "end"
            assert [result.status for _, result in paired(it.port)] == ["error"]
            assert list(it.workspace.directory.iterdir()) == []
            await it.still_works()

    @pytest.mark.parametrize("escape", ["\\ud800", "\\u0000", "\\u2028"], ids=["surrogate", "NUL", "separator"])
    async def test_odd_characters_in_arguments_do_not_end_the_turn(
        self, harness: EngineHarness, tmp_path: Path, escape: str
    ) -> None:
        """Whatever an argument holds, the use gets its one result and the session goes on."""
        need(harness, "raw_arguments")
        harness.expect(Reply(uses=(RawArguments(f'{{"command": "echo {escape} x"}}'),)), Reply(pieces=("done",)))
        async with opened(harness, tmp_path) as it:
            assert (await it.run("go")).stop == "end"
            assert len(paired(it.port)) == 1
            await it.still_works()

    async def test_output_of_any_bytes_is_recorded(self, harness: EngineHarness, tmp_path: Path) -> None:
        """NUL, invalid UTF-8 and line separators neither break the record nor the turn."""
        need(harness, "run_command")
        harness.expect(Reply(uses=(RunCommand(r"printf 'a\000b\377c\342\200\250d'"),)), Reply(pieces=("done",)))
        async with opened(harness, tmp_path) as it:
            assert (await it.run("go")).stop == "end"
        result = paired(it.port)[0][1]
        assert result.status == "ok"
        assert "d" in content_text(result.content)

    async def test_three_megabytes_of_output_do_not_end_the_session(
        self, harness: EngineHarness, tmp_path: Path
    ) -> None:
        """Large output is cut or spilled, never fatal."""
        need(harness, "run_command")
        harness.expect(
            Reply(uses=(RunCommand("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end"),)),
            Reply(pieces=("done",)),
        )
        async with opened(harness, tmp_path) as it:
            assert (await it.run("go")).stop == "end"
            assert paired(it.port)[0][1].status == "ok"
            await it.still_works()

    async def test_a_limit_of_steps_is_kept_by_who_counts_them(self, harness: EngineHarness, tmp_path: Path) -> None:
        """`counts_steps`: the turn ends with `max_steps` before another model call is made."""
        need(harness, "run_command")
        async with opened(harness, tmp_path) as it:
            if not it.description.abilities.counts_steps:
                pytest.skip("this engine does not declare counts_steps")
            harness.expect(Reply(uses=(RunCommand("true"),)), Reply(pieces=("too far",)))
            end = await it.run("go", limits=TurnLimits(max_steps=1))
        assert end.stop == "max_steps"
        assert harness.calls() == 1
        paired(it.port)
