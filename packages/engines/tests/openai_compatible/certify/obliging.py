"""A model that does what a certification asks, and ways to make the server around it worse."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from enginehouse_engines.openai_compatible.certify.requests import (
    CODES,
    NO_EFFORT,
    READY,
    REMEMBERED,
    UNICODE,
)
from model_server import Answer, ChatRequest, Program, Usage, call, fault, reply
from model_server.script import Reply

_COUNTS = Usage(prompt=6_000, completion=9, cached=5_000, reasoning=3)


def oblige(request: ChatRequest) -> Answer:
    asked = request.last_user_text
    if request.body.get("reasoning_effort") == NO_EFFORT:
        return fault(400, f"reasoning_effort {NO_EFFORT!r} is not supported")
    if request.tool_results and request.messages[-1]["role"] == "tool":
        codes = " ".join(code for code in CODES.values() if any(code in each.text for each in request.tool_results))
        return _said(codes or READY, request)
    if "current_time" in asked:
        return _called(request, call("current_time", {}))
    if "two edits" in asked:
        edits = [{"old": "x", "new": "y"}, {"old": 'say "hi"\n', "new": ""}]
        return _called(request, call("edit", {"path": "a.txt", "edits": edits}))
    if "Oslo and for Lima" in asked:
        return _called(request, call("lookup", {"city": "Oslo"}), call("lookup", {"city": "Lima"}))
    if "for the city Oslo" in asked:
        return _called(request, call("lookup", {"city": "Oslo"}))
    return _said(_words(asked, request), request)


def _words(asked: str, request: ChatRequest) -> str:
    if "colour" in asked:
        return "It is red"
    if "Count from" in asked:
        return " ".join(str(number) for number in range(1, 40))
    if UNICODE in asked:
        return UNICODE
    return f"It is {REMEMBERED}" if "code" in asked and not request.tool_names else _known(asked, request)


def _known(asked: str, request: ChatRequest) -> str:
    return f"It is {REMEMBERED}" if "Which code" in asked else READY


def _said(text: str, request: ChatRequest) -> Reply:
    thinks = request.body.get("reasoning_effort") not in (None, "none")
    finish = "length" if request.body.get("max_tokens") else None
    return reply(text, reasoning="I think so." if thinks else (), usage=_COUNTS, finish_reason=finish)


def _called(request: ChatRequest, *calls: Any) -> Reply:
    return reply(reasoning="A tool will do.", calls=calls, usage=_COUNTS)


def but(change: Callable[[Reply, ChatRequest], Answer]) -> Program:
    """The same model, behind a server that changes what it says."""

    def program(request: ChatRequest) -> Answer:
        answer = oblige(request)
        return change(answer, request) if isinstance(answer, Reply) else answer

    return program


def without_counts(answer: Reply, _: ChatRequest) -> Answer:
    return replace(answer, usage="omit")


def without_calls(answer: Reply, request: ChatRequest) -> Answer:
    return reply(f"[{answer.calls[0].name}]") if answer.calls else answer


def one_call_at_a_time(answer: Reply, _: ChatRequest) -> Answer:
    return replace(answer, calls=answer.calls[:1])


def stop_instead_of_calls(answer: Reply, _: ChatRequest) -> Answer:
    return replace(answer, finish_reason="stop")


def without_pictures(answer: Reply, request: ChatRequest) -> Answer:
    if isinstance(request.messages[-1]["content"], list):
        return fault(400, "image_url is not supported by this model")
    return answer


def a_small_context(answer: Reply, request: ChatRequest) -> Answer:
    if len(request.raw) > 20_000:
        return reply("What code?", usage=Usage(prompt=2_048, completion=3))
    return answer


def no_results(answer: Reply, request: ChatRequest) -> Answer:
    return fault(500, "jinja: unknown role tool") if request.tool_results else answer


def broken_arguments(answer: Reply, _: ChatRequest) -> Answer:
    return replace(answer, calls=tuple(call(each.name, "{'city': Oslo") for each in answer.calls))


def refusing(pattern: str, words: str) -> Callable[[Reply, ChatRequest], Answer]:
    def change(answer: Reply, request: ChatRequest) -> Answer:
        return fault(400, words) if re.search(pattern.encode(), request.raw) else answer

    return change
