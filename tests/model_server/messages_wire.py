"""A reply in the words of the Messages API: the events of a stream, or one JSON document.

Rule: as in `wire`, everything is encoded before the first byte is sent, and the same reply to the same request gives
the same bytes. Blocks come in the order thinking, text, tool uses, each between its start and its stop.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from model_server.request import ChatRequest
from model_server.script import Call, JsonObject, Mark, Piece, Reply, Usage
from model_server.wire import Event, broken

_SIGNATURE = "c2NyaXB0ZWQ="
_FINISH = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_encode = msgspec.json.encode


def events(reply: Reply, request: ChatRequest) -> list[Event]:
    """The stream in order: whole events as bytes, between them the marks.

    Raises:
        ValueError: the reply breaks after an event it does not have.
    """
    return broken(_events(reply, request), reply)


def document(reply: Reply, request: ChatRequest) -> bytes:
    """The answer to a request without `stream`."""
    content: list[JsonObject] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": _text(reply.reasoning), "signature": _SIGNATURE})
    if reply.deltas:
        content.append({"type": "text", "text": _text(reply.deltas)})
    for id_, each in _with_ids(reply.calls, request):
        parsed = msgspec.json.decode(each.arguments or "{}")
        content.append({"type": "tool_use", "id": id_, "name": each.name, "input": parsed})
    usage = _usage(reply, request)
    whole = _message(request, content, _finish(reply), None if usage is None else _shown(usage, usage.completion))
    return _encode(whole)


def _events(reply: Reply, request: ChatRequest) -> Iterator[Event]:
    usage = _usage(reply, request)
    start = _message(request, [], None, None if usage is None else _shown(usage, 1))
    yield _event("message_start", {"message": start})
    index = 0
    for kind, field, pieces in (("thinking", "thinking", reply.reasoning), ("text", "text", reply.deltas)):
        if pieces:
            empty = {"type": kind, field: ""} | ({"signature": ""} if kind == "thinking" else {})
            yield from _block(index, empty, f"{kind}_delta", field, pieces)
            index += 1
    for id_, each in _with_ids(reply.calls, request):
        block = {"type": "tool_use", "id": id_, "name": each.name, "input": {}}
        yield from _block(index, block, "input_json_delta", "partial_json", each.fragments)
        index += 1
    delta = {"stop_reason": _finish(reply), "stop_sequence": None}
    last = {} if usage is None else {"usage": {"output_tokens": usage.completion}}
    yield _event("message_delta", {"delta": delta} | last)
    yield _event("message_stop", {})


def _block(index: int, empty: JsonObject, kind: str, field: str, pieces: Iterable[Piece]) -> Iterator[Event]:
    yield _event("content_block_start", {"index": index, "content_block": empty})
    for piece in pieces:
        if isinstance(piece, str):
            yield _event("content_block_delta", {"index": index, "delta": {"type": kind, field: piece}})
        else:
            yield piece
    if kind == "thinking_delta":
        signed = {"type": "signature_delta", "signature": _SIGNATURE}
        yield _event("content_block_delta", {"index": index, "delta": signed})
    yield _event("content_block_stop", {"index": index})


def _event(name: str, data: JsonObject) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name} | data))


def _message(request: ChatRequest, content: list[JsonObject], stop: str | None, usage: JsonObject | None) -> JsonObject:
    message: JsonObject = {
        "id": f"msg_{request.number:06}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
    }
    return message if usage is None else message | {"usage": usage}


def _with_ids(calls: Iterable[Call], request: ChatRequest) -> Iterator[tuple[str, Call]]:
    for index, each in enumerate(calls):
        yield each.id or f"toolu_{request.number}_{index}", each


def _finish(reply: Reply) -> str:
    """Chat Completions' words for the reason are understood; any other is sent as it is."""
    reason = reply.finish_reason or ("tool_calls" if reply.calls else "stop")
    return _FINISH.get(reason, reason)


def _usage(reply: Reply, request: ChatRequest) -> Usage | None:
    given: Usage | Literal["omit"] | None = reply.usage
    if given == "omit":
        return None
    if isinstance(given, Usage):
        return given
    spoken = sum(isinstance(piece, str) for piece in (*reply.reasoning, *reply.deltas))
    asked = sum(len(each.arguments) // 4 + 1 for each in reply.calls)
    return Usage(prompt=len(request.raw) // 4, completion=spoken + asked)


def _shown(usage: Usage, output: int) -> JsonObject:
    """`prompt` is all of the prompt; the API counts what came from the cache apart."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": output,
    }


def _text(pieces: Iterable[Piece | Mark]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))
