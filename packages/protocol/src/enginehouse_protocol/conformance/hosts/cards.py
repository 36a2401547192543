"""Permission requests and questions: nothing runs before an answer, and the answer is what the person gave."""

import pytest

from enginehouse_protocol.conformance.hosts.driver import HostDriver
from enginehouse_protocol.conformance.hosts.play import playing
from enginehouse_protocol.conformance.hosts.stage import HOSTILE, AskPerson, RunCommand, WriteFile, said, used
from enginehouse_protocol.events import PermissionDecided, QuestionAnswered, SessionCreated
from enginehouse_protocol.permissions import Allow, Deny


class Cards:
    """Part of `HostConformance`."""

    @pytest.mark.parametrize("lines", [1, 400])
    async def test_a_card_names_what_will_run_in_full_and_nothing_runs_before(
        self, driver: HostDriver, lines: int
    ) -> None:
        """Every line of the command can be read on the card; it runs when it was allowed, not earlier."""
        command = "\n".join([f"echo 'line {n} of it'" for n in range(lines - 1)] + ["touch ran-at-last"])
        async with playing(driver) as play:
            play.plays(used(RunCommand(command)), said("It ", "ran."))
            window = await play.say("run it")
            card = await play.card(window)
            for line in command.splitlines():
                assert line in card
            assert await play.recorded(PermissionDecided) == []
            assert list(driver.project.iterdir()) == []
            await window.allow()
            await play.sees(window, "It ran.")
            assert (driver.project / "ran-at-last").exists()
            await play.withdrawn(window)

    async def test_a_card_hides_nothing_of_a_command(self, driver: HostDriver) -> None:
        """What stands behind an escape sequence that hides, erases or goes back can be read; nothing is obeyed."""
        async with playing(driver) as play:
            play.plays(used(RunCommand(f"echo '{HOSTILE}' > shown; touch ran-behind-it")), said("It ", "ran."))
            window = await play.say("run it")
            assert "touch ran-behind-it" in await play.card(window)
            await window.allow()
            await play.sees(window, "It ran.")
            assert (driver.project / "ran-behind-it").exists()

    async def test_a_card_about_a_file_shows_where_and_what(self, driver: HostDriver) -> None:
        """The path, and the text that would be in it."""
        async with playing(driver) as play:
            play.plays(used(WriteFile("plum.txt", "a ripe plum\n")), said("It is ", "written."))
            window = await play.say("write it")
            card = await play.card(window)
            assert "plum.txt" in card
            assert "a ripe plum" in card
            assert list(driver.project.iterdir()) == []
            await window.allow()
            await play.sees(window, "It is written.")
            assert (driver.project / "plum.txt").read_text(encoding="utf-8") == "a ripe plum\n"

    async def test_a_denial_runs_nothing_and_its_reason_reaches_the_model(self, driver: HostDriver) -> None:
        async with playing(driver) as play:
            play.plays(used(RunCommand("touch ran")), said("Then ", "not."))
            window = await play.say("run it")
            await play.card(window)
            await window.deny("plums are out of season")
            await play.sees(window, "Then not.")
            assert "plums are out of season" in await driver.prompt()
            assert list(driver.project.iterdir()) == []
            [decided] = await play.recorded(PermissionDecided)
            assert (decided.by, decided.decision) == ("person", Deny(reason="plums are out of season"))
            assert decided.host == driver.host

    async def test_a_window_that_is_left_while_a_card_is_open_allows_nothing(self, driver: HostDriver) -> None:
        """Either the turn ends with the window, or the card waits for who comes; it is never taken for a yes."""
        async with playing(driver) as play:
            play.plays(used(RunCommand("touch ran")), said("Then ", "not."))
            window = await play.say("run it")
            await play.card(window)
            await window.leave()
            again = await play.look()

            async def settled() -> bool:
                return await again.card() is not None or await play.is_idle()

            await play.until(settled, "the card is there again, or the turn is over")
            if await again.card() is not None:
                await again.deny("not today")
            await play.idle()
            assert all(not isinstance(each.decision, Allow) for each in await play.recorded(PermissionDecided))
            await play.still_works()
            assert list(driver.project.iterdir()) == []

    async def test_two_requests_of_one_reply_are_answered_one_by_one(self, driver: HostDriver) -> None:
        """The answer to one is not taken for the other's."""
        async with playing(driver) as play:
            play.plays(used(RunCommand("touch plum"), RunCommand("touch stone")), said("Both ", "done."))
            window = await play.say("run them")
            answered: set[str] = set()
            for _ in range(2):
                card = await play.card(window)
                name = "plum" if "touch plum" in card else "stone"
                assert f"touch {name}" in card
                answered.add(name)
                await (window.allow() if name == "plum" else window.deny("no stones"))
            assert answered == {"plum", "stone"}
            await play.sees(window, "Both done.")
            assert [path.name for path in driver.project.iterdir()] == ["plum"]

    async def test_what_was_edited_runs_instead_and_the_record_says_so(self, driver: HostDriver) -> None:
        """The model's own input does not run; the decision carries the one that did."""
        async with playing(driver, "edited_input") as play:
            play.plays(used(RunCommand("touch wrong")), said("It ", "ran."))
            window = await play.say("run it")
            await play.card(window)
            await window.allow(instead="touch right")
            await play.sees(window, "It ran.")
            assert [path.name for path in driver.project.iterdir()] == ["right"]
            decided = (await play.recorded(PermissionDecided))[-1]
            assert (decided.by, decided.host) == ("person", driver.host)
            assert isinstance(decided.decision, Allow)
            assert "touch right" in (decided.decision.input or {}).values()

    async def test_the_record_names_the_host_that_began_the_session(self, driver: HostDriver) -> None:
        """A session belongs to its host; nothing else tells which one that is."""
        async with playing(driver) as play:
            await play.still_works()
            assert [each.host for each in await play.recorded(SessionCreated)] == [driver.host]

    @pytest.mark.parametrize("answer", ["blue", "neither of them"])
    async def test_an_answer_to_a_question_reaches_the_model(self, driver: HostDriver, answer: str) -> None:
        """One of the options, or the person's own words; the record names the host."""
        async with playing(driver, "questions") as play:
            play.plays(used(AskPerson("Which colour?", ("red", "blue"))), said("So ", "be it."))
            window = await play.say("ask me")
            asked = await play.question(window)
            for text in ("Which colour?", "red", "blue"):
                assert text in asked
            await window.reply(answer)
            await play.sees(window, "So be it.")
            assert answer in await driver.prompt()
            [answered] = await play.recorded(QuestionAnswered)
            assert (answered.answers, answered.host) == ((answer,), driver.host)
