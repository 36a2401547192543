"""Checks of tool calls: an agent is nothing without them."""

from typing import Any, cast

import msgspec

from enginehouse_engines.openai_compatible.certify.exchanges import Exchange
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
from enginehouse_engines.openai_compatible.certify.requests import CODES, READY
from enginehouse_engines.openai_compatible.finish_reasons import CALLS
from enginehouse_engines.openai_compatible.tool_fragments import Call
from enginehouse_protocol.permissions import JsonObject


def calls_of(found: Exchange) -> tuple[Call, ...]:
    return found.reply.calls if found.reply is not None else ()


def _arguments(call: Call) -> JsonObject | None:
    """None: they are no JSON object."""
    if not call.arguments.strip():
        return {}
    try:
        decoded: Any = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return cast(JsonObject, decoded) if isinstance(decoded, dict) else None


def _calls_a_tool(found: Exchange) -> Verdict:
    if not found.accepted:
        return broken(f"a request with tools is refused: {found.refusal}")
    calls = calls_of(found)
    if not calls:
        return broken(f"no tool call came, but: {found.text[:80]!r}")
    return works() if calls[0].name == "lookup" else broken(f"the call names {calls[0].name!r} instead of 'lookup'")


def _sends_arguments(found: Exchange) -> Verdict:
    if not (calls := calls_of(found)):
        return skipped("no tool call came")
    arguments = _arguments(calls[0])
    if arguments is None:
        return broken(f"the arguments are no JSON object: {calls[0].arguments[:80]!r}")
    return works() if "oslo" in str(arguments.get("city", "")).lower() else tolerated(f"odd arguments: {arguments}")


def _ends_with_calls(found: Exchange) -> Verdict:
    if not calls_of(found) or found.reply is None:
        return skipped("no tool call came")
    if found.reply.finish in CALLS:
        return works()
    return tolerated(f"finish reason {found.reply.finish!r} although a call came; the call counts")


def _numbers_calls(found: Exchange) -> Verdict:
    parts = list(found.call_parts())
    if not parts:
        return skipped("no streamed tool call came")
    without = sum(not isinstance(part.get("index"), int) for part in parts)
    return (
        tolerated(f"{without} of {len(parts)} pieces have no index; they are told apart by id and order")
        if without
        else works()
    )


def _gives_calls_ids(found: Exchange) -> Verdict:
    if not (calls := calls_of(found)):
        return skipped("no tool call came")
    return works() if all(call.id for call in calls) else tolerated("a call without an id; it gets one of ours")


def _streams_arguments(found: Exchange) -> Verdict:
    parts = list(found.call_parts())
    if not parts:
        return skipped("no streamed tool call came")
    return works(f"{len(parts)} pieces") if len(parts) > 1 else tolerated("a call comes in one piece")


def _types_calls(found: Exchange) -> Verdict:
    parts = list(found.call_parts())
    if not parts:
        return skipped("no streamed tool call came")
    return works() if parts[0].get("type") == "function" else tolerated("a call does not say that it is a function's")


def _takes_a_result(found: Exchange) -> Verdict:
    return works() if found.accepted else broken(f"the result of its own call is refused: {found.refusal}")


def _uses_a_result(found: Exchange) -> Verdict:
    if CODES["Oslo"] in found.text:
        return works()
    return tolerated("it called again" if calls_of(found) else f"it did not use the result: {found.text[:60]!r}")


def _takes_an_empty_result(found: Exchange) -> Verdict:
    return works() if found.accepted else tolerated(f"an empty result is refused; we never send one: {found.refusal}")


def _calls_two_at_once(found: Exchange) -> Verdict:
    if not found.accepted:
        return missing(found.refusal)
    calls = calls_of(found)
    if len(calls) < 2:
        return missing("one call at a time: work takes more steps")
    cities = {city for city in CODES for call in calls if city.lower() in call.arguments.lower()}
    return works() if len(cities) == len(CODES) else tolerated(f"{len(calls)} calls, but for {sorted(cities)} only")


