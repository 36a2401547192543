"""What is said is shown: once, whole, as it comes, and as nothing but text; and it can be read again."""

import pytest

from enginehouse_protocol.conformance.hosts.driver import HostDriver
from enginehouse_protocol.conformance.hosts.play import playing
from enginehouse_protocol.conformance.hosts.stage import HOSTILE, Hold, Reply, RunCommand, WriteFile, said, used

PRINTS_IT = r"printf '\033]0;owned\007\033[2J\033[8mhidden\r\n\233[2J<script>owned()</script>\nend of the output\n'"
MANY = 250
"""Turns of a long session: twice as many messages."""


class Showing:
    """Part of `HostConformance`."""

    async def test_the_answer_is_shown_once_and_whole(self, driver: HostDriver) -> None:
        """Streamed pieces and the finished message are one text; a turn's end does not repeat it."""
        async with playing(driver) as play:
            play.plays(said("The answer ", "is a plum\n", "and a pear."))
            first = await play.say("what is it?")
            await play.sees(first, "and a pear.")
            play.plays(said("A fig, ", "too."))
            await play.sees(await play.say("is that all?"), "A fig, too.")
            await first.leave()
            shown = await first.read()
            assert (shown.count("The answer is a plum"), shown.count("and a pear.")) == (1, 1)

    async def test_words_are_shown_before_the_turn_ends(self, driver: HostDriver) -> None:
        """While the model still speaks, what it said so far can be read."""
        async with playing(driver) as play:
            play.plays(said("First half, ", Hold("middle"), "second half."))
            window = await play.say("talk")
            await play.sees(window, "First half, ")
            assert not await play.is_idle()
            driver.opens("middle")
            await play.sees(window, "First half, second half.")
            await play.idle()
            await window.leave()
            assert (await window.read()).count("First half") == 1

    async def test_what_the_engine_took_back_does_not_stand_as_an_answer(self, driver: HostDriver) -> None:
        """`message.reset` voids what was streamed: it is erased, or marked as void."""
        async with playing(driver) as play:
            play.plays(Reply(pieces=("Half a plum",), breaks=True), said("A whole ", "pear."))
            window = await play.say("talk")
            await play.sees(window, "A whole pear.")
            await play.idle()
            assert await window.stands("A whole pear.")
            assert not await window.stands("Half a plum"), await window.read()

    async def test_what_text_contains_is_shown_and_not_obeyed(self, driver: HostDriver) -> None:
        """Escape sequences and markup in a message, a command's title, a path, an output: nothing of it is done, and
        what stands before and after it can be read."""
        async with playing(driver) as play:
            play.plays(
                Reply(pieces=("Before it. ", f"{HOSTILE} After it."), uses=(RunCommand(f"true {HOSTILE!r} titled"),)),
                used(WriteFile(f"named{HOSTILE}so", "x"), RunCommand(PRINTS_IT)),
                said("All ", "seen."),
            )
            window = await play.say("show me", unasked=True)
            await play.sees(window, "All seen.")
            await play.idle()
            shown = await window.read()
            for text in ("Before it.", "After it.", "end of the output"):
                assert text in shown
            await play.still_works()

    async def test_leaving_and_coming_back_shows_everything_again(self, driver: HostDriver) -> None:
        """What was asked, done and answered, in the order it happened."""
        async with playing(driver) as play:
            play.plays(used(RunCommand("echo plum-number-$((40 + 2))")), said("It said ", "plum."))
            window = await play.say("what does it say?", unasked=True)
            await play.sees(window, "It said plum.")
            await play.idle()
            await window.leave()
            again = await play.look()
            await play.sees(again, "It said plum.")
            shown = await again.read()
            places = [shown.find(text) for text in ("what does it say?", "plum-number-42", "It said plum.")]
            assert -1 not in places
            assert places == sorted(places)
            assert shown.count("It said plum.") == 1

    @pytest.mark.parametrize("turns", [1, MANY])
    async def test_the_whole_of_a_long_session_can_be_reached(self, driver: HostDriver, turns: int) -> None:
        """The newest is before one's eyes; a window that does not show the oldest offers a way to it."""
        async with playing(driver) as play:
            await driver.remember([(f"question {n} of all", f"answer {n} to it") for n in range(turns)])
            window = await play.look()
            await play.sees(window, f"answer {turns - 1} to it")
            everything = await window.scrolled_back()
            for n in range(turns):
                assert f"question {n} of all" in everything
                assert f"answer {n} to it" in everything
