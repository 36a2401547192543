"""Several windows on one session, messages without one, and a hub that dies: all see the same, and nobody hangs."""

import anyio
import pytest

from enginehouse_protocol.conformance.hosts.driver import HostDriver, Window
from enginehouse_protocol.conformance.hosts.play import Play, playing
from enginehouse_protocol.conformance.hosts.stage import AskPerson, Hold, RunCommand, said, used
from enginehouse_protocol.content import content_text
from enginehouse_protocol.events import MessageUser, MessageWithdrawn, PermissionDecided, PermissionRequested


class Windows:
    """Part of `HostConformance`."""

    # --- coming later -------------------------------------------------------------------------------------------------

    async def test_who_comes_in_mid_stream_sees_the_text_so_far_and_then_the_rest(self, driver: HostDriver) -> None:
        """Both windows show the same text, each once."""
        async with playing(driver, "second_window") as play:
            play.plays(said("First half, ", Hold("middle"), "second half."))
            first = await play.say("talk")
            await play.sees(first, "First half, ")
            second = await play.look()
            await play.sees(second, "First half, ")
            driver.opens("middle")
            for window in (first, second):
                await play.sees(window, "First half, second half.")
            await play.idle()
            for window in (first, second):
                await window.leave()
                assert (await window.read()).count("First half") == 1

    async def test_who_comes_while_a_card_is_open_sees_it_and_can_answer(self, driver: HostDriver) -> None:
        """The same card, in full; the answer counts, and the first window goes on."""
        async with playing(driver, "second_window") as play:
            play.plays(used(RunCommand("touch ran")), said("It ", "ran."))
            first = await play.say("run it")
            await play.card(first)
            second = await play.look()
            assert "touch ran" in await play.card(second)
            await second.allow()
            for window in (first, second):
                await play.sees(window, "It ran.")
            assert (driver.project / "ran").exists()

    async def test_a_request_nobody_saw_waits_for_who_comes(self, driver: HostDriver) -> None:
        """It neither expires nor runs because no window was open when it was asked."""
        async with playing(driver, "send") as play:
            await play.still_works()
            play.plays(used(RunCommand("touch ran")), said("It ", "ran."))
            for window in play.windows:
                await window.leave()
            await driver.send("run it")

            async def asked() -> bool:
                return bool(await play.recorded(PermissionRequested))

            await play.until(asked, "permission is requested")
            late = await play.look()
            assert "touch ran" in await play.card(late)
            assert list(driver.project.iterdir()) == []
            await late.allow()
            await play.sees(late, "It ran.")
            assert (driver.project / "ran").exists()

    # --- answering ----------------------------------------------------------------------------------------------------

    async def test_a_card_answered_in_the_other_window_is_withdrawn_and_says_so(self, driver: HostDriver) -> None:
        async with playing(driver, "second_window") as play:
            first, second = await _two_cards(play)
            await second.deny("not today")
            await play.withdrawn(first)
            await _told(play, first)
            await play.sees(first, "So it was decided.")

    async def test_a_question_answered_in_the_other_window_is_withdrawn(self, driver: HostDriver) -> None:
        async with playing(driver, "second_window", "questions") as play:
            play.plays(used(AskPerson("Which colour?", ("red", "blue"))), said("So ", "be it."))
            first = await play.say("ask me")
            await play.question(first)
            second = await play.look()
            await play.question(second)
            await second.reply("blue")
            await play.withdrawn(first)
            await play.sees(first, "So be it.")
            assert "blue" in await driver.prompt()

    async def test_two_answers_at_once_are_one_decision(self, driver: HostDriver) -> None:
        """One of them counts, whole; the other changes nothing."""
        async with playing(driver, "second_window") as play:
            first, second = await _two_cards(play)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first.allow)
                tasks.start_soon(second.deny, "not today")
            for window in (first, second):
                await play.sees(window, "So it was decided.")
                await play.withdrawn(window)
            [decided] = await play.recorded(PermissionDecided)
            assert (driver.project / "ran").exists() == (decided.decision.__class__.__name__ == "Allow")

    async def test_an_answer_to_an_expired_card_is_harmless(self, driver: HostDriver) -> None:
        """Nothing runs, the outcome stays, and the session goes on."""
        async with playing(driver, "second_window") as play:
            first, second = await _two_cards(play)
            await first.interrupt()
            await play.withdrawn(second)
            await second.allow_too_late()
            await play.was_interrupted()
            await play.still_works()
            await play.sees(second, "Still here, as ever.")
            assert [each.by for each in await play.recorded(PermissionDecided)] == ["expiry"]
            assert await _said_by_a_person(play) == ["run it", "are you there?"]
            assert list(driver.project.iterdir()) == []

    async def test_an_interrupt_in_one_window_is_seen_in_the_other(self, driver: HostDriver) -> None:
        """Whichever of them stops it."""
        async with playing(driver, "second_window") as play:
            play.plays(said("First half, ", Hold("middle"), "second half."))
            first = await play.say("talk")
            await play.sees(first, "First half, ")
            second = await play.look()
            await play.sees(second, "First half, ")
            await second.interrupt()
            await play.was_interrupted()
            await play.stopped(first)
            await play.stopped(second)
            await play.still_works()

    # --- the queue ----------------------------------------------------------------------------------------------------

    async def test_a_message_to_a_busy_session_waits_its_turn(self, driver: HostDriver) -> None:
        """It is answered after the turn that runs, in the window that is open if that shows more than one turn."""
        async with playing(driver, "send") as play:
            play.plays(said("First half, ", Hold("middle"), "second half."), said("And ", "a fig."))
            window = await play.say("talk")
            await play.sees(window, "First half, ")
            await driver.send("and then?")
            assert await _said_by_a_person(play) == ["talk"]
            driver.opens("middle")
            await play.sees(window, "second half.")
            await play.sees(await play.look(), "And a fig.")
            assert await _said_by_a_person(play) == ["talk", "and then?"]

    async def test_a_message_that_is_taken_back_comes_back_as_text(self, driver: HostDriver) -> None:
        """To the letter; the model never hears of it."""
        text = "and then?\n\n  with « all » of it"
        async with playing(driver, "send", "withdraw") as play:
            play.plays(said("First half, ", Hold("middle"), "second half."), said("too far"))
            window = await play.say("talk")
            await play.sees(window, "First half, ")
            await driver.send(text)
            assert await driver.take_back() == text
            driver.opens("middle")
            await play.sees(window, "second half.")
            await play.idle()
            await play.still_works()
            assert "« all »" not in await driver.prompt()
            assert [each.by for each in await play.recorded(MessageWithdrawn)] == ["person"]

    # --- the hub dies -------------------------------------------------------------------------------------------------

    async def test_a_hub_that_dies_while_the_model_speaks_is_told(self, driver: HostDriver) -> None:
        """The turn is lost, what was shown of it stays, and the window says so instead of waiting for ever."""
        async with playing(driver, "hub_death") as play:
            play.plays(said("First half, ", Hold("middle"), "second half."))
            window = await play.say("talk")
            await play.sees(window, "First half, ")
            await driver.kill_hub()
            await _over(play, window)
            assert "First half, " in await window.read()
            await play.still_works()

    async def test_a_hub_that_dies_while_a_card_is_open_takes_it_along(self, driver: HostDriver) -> None:
        """Nothing runs, the request has its one outcome, and an answer in the old window is harmless."""
        async with playing(driver, "hub_death") as play:
            play.plays(used(RunCommand("touch ran")), said("too far"))
            window = await play.say("run it")
            await play.card(window)
            await driver.kill_hub()
            await _over(play, window)
            await play.withdrawn(window)
            await window.allow_too_late()
            await play.still_works()
            assert list(driver.project.iterdir()) == []

    @pytest.mark.parametrize("windows", [1, 2])
    async def test_a_hub_that_dies_while_nothing_runs_is_not_missed(self, driver: HostDriver, windows: int) -> None:
        """The next message has its turn, and windows that stayed open show it, or say that they cannot."""
        async with playing(driver, "hub_death") as play:
            await play.still_works()
            stayed = [await play.look() for _ in range(windows)]
            for window in stayed:
                await play.sees(window, "Still here, as ever.")
            await driver.kill_hub()
            play.plays(said("Here ", "again."))
            await play.sees(await play.say("and now?"), "Here again.")

            for window in stayed:

                async def shows_or_tells(window: Window = window) -> bool:
                    return "Here again." in await window.read() or bool(await window.stopped())

                await play.until(shows_or_tells, "a window that stayed goes on, or says that it cannot")


async def _two_cards(play: Play) -> tuple[Window, Window]:
    """The same card in two windows."""
    play.plays(used(RunCommand("touch ran")), said("So it ", "was decided."))
    first = await play.say("run it")
    await play.card(first)
    second = await play.look()
    await play.card(second)
    return first, second


async def _said_by_a_person(play: Play) -> list[str]:
    """What the model was told, beside what core adds."""
    messages = await play.recorded(MessageUser)
    return [content_text(each.content) for each in messages if each.source in ("human", "queue")]


async def _told(play: Play, window: Window) -> None:
    async def told() -> bool:
        return bool(await window.became_of_card())

    await play.until(told, "the window says what became of its card")


async def _over(play: Play, window: Window) -> None:
    async def told() -> bool:
        return bool(await window.stopped())

    await play.until(told, "the window says that its turn is lost")