def _tells_two_calls_apart(found: Exchange) -> Verdict:
    calls = calls_of(found)
    if len(calls) < 2:
        return skipped("no two calls came")
    if any(_arguments(call) is None for call in calls):
        return broken("the arguments of two calls cannot be told apart")
    ids = [call.id for call in calls]
    return works() if len(set(ids)) == len(ids) else tolerated("two calls have the same id; they get ids of ours")


def _takes_two_results(found: Exchange) -> Verdict:
    if not found.accepted:
        return broken(f"the results of its own two calls are refused: {found.refusal}")
    return works() if all(code in found.text for code in CODES.values()) else tolerated("it did not use both results")


def _calls_without_arguments(found: Exchange) -> Verdict:
    if not found.accepted:
        return broken(f"a tool without parameters is refused: {found.refusal}")
    if not (calls := calls_of(found)):
        return tolerated("a tool without parameters was not called")
    if _arguments(calls[0]) is None:
        return broken(f"no arguments are sent as {calls[0].arguments!r}")
    return works() if calls[0].arguments.strip() else tolerated("no arguments are sent as nothing instead of {}")


def _calls_with_nested_arguments(found: Exchange) -> Verdict:
    if not found.accepted:
        return broken(f"a tool with a list of objects is refused: {found.refusal}")
    if not (calls := calls_of(found)):
        return tolerated("the tool was not called")
    edits: Any = (_arguments(calls[0]) or {}).get("edits")
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in cast(list[Any], edits)):
        return broken(f"a list of objects arrives as: {calls[0].arguments[:80]!r}")
    olds = [str(cast(JsonObject, edit).get("old")) for edit in cast(list[Any], edits)]
    return works() if 'say "hi"\n' in olds else tolerated(f"quotes and line breaks do not arrive as asked: {olds}")


def _leaves_tools_alone(found: Exchange) -> Verdict:
    if calls_of(found):
        return tolerated("it calls a tool although told not to")
    return works() if READY in found.text.upper() else tolerated(f"asked for one word, it said: {found.text[:60]!r}")


TOOLS: tuple[Check, ...] = (
    Check(name="call", group="tools", title="calls a tool", judge=of("call", _calls_a_tool, refused_too=True)),
    Check(name="arguments", group="tools", title="sends its arguments as JSON", judge=of("call", _sends_arguments)),
    Check(name="call_finish", group="tools", title="says that it ends with calls", judge=of("call", _ends_with_calls)),
    Check(name="call_index", group="tools", title="numbers its calls", judge=of("call", _numbers_calls)),
    Check(name="call_id", group="tools", title="gives each call an id", judge=of("call", _gives_calls_ids)),
    Check(name="call_pieces", group="tools", title="streams arguments", judge=of("call", _streams_arguments)),
    Check(name="call_type", group="tools", title="says what a call is", judge=of("call", _types_calls)),
    Check(name="result", group="tools", title="takes a result", judge=of("result", _takes_a_result, refused_too=True)),
    Check(name="result_used", group="tools", title="uses the result", judge=of("result", _uses_a_result)),
    Check(
        name="empty_result",
        group="tools",
        title="takes an empty result",
        judge=of("empty_result", _takes_an_empty_result, refused_too=True),
    ),
    Check(
        name="parallel",
        group="tools",
        title="makes several calls at once",
        judge=of("parallel", _calls_two_at_once, refused_too=True),
    ),
    Check(
        name="parallel_apart", group="tools", title="keeps calls apart", judge=of("parallel", _tells_two_calls_apart)
    ),
    Check(
        name="parallel_results",
        group="tools",
        title="takes several results",
        judge=of("parallel_results", _takes_two_results, refused_too=True),
    ),
    Check(
        name="no_arguments",
        group="tools",
        title="calls without arguments",
        judge=of("no_arguments", _calls_without_arguments, refused_too=True),
    ),
    Check(
        name="nested",
        group="tools",
        title="sends lists of objects",
        judge=of("nested", _calls_with_nested_arguments, refused_too=True),
    ),
    Check(
        name="no_call", group="tools", title="leaves tools alone when told so", judge=of("no_call", _leaves_tools_alone)
    ),
)
