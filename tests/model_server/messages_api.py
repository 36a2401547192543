"""The same server in the words of Anthropic's Messages API: its address, its requests, its errors.

    async with MessagesServer(reply("Hello")) as server:
        ...                                             # a client with ANTHROPIC_BASE_URL=server.address

Rule: the script is the one of `script`; only what a request says, how a reply is written (`messages_wire`) and how a
refusal reads differ.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import msgspec

from model_server import messages_wire
from model_server.performance import Performance, perform, whole
from model_server.programs import program_of
from model_server.recording import RecordedRequest
from model_server.request import ChatRequest, ToolAnswer, text_of
from model_server.script import Answer, Fault, JsonObject
from model_server.server import ModelServer

_PATH = "/v1/messages"
_DEEPEST = 100
_REQUIRED = ("model", "messages", "max_tokens")
_encode = msgspec.json.encode


class MessagesServer(ModelServer):
    """`api_key` None accepts any `x-api-key`. Everything else is as in `ModelServer`."""

    @property
    def address(self) -> str:
        """What a client takes as its base URL: without `/v1`."""
        return self.base_url.removesuffix("/v1")

    def _is_chat(self, method: str, path: str) -> bool:
        return (method, path) == ("POST", _PATH)

    def _decide(self, record: RecordedRequest) -> Performance:
        if self._api_key is not None and record.headers.get("x-api-key") != self._api_key:
            return _refused(401, "invalid x-api-key", "authentication_error")
        if not record.number:
            return _refused(404, f"Not found: {record.method} {record.path}", "not_found_error")
        body = _read(record)
        if missing := [name for name in _REQUIRED if name not in body]:
            return _refused(400, f"{', '.join(missing)}: Field required", "invalid_request_error")
        request = MessagesRequest(number=record.number, body=body, raw=record.body, headers=record.headers)
        return perform(_in_its_words(program_of(self.script)(request)), request, wire=messages_wire)


@dataclass(frozen=True, kw_only=True)
class MessagesRequest(ChatRequest):
    """A request as its conversation reads: here results of tools are blocks of a user's message."""

    @property
    def tool_names(self) -> list[str]:
        return [tool["name"] for tool in self.body.get("tools") or []]

    @cached_property
    def system_text(self) -> str:
        return text_of({"content": self.body.get("system")})

    @cached_property
    def tool_results(self) -> list[ToolAnswer]:
        blocks = [block for message in self.messages for block in _blocks(message)]
        return [
            ToolAnswer(block["tool_use_id"], text_of(block)) for block in blocks if block.get("type") == "tool_result"
        ]

    @property
    def steps_taken(self) -> int:
        return sum(_uses_tools(message) for message in self.messages)

    @property
    def steps_this_turn(self) -> int:
        """A user's message that is nothing but results of tools does not begin a turn."""
        taken = 0
        for message in reversed(self.messages):
            if message["role"] == "user" and not any(block.get("type") == "tool_result" for block in _blocks(message)):
                break
            taken += _uses_tools(message)
        return taken

    @cached_property
    def all_text(self) -> str:
        """Everything of the conversation that the model reads: texts and results of tools."""
        blocks = [block for message in self.messages for block in _blocks(message)]
        texts = [each["content"] for each in self.messages if isinstance(each.get("content"), str)]
        texts += [block["text"] if block.get("type") == "text" else text_of(block) for block in blocks]
        return "\n".join(texts)


def _blocks(message: JsonObject) -> list[JsonObject]:
    content = message.get("content")
    return cast("list[JsonObject]", content) if isinstance(content, list) else []


def _uses_tools(message: JsonObject) -> bool:
    return any(block.get("type") == "tool_use" for block in _blocks(message))


def _read(record: RecordedRequest) -> JsonObject:
    """The body; empty where it is no object. A model may write arguments nested deeper than anything here can read."""
    try:
        return record.json or {}
    except RecursionError:
        return msgspec.json.decode(_shallow(record.body), type=JsonObject)


def _shallow(body: bytes) -> bytes:
    """With null for everything below some levels."""
    depth = kept_to = 0
    parts: list[bytes] = []
    for found in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', body):
        depth += {b"{": 1, b"[": 1}.get(found[0], 0)
        if depth == _DEEPEST + 1 and found[0] in (b"{", b"["):
            parts += (body[kept_to : found.start()], b"null")
        depth -= {b"}": 1, b"]": 1}.get(found[0], 0)
        if depth == _DEEPEST and found[0] in (b"}", b"]"):
            kept_to = found.end()
    return b"".join(parts) + body[kept_to:]


def _refused(status: int, message: str, kind: str) -> Performance:
    return Performance(status, [whole(status, _error(message, kind))])


def _error(message: str, kind: str) -> bytes:
    return _encode({"type": "error", "error": {"type": kind, "message": message}})


def _in_its_words(answer: Answer) -> Answer:
    """A fault whose body is Chat Completions' error carries this API's instead; any other body stays as it is."""
    if not isinstance(answer, Fault) or answer.status is None:
        return answer
    try:
        error = msgspec.json.decode(answer.body, type=dict[str, dict[str, Any]])["error"]
    except (msgspec.DecodeError, KeyError):
        return answer
    kind = "api_error" if answer.status >= 500 else "invalid_request_error"
    return replace(answer, body=_error(str(error.get("message")), kind))
