"""The host suite against the smallest host, which keeps every rule, and against hosts that break one each.

Rule: a suite that passes on a broken host is a defect. Each broken host below is one mistake that real hosts make.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from conformance import broken_hosts as broken
from conformance.paper_host import PaperDriver, PaperWindow
from enginehouse_protocol.conformance.hosts import HostConformance
from enginehouse_protocol.errors import EnginehouseError

pytestmark = pytest.mark.anyio

HURRIED = 0.05
"""Of the suite's deadlines: whoever is broken here is so at once, or for ever."""
SUITE = HostConformance()
FOUND = (AssertionError, TimeoutError, EnginehouseError)
Rule = Callable[..., Awaitable[None]]


@asynccontextmanager
async def paper(
    folder: Path, driver_type: type[PaperDriver] = PaperDriver, *, slowness: float = 1.0
) -> AsyncGenerator[PaperDriver]:
    async with anyio.create_task_group() as tasks:
        yield driver_type(folder, tasks, slowness=slowness)
        tasks.cancel_scope.cancel()


class TestPaperHost(HostConformance):
    @pytest.fixture
    async def driver(self, tmp_path: Path) -> AsyncGenerator[PaperDriver]:
        async with paper(tmp_path) as driver:
            yield driver


BROKEN: tuple[tuple[type[PaperWindow] | type[PaperDriver], Rule, tuple[object, ...]], ...] = (
    (broken.RepeatsTheAnswer, SUITE.test_the_answer_is_shown_once_and_whole, ()),
    (broken.RepeatsTheAnswer, SUITE.test_leaving_and_coming_back_shows_everything_again, ()),
    (broken.WaitsForTheEnd, SUITE.test_words_are_shown_before_the_turn_ends, ()),
    (broken.KeepsWhatWasTakenBack, SUITE.test_what_the_engine_took_back_does_not_stand_as_an_answer, ()),
    (broken.Obeys, SUITE.test_what_text_contains_is_shown_and_not_obeyed, ()),
    (broken.SwallowsWhatFollowsAnEscape, SUITE.test_what_text_contains_is_shown_and_not_obeyed, ()),
    (broken.ForgetsTools, SUITE.test_leaving_and_coming_back_shows_everything_again, ()),
    (broken.ShowsTheLastThirty, SUITE.test_the_whole_of_a_long_session_can_be_reached, (40,)),
    (broken.CutsItsCards, SUITE.test_a_card_names_what_will_run_in_full_and_nothing_runs_before, (400,)),
    (broken.Obeys, SUITE.test_a_card_hides_nothing_of_a_command, ()),
    (broken.SwallowsWhatFollowsAnEscape, SUITE.test_a_card_hides_nothing_of_a_command, ()),
    (broken.AllowsByItself, SUITE.test_a_card_names_what_will_run_in_full_and_nothing_runs_before, (1,)),
    (broken.AllowsByItself, SUITE.test_a_card_about_a_file_shows_where_and_what, ()),
    (broken.TakesLeavingForAYes, SUITE.test_a_window_that_is_left_while_a_card_is_open_allows_nothing, ()),
    (broken.KeepsReasonsToItself, SUITE.test_a_denial_runs_nothing_and_its_reason_reaches_the_model, ()),
    (broken.AnswersTheOtherOne, SUITE.test_two_requests_of_one_reply_are_answered_one_by_one, ()),
    (broken.ForgetsEdits, SUITE.test_what_was_edited_runs_instead_and_the_record_says_so, ()),
    (broken.BeginsAsNobody, SUITE.test_the_record_names_the_host_that_began_the_session, ()),
    (broken.AlwaysTakesTheFirstOption, SUITE.test_an_answer_to_a_question_reaches_the_model, ("blue",)),
    (broken.SignsNothing, SUITE.test_an_answer_to_a_question_reaches_the_model, ("blue",)),
    (broken.SignsNothing, SUITE.test_a_card_about_a_file_shows_where_and_what, ()),
    (broken.Deaf, SUITE.test_an_interrupt_ends_a_turn_whose_model_speaks, ()),
    (broken.Deaf, SUITE.test_an_interrupt_ends_a_turn_whose_command_runs, ()),
    (broken.Deaf, SUITE.test_an_interrupt_withdraws_the_card_that_is_open, ()),
    (broken.Deaf, SUITE.test_an_interrupt_in_one_window_is_seen_in_the_other, ()),
    (broken.StopsWithoutAWord, SUITE.test_an_interrupt_ends_a_turn_whose_model_speaks, ()),
    (broken.StopsWithoutAWord, SUITE.test_a_hub_that_dies_while_the_model_speaks_is_told, ()),
    (broken.KeepsItsCards, SUITE.test_an_interrupt_withdraws_the_card_that_is_open, ()),
    (broken.KeepsItsCards, SUITE.test_a_card_answered_in_the_other_window_is_withdrawn_and_says_so, ()),
    (broken.KeepsItsCards, SUITE.test_a_hub_that_dies_while_a_card_is_open_takes_it_along, ()),
    (broken.KeepsItsQuestions, SUITE.test_an_interrupt_withdraws_the_question_that_is_open, ()),
    (broken.KeepsItsQuestions, SUITE.test_a_question_answered_in_the_other_window_is_withdrawn, ()),
    (broken.SeesNothingOfTheText, SUITE.test_who_comes_in_mid_stream_sees_the_text_so_far_and_then_the_rest, ()),
    (broken.SeesTheTextTwice, SUITE.test_who_comes_in_mid_stream_sees_the_text_so_far_and_then_the_rest, ()),
    (broken.SeesNoOpenCard, SUITE.test_who_comes_while_a_card_is_open_sees_it_and_can_answer, ()),
    (broken.SeesNoOpenCard, SUITE.test_a_request_nobody_saw_waits_for_who_comes, ()),
    (broken.WithdrawsWithoutAWord, SUITE.test_a_card_answered_in_the_other_window_is_withdrawn_and_says_so, ()),
    (broken.BreaksOnALateAnswer, SUITE.test_an_answer_to_an_expired_card_is_harmless, ()),
    (broken.AnswersExpiredCardsBySending, SUITE.test_an_answer_to_an_expired_card_is_harmless, ()),
    (broken.TakesRefusalsForErrors, SUITE.test_two_answers_at_once_are_one_decision, ()),
    (broken.DropsWhatCannotBeginAtOnce, SUITE.test_a_message_to_a_busy_session_waits_its_turn, ()),
    (broken.EatsTheText, SUITE.test_a_message_that_is_taken_back_comes_back_as_text, ()),
    (broken.TakesNothingBack, SUITE.test_a_message_that_is_taken_back_comes_back_as_text, ()),
    (broken.HangsWhenTheHubDies, SUITE.test_a_hub_that_dies_while_the_model_speaks_is_told, ()),
    (broken.HangsWhenTheHubDies, SUITE.test_a_hub_that_dies_while_nothing_runs_is_not_missed, (2,)),
    (broken.Drowns, SUITE.test_a_flood_passes_and_the_host_is_as_usable_as_before, ("one line of 5 MB",)),
    (broken.DeafInAFlood, SUITE.test_a_flood_without_end_can_be_interrupted, ("lines",)),
    (broken.DeafInAFlood, SUITE.test_who_comes_into_a_flood_has_a_usable_window, ()),
    (broken.Pours, SUITE.test_who_comes_into_a_flood_has_a_usable_window, ()),
    (broken.CutsLongReplies, SUITE.test_a_reply_of_one_endless_line_is_shown_to_its_end, ()),
)


@pytest.mark.parametrize(
    "host,rule,given", BROKEN, ids=[f"{host.__name__}-{getattr(rule, '__name__', '')}" for host, rule, _ in BROKEN]
)
async def test_a_host_that_breaks_a_rule_is_found_out(
    tmp_path: Path,
    host: type[PaperWindow] | type[PaperDriver],
    rule: Rule,
    given: tuple[object, ...],
) -> None:
    """That the unbroken one keeps them is `TestPaperHost`. A skip would be neither, and ends this test."""
    driver_type = host if issubclass(host, PaperDriver) else PaperDriver
    found: Sequence[object] = ()
    try:
        async with paper(tmp_path, driver_type, slowness=HURRIED) as driver:
            if issubclass(host, PaperWindow):
                driver.window_type = host
            await rule(driver, *given)
    except* FOUND as problems:
        found = problems.exceptions
    assert found


def test_every_rule_has_a_host_that_breaks_it() -> None:
    """Whoever adds a rule adds a broken host."""
    rules = {name for name in dir(HostConformance) if name.startswith("test_")}
    assert rules == {getattr(rule, "__name__", "") for _, rule, _ in BROKEN}
