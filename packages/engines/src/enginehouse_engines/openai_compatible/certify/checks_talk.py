"""Checks of the address, of streams and of plain conversation."""

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
from enginehouse_engines.openai_compatible.certify.requests import READY, REMEMBERED, UNICODE
from enginehouse_engines.openai_compatible.finish_reasons import meaning

_LONG_TOKENS = 4_200
"""Fewer were not all of the long prompt, in whatever way they are counted."""

# --- the address ------------------------------------------------------------------------------------------------------


def _lists_models(heard: Heard) -> Verdict:
    if heard.listing_error is not None:
        return missing(str(heard.listing_error))
    return works(f"{len(heard.listed)} models") if heard.listed else missing("the list is empty")


def _lists_this_model(heard: Heard) -> Verdict:
    if not heard.listed:
        return skipped("there is no list of models")
    there = any(model.name == heard.model for model in heard.listed)
    return works() if there else tolerated(f"{heard.model} is not in the list")


def _tells_the_window(heard: Heard) -> Verdict:
    if not heard.listed:
        return skipped("there is no list of models")
    window = next((model.context_window for model in heard.listed if model.name == heard.model), None)
    return works(f"{window} tokens") if window else missing("the list does not say how much a model can read")


def _answers(heard: Heard) -> Verdict:
    found = heard.of("hello")
    if found is None:
        return skipped("nothing was asked")
    if not found.accepted:
        return broken(found.refusal or "the answer cannot be read")
    return broken("the answer is empty") if found.reply is None or found.reply.empty else works()


# --- streams ----------------------------------------------------------------------------------------------------------


def _is_a_stream(found: Exchange) -> Verdict:
    return works() if found.events else tolerated("one JSON answer instead of a stream: nothing is seen until the end")


