"""Checks of token counts, refusals, effort and images."""

from enginehouse_engines.openai_compatible.certify.exchanges import Exchange, Heard
from enginehouse_engines.openai_compatible.certify.findings import (
    Check,
    Verdict,
    broken,
    missing,
    of,
    skipped,
    tolerated,
    works,
)
from enginehouse_engines.openai_compatible.certify.requests import NO_EFFORT, NO_MODEL

# --- token counts -----------------------------------------------------------------------------------------------------


def _counts_tokens(found: Exchange) -> Verdict:
    usage = found.reply.usage if found.reply is not None else None
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return missing("no token counts: what a turn costs, and how full the context is, stays unknown")
    return works(f"{usage.input_tokens} in, {usage.output_tokens} out")


def _counts_once(found: Exchange) -> Verdict:
    reports = len(found.usages())
    if not reports:
        return skipped("there are no token counts")
    return works() if reports == 1 else tolerated(f"{reports} reports in one answer; the last one counts")


def _takes_the_request_for_counts(heard: Heard) -> Verdict:
    if "usage_refused" not in heard.skipped:
        found = heard.of("hello")
        return works() if found is not None and found.accepted else skipped(heard.why_not("hello"))
    return tolerated(f"set options.ask_usage = false: {heard.skipped['usage_refused']}")


def _counts_reasoning(found: Exchange) -> Verdict:
    if found.reply is None or not found.reply.reasoning:
        return skipped("no reasoning came")
    counted = found.reply.usage.reasoning_tokens
    return works(f"{counted}") if counted is not None else missing("reasoning is not counted apart")


def _tells_of_its_cache(heard: Heard) -> Verdict:
    first, again = heard.of("long"), heard.of("long_again")
    if first is None or again is None or again.reply is None or not again.accepted:
        return skipped("the long prompt was not answered twice")
    cached = again.reply.usage.cached_input_tokens
    if cached is None:
        return missing("it does not say what of a prompt it had read before")
    return (
        works(f"{cached} tokens of a repeated prompt")
        if cached
        else tolerated("nothing of a repeated prompt was cached")
    )


# --- refusals ---------------------------------------------------------------------------------------------------------


def _refuses_a_wrong_key(found: Exchange) -> Verdict:
    if found.accepted:
        return tolerated("any key is taken")
    if found.status in (401, 403):
        return works(f"HTTP {found.status}")
    return tolerated(f"a wrong key is told with HTTP {found.status}: {found.refusal}")


def _refuses_an_unknown_model(found: Exchange) -> Verdict:
    if found.accepted:
        return tolerated(f"{NO_MODEL!r} is answered by some other model: a misspelled name goes unnoticed")
    if found.status in (400, 404, 422):
        return works(f"HTTP {found.status}")
    return tolerated(f"told with HTTP {found.status}: {found.refusal}")


def _refuses_nonsense(found: Exchange) -> Verdict:
    if found.accepted:
        return tolerated("a request without messages is answered")
    if found.status is not None and 400 <= found.status < 500:
        return works(f"HTTP {found.status}")
    return tolerated(f"told with HTTP {found.status}: {found.refusal}")


def _explains_a_refusal(heard: Heard) -> Verdict:
    refused = [each for name in ("bad_request", "bad_model") if (each := heard.of(name)) and not each.accepted]
    if not refused:
        return skipped("nothing was refused")
    silent = [each for each in refused if "without an explanation" in each.refusal]
    return tolerated("a refusal does not say why") if silent else works()


def _answers_after_a_refusal(found: Exchange) -> Verdict:
    return works() if found.accepted else broken(f"after a refused request it refuses good ones: {found.refusal}")


# --- effort -----------------------------------------------------------------------------------------------------------


def _takes_an_effort(found: Exchange) -> Verdict:
    return works() if found.accepted else missing(f"no effort can be chosen: {found.refusal}")


def _takes_no_effort(found: Exchange) -> Verdict:
    return works() if found.accepted else missing(f"thinking cannot be turned off: {found.refusal}")


def _stops_thinking(heard: Heard) -> Verdict:
    thinking, without = heard.of("effort"), heard.of("effort_none")
    if thinking is None or without is None or not thinking.accepted or not without.accepted:
        return skipped("one of the two requests was refused")
    if thinking.reply is None or not (thinking.reply.reasoning or thinking.reply.usage.reasoning_tokens):
        return skipped("no reasoning came with an effort either")
    if without.reply is not None and without.reply.reasoning:
        return tolerated("it thinks although told not to")
    return works()


def _refuses_an_unknown_effort(found: Exchange) -> Verdict:
    return tolerated(f"{NO_EFFORT!r} is taken: a misspelled effort goes unnoticed") if found.accepted else works()


def _shows_its_reasoning(found: Exchange) -> Verdict:
    if found.reply is None or not found.reply.reasoning:
        return missing("no reasoning is shown")
    return works(f"in the field {found.reply.reasoning_field}" if found.reply.reasoning_field else "inside the text")


# --- images -----------------------------------------------------------------------------------------------------------


def _takes_an_image(found: Exchange) -> Verdict:
    return works() if found.accepted else missing(found.refusal)


def _sees_an_image(found: Exchange) -> Verdict:
    if "red" in found.text.lower():
        return works()
    return missing(f"a red picture is taken, and not seen: {found.text[:60]!r}")


EDGES: tuple[Check, ...] = (
    Check(name="usage", group="usage", title="counts tokens", judge=of("hello", _counts_tokens)),
    Check(name="usage_once", group="usage", title="reports them once", judge=of("hello", _counts_once)),
    Check(name="usage_asked", group="usage", title="can be asked for them", judge=_takes_the_request_for_counts),
    Check(name="usage_reasoning", group="usage", title="counts reasoning apart", judge=of("effort", _counts_reasoning)),
    Check(name="usage_cache", group="usage", title="tells of its cache", judge=_tells_of_its_cache),
    Check(
        name="bad_key",
        group="errors",
        title="refuses a wrong key",
        judge=of("bad_key", _refuses_a_wrong_key, refused_too=True),
    ),
    Check(
        name="bad_model",
        group="errors",
        title="refuses an unknown model",
        judge=of("bad_model", _refuses_an_unknown_model, refused_too=True),
    ),
    Check(
        name="bad_request",
        group="errors",
        title="refuses nonsense",
        judge=of("bad_request", _refuses_nonsense, refused_too=True),
    ),
    Check(name="explains", group="errors", title="says why it refuses", judge=_explains_a_refusal),
    Check(
        name="after_refusal",
        group="errors",
        title="answers after a refusal",
        judge=of("after_refusal", _answers_after_a_refusal, refused_too=True),
    ),
    Check(
        name="effort", group="effort", title="takes an effort", judge=of("effort", _takes_an_effort, refused_too=True)
    ),
    Check(
        name="effort_none",
        group="effort",
        title="can be told not to think",
        judge=of("effort_none", _takes_no_effort, refused_too=True),
    ),
    Check(name="effort_obeyed", group="effort", title="stops thinking when told so", judge=_stops_thinking),
    Check(
        name="effort_unknown",
        group="effort",
        title="refuses an unknown effort",
        judge=of("effort_unknown", _refuses_an_unknown_effort, refused_too=True),
    ),
    Check(name="reasoning", group="effort", title="shows its reasoning", judge=of("effort", _shows_its_reasoning)),
    Check(name="image", group="images", title="takes an image", judge=of("image", _takes_an_image, refused_too=True)),
    Check(name="image_seen", group="images", title="sees it", judge=of("image", _sees_an_image)),
)
