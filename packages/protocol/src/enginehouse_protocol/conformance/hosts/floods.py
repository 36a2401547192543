"""Floods: more than anybody can read must neither drown the host nor deafen it. Deadlines, no timings."""

import pytest

from enginehouse_protocol.conformance.hosts.driver import HostDriver
from enginehouse_protocol.conformance.hosts.play import playing
from enginehouse_protocol.conformance.hosts.stage import RunCommand, said, used

DRAINED_WITHIN_S = 60.0
_STORM = r"printf '\033[2J\033[31;5m\033[%d;1Hstorm\033]0;owned\007\r' {1..2000}"
FLOODS = {
    "50 MB of lines": "yes 'a line of the flood' | head -c 50000000",
    "one line of 5 MB": "head -c 5000000 /dev/zero | tr '\\0' x",
    "a storm of escape sequences": f"for n in {{1..50}}; do {_STORM}; done",
}
WITHOUT_END = {
    "lines": "yes 'a line of the flood' | head -c 5000000; touch flooding; yes 'a line of the flood'",
    "one line": "{ head -c 5000000 /dev/zero; touch flooding; cat /dev/zero; } | tr '\\0' x",
    "escape sequences": f"while :; do {_STORM}; touch flooding; done",
}
"""`flooding` is there as soon as the flood is."""
READABLE_CHARS = 1_000_000
"""Far less than has come: the output of tools is folded."""
_SPEECH_CHARS = 1_000_000


class Floods:
    """Part of `HostConformance`."""

    @pytest.mark.parametrize("flood", FLOODS)
    async def test_a_flood_passes_and_the_host_is_as_usable_as_before(self, driver: HostDriver, flood: str) -> None:
        """What comes after it is shown, and the next turn is an ordinary one."""
        async with playing(driver) as play:
            play.plays(used(RunCommand(FLOODS[flood])), said("After ", "the flood."))
            window = await play.say("flood", unasked=True)
            await play.sees(window, "After the flood.", within_s=DRAINED_WITHIN_S)
            await play.idle()
            await play.still_works()

    @pytest.mark.parametrize("flood", WITHOUT_END)
    async def test_a_flood_without_end_can_be_interrupted(self, driver: HostDriver, flood: str) -> None:
        """The interrupt is heard while the flood comes, within the same deadline as any other."""
        async with playing(driver) as play:
            play.plays(used(RunCommand(WITHOUT_END[flood])), said("too far"))
            window = await play.say("flood", unasked=True)
            await play.made("flooding")
            await window.interrupt()
            await play.was_interrupted()
            await play.stopped(window)
            await play.still_works()

    async def test_who_comes_into_a_flood_has_a_usable_window(self, driver: HostDriver) -> None:
        """What came before is not poured over it, and it can stop the turn."""
        async with playing(driver, "second_window") as play:
            play.plays(used(RunCommand(WITHOUT_END["lines"])), said("too far"))
            first = await play.say("flood", unasked=True)
            await play.made("flooding")
            second = await play.look()
            await play.sees(second, "head -c 5000000")
            await second.interrupt()
            await play.was_interrupted()
            for window in (first, second):
                await play.stopped(window)
                assert len(await window.read()) < READABLE_CHARS
            await play.still_works()

    async def test_a_reply_of_one_endless_line_is_shown_to_its_end(self, driver: HostDriver) -> None:
        """Nothing of what the model said is left out."""
        async with playing(driver) as play:
            play.plays(said("It begins. ", "x" * _SPEECH_CHARS, " It ends."))
            window = await play.say("talk")
            await play.sees(window, " It ends.", within_s=DRAINED_WITHIN_S)
            assert (await window.read()).count("x" * _SPEECH_CHARS) == 1
            await play.still_works()