def _comes_in_pieces(found: Exchange) -> Verdict:
    pieces = sum(
        bool(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"))
        for delta in found.deltas()
    )
    return works(f"{pieces} pieces") if pieces > 1 else tolerated("all of the text in one piece")


def _says_it_is_over(found: Exchange) -> Verdict:
    if found.done:
        return works()
    ended = found.reply is not None and found.reply.ended
    return (
        tolerated("no [DONE], the finish reason is taken for it")
        if ended
        else broken("neither [DONE] nor a finish reason")
    )


def _gives_a_finish_reason(found: Exchange) -> Verdict:
    reason = found.reply.finish if found.reply is not None else None
    if reason == "stop":
        return works()
    return tolerated(f"{reason!r} instead of 'stop'" if reason else "no finish reason, [DONE] is taken for it")


def _keeps_one_id(found: Exchange) -> Verdict:
    if not found.events:
        return skipped("there was no stream")
    ids = {event.get("id") for event in found.events if event.get("id")}
    return works() if len(ids) == 1 else tolerated(f"{len(ids) or 'no'} ids in one answer")


def _has_choices_in_every_event(found: Exchange) -> Verdict:
    if not found.events:
        return skipped("there was no stream")
    odd = sum(not event.get("choices") and not event.get("usage") for event in found.events)
    return tolerated(f"{odd} events hold neither a choice nor token counts") if odd else works()


def _says_nothing_beside(found: Exchange) -> Verdict:
    return (
        tolerated(f"lines that belong to no event: {found.beside[:60]!r}") if found.events and found.beside else works()
    )


def _keeps_characters_whole(found: Exchange) -> Verdict:
    if UNICODE in found.text:
        return works()
    return (
        tolerated("the model did not repeat the line")
        if "\ufffd" not in found.text
        else broken("characters arrive broken")
    )


def _obeys_a_length_limit(found: Exchange) -> Verdict:
    if not found.accepted:
        return missing(f"max_tokens is refused: {found.refusal}")
    if found.reply is not None and meaning(found.reply.finish) == "too_long":
        return works()
    reason = found.reply.finish if found.reply is not None else None
    return tolerated(f"a cut answer ends with {reason!r}, so nobody knows that it was cut")


def _answers_after_a_hang_up(found: Exchange) -> Verdict:
    return works() if found.accepted else broken(f"after we hung up in mid-answer it refuses: {found.refusal}")


def _answers_without_a_stream(found: Exchange) -> Verdict:
    if not found.accepted:
        return missing(found.refusal)
    return works() if found.text.strip() else missing("the answer is empty")


# --- conversation -----------------------------------------------------------------------------------------------------


def _follows_instructions(found: Exchange) -> Verdict:
    return works() if READY in found.text.upper() else tolerated(f"asked for one word, it said: {found.text[:60]!r}")


def _takes_a_history_with_calls(found: Exchange) -> Verdict:
    return works() if found.accepted else broken(found.refusal)


def _remembers(found: Exchange) -> Verdict:
    return works() if REMEMBERED in found.text else tolerated(f"asked for {REMEMBERED}, it said: {found.text[:60]!r}")


def _takes_two_user_messages(found: Exchange) -> Verdict:
    return works() if found.accepted else tolerated("two messages of a user in a row are refused; we send one")


def _reads_a_long_prompt(found: Exchange) -> Verdict:
    if not found.accepted:
        return broken(f"a prompt of 6,000 tokens is refused, and an agent's first one is longer: {found.refusal}")
    if REMEMBERED in found.text:
        return works()
    read = found.reply.usage.input_tokens if found.reply is not None else None
    if read is not None and read < _LONG_TOKENS:
        return broken(
            f"of about 6,000 tokens it read {read}: the server is set to a smaller context, and cuts silently"
        )
    return tolerated(f"asked for what stood at the beginning, it said: {found.text[:60]!r}")


def _takes_unknown_fields(found: Exchange) -> Verdict:
    return (
        works() if found.accepted else tolerated("fields it does not know are refused; mind this with options.request")
    )


def _takes_its_reasoning_back(found: Exchange) -> Verdict:
    return works() if found.accepted else tolerated('reasoning is not taken back: set options.send_reasoning = "never"')


TALK: tuple[Check, ...] = (
    Check(name="models", group="address", title="lists its models", judge=_lists_models),
    Check(name="model_listed", group="address", title="lists the model under test", judge=_lists_this_model),
    Check(name="window", group="address", title="says how much the model can read", judge=_tells_the_window),
    Check(name="answers", group="address", title="answers", judge=_answers),
    Check(name="stream", group="stream", title="streams its answer", judge=of("hello", _is_a_stream)),
    Check(name="pieces", group="stream", title="sends text as it is made", judge=of("unicode", _comes_in_pieces)),
    Check(name="done", group="stream", title="says when it is over", judge=of("hello", _says_it_is_over)),
    Check(
        name="finish", group="stream", title="gives the reason of the end", judge=of("hello", _gives_a_finish_reason)
    ),
    Check(name="one_id", group="stream", title="keeps one id", judge=of("hello", _keeps_one_id)),
    Check(
        name="choices",
        group="stream",
        title="has a choice in every event",
        judge=of("hello", _has_choices_in_every_event),
    ),
    Check(name="nothing_beside", group="stream", title="sends events only", judge=of("hello", _says_nothing_beside)),
    Check(name="unicode", group="stream", title="keeps characters whole", judge=of("unicode", _keeps_characters_whole)),
    Check(
        name="length",
        group="stream",
        title="says that an answer was cut",
        judge=of("short", _obeys_a_length_limit, refused_too=True),
    ),
    Check(
        name="hang_up",
        group="stream",
        title="answers after a hang-up",
        judge=of("after_leaving", _answers_after_a_hang_up, refused_too=True),
    ),
    Check(
        name="no_stream",
        group="stream",
        title="answers without a stream",
        judge=of("whole", _answers_without_a_stream, refused_too=True),
    ),
    Check(
        name="instructions",
        group="conversation",
        title="follows instructions",
        judge=of("hello", _follows_instructions),
    ),
    Check(
        name="history",
        group="conversation",
        title="takes a history with tool calls",
        judge=of("history", _takes_a_history_with_calls, refused_too=True),
    ),
    Check(name="memory", group="conversation", title="knows what was said", judge=of("history", _remembers)),
    Check(
        name="two_users",
        group="conversation",
        title="takes two user messages in a row",
        judge=of("two_users", _takes_two_user_messages, refused_too=True),
    ),
    Check(
        name="long_prompt",
        group="conversation",
        title="reads a long prompt",
        judge=of("long", _reads_a_long_prompt, refused_too=True),
    ),
    Check(
        name="unknown_field",
        group="conversation",
        title="passes over unknown fields",
        judge=of("unknown_field", _takes_unknown_fields, refused_too=True),
    ),
    Check(
        name="reasoning_back",
        group="conversation",
        title="takes its reasoning back",
        judge=of("reasoning_back", _takes_its_reasoning_back, refused_too=True),
    ),
)
