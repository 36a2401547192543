"""A reply in the words of Chat Completions: the events of a stream, or one JSON document.

Rule: everything is encoded before the first byte is sent, so what a client measures is its own work; and the
same reply to the same request gives the same bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from model_server.request import ChatRequest
from model_server.script import Call, JsonObject, Mark, Piece, Reply, Usage

_CREATED = 1_700_000_000
_DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode

Event = bytes | Mark


def events(reply: Reply, request: ChatRequest) -> list[Event]:
    """The stream in order: whole events as bytes, between them the marks.

    Raises:
        ValueError: the reply breaks after an event it does not have.
    """
    stream = _Stream(request)
    return broken(_events(reply, request, stream), reply)


def document(reply: Reply, request: ChatRequest) -> bytes:
    """The answer to a request without `stream`."""
    message: JsonObject = {"role": "assistant", "content": _text(reply.deltas) or None, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = _text(reply.reasoning)
    if reply.calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for id_, each in _with_ids(reply.calls, request)
        ]
    return _encode(
        {
            "id": f"chatcmpl-{request.number}",
            "object": "chat.completion",
            "created": _CREATED,
            "model": request.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}],
            **({} if reply.usage == "omit" else {"usage": _usage(reply, request)}),
        }
    )


def broken(sequence: Iterable[Event], reply: Reply) -> list[Event]:
    """The events with the marks at which this reply breaks."""
    events = list(sequence)
    for after, marks in reply.breaks:
        events = _insert(events, after, marks)
    return events


class _Stream:
    """Makes events. Head and tail are the same for all of one stream and are encoded once."""

    def __init__(self, request: ChatRequest) -> None:
        self._fixed: JsonObject = {
            "id": f"chatcmpl-{request.number}",
            "object": "chat.completion.chunk",
            "created": _CREATED,
            "model": request.model,
            "service_tier": "default",
            "system_fingerprint": "fp_scripted",
        }
        # With usage asked for, every event but the last carries a null.
        self._usage: JsonObject = {"usage": None} if request.wants_usage else {}
        mark = "\0"
        whole = self._event([{"index": 0, "delta": mark, "logprobs": None, "finish_reason": None}], self._usage)
        self._head, self._tail = whole.split(_encode(mark))

    def delta(self, delta: JsonObject) -> bytes:
        return self._head + _encode(delta) + self._tail

    def finish(self, reason: str) -> bytes:
        return self._event([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}], self._usage)

    def usage(self, usage: JsonObject) -> bytes:
        return self._event([], {"usage": usage})

    def _event(self, choices: list[Any], usage: JsonObject) -> bytes:
        return b"data: " + _encode({**self._fixed, "choices": choices, **usage}) + b"\n\n"


def _events(reply: Reply, request: ChatRequest, stream: _Stream) -> Iterator[Event]:
    yield stream.delta({"role": "assistant", "content": "" if reply.deltas else None, "refusal": None})
    for key, pieces in (("reasoning_content", reply.reasoning), ("content", reply.deltas)):
        for piece in pieces:
            yield stream.delta({key: piece}) if isinstance(piece, str) else piece
    calls = [_call(index, id_, each, stream) for index, (id_, each) in enumerate(_with_ids(reply.calls, request))]
    if reply.interleave:
        for row in zip_longest(*calls):
            yield from (event for event in row if event is not None)
    else:
        for each in calls:
            yield from each
    yield stream.finish(_finish_reason(reply))
    if request.wants_usage and reply.usage != "omit":
        yield stream.usage(_usage(reply, request))
    yield _DONE


def _call(index: int, id_: str, call: Call, stream: _Stream) -> Iterator[Event]:
    function = {"name": call.name, "arguments": ""}
    yield stream.delta({"tool_calls": [{"index": index, "id": id_, "type": "function", "function": function}]})
    for piece in call.fragments:
        if isinstance(piece, str):
            yield stream.delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        else:
            yield piece


def _insert(sequence: list[Event], after: int, marks: Sequence[Mark]) -> list[Event]:
    seen = 0
    for position, event in enumerate(sequence):
        if seen == after:
            return [*sequence[:position], *marks, *sequence[position:]]
        seen += isinstance(event, bytes)
    if seen == after:
        return [*sequence, *marks]
    raise ValueError(f"a reply of {seen} events cannot break after event {after}")


def _with_ids(calls: Iterable[Call], request: ChatRequest) -> Iterator[tuple[str, Call]]:
    step = request.steps_taken + 1
    for index, each in enumerate(calls):
        yield each.id or f"call_{step}_{index}", each


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.calls else "stop")


def _usage(reply: Reply, request: ChatRequest) -> JsonObject:
    if isinstance(reply.usage, Usage):
        return reply.usage.as_json()
    reasoning = sum(isinstance(piece, str) for piece in reply.reasoning)
    spoken = sum(isinstance(piece, str) for piece in reply.deltas)
    asked = sum(len(each.arguments) // 4 + 1 for each in reply.calls)
    return Usage(prompt=len(request.raw) // 4, completion=reasoning + spoken + asked, reasoning=reasoning).as_json()


def _text(pieces: Iterable[Piece]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))
