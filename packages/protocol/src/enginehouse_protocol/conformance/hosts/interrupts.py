"""Interrupt: whatever goes on, it stops, the person sees that it did, and the session is usable afterwards."""

from enginehouse_protocol.conformance.hosts.driver import HostDriver
from enginehouse_protocol.conformance.hosts.play import playing
from enginehouse_protocol.conformance.hosts.stage import AskPerson, Hold, RunCommand, said, used
from enginehouse_protocol.events import PermissionDecided, QuestionAnswered


class Interrupts:
    """Part of `HostConformance`."""

    async def test_an_interrupt_ends_a_turn_whose_model_speaks(self, driver: HostDriver) -> None:
        async with playing(driver) as play:
            play.plays(said("First half, ", Hold("middle"), "second half."))
            window = await play.say("talk")
            await play.sees(window, "First half, ")
            await window.interrupt()
            await play.was_interrupted()
            await play.stopped(window)
            driver.opens("middle")
            await play.still_works()
            assert "second half." not in await window.read()

    async def test_an_interrupt_ends_a_turn_whose_command_runs(self, driver: HostDriver) -> None:
        """What stands after the command never happens."""
        async with playing(driver) as play:
            play.plays(used(RunCommand("touch running; sleep 60; touch late")), said("too far"))
            window = await play.say("run it", unasked=True)
            await play.made("running")
            await window.interrupt()
            await play.was_interrupted()
            await play.stopped(window)
            await play.still_works()
            assert [path.name for path in driver.project.iterdir()] == ["running"]

    async def test_an_interrupt_withdraws_the_card_that_is_open(self, driver: HostDriver) -> None:
        """The request expires, its card can be answered no more, and nothing runs."""
        async with playing(driver) as play:
            play.plays(used(RunCommand("touch ran")), said("too far"))
            window = await play.say("run it")
            await play.card(window)
            await window.interrupt()
            await play.was_interrupted()
            await play.withdrawn(window)
            await play.stopped(window)
            [decided] = await play.recorded(PermissionDecided)
            assert (decided.by, decided.decision.__class__.__name__) == ("expiry", "Expired")
            await play.still_works()
            assert list(driver.project.iterdir()) == []

    async def test_an_interrupt_withdraws_the_question_that_is_open(self, driver: HostDriver) -> None:
        """Nobody has answered it, and the record says that."""
        async with playing(driver, "questions") as play:
            play.plays(used(AskPerson("Which colour?", ("red", "blue"))), said("too far"))
            window = await play.say("ask me")
            await play.question(window)
            await window.interrupt()
            await play.was_interrupted()
            await play.withdrawn(window)
            assert [each.answers for each in await play.recorded(QuestionAnswered)] == [None]
            await play.still_works()
