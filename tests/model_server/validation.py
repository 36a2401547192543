"""Refuses what the real endpoint refuses, with the shape of its errors.

Rule: stricter than the laxest provider, never stricter than the strictest. A client that gets past this one
has sent a conversation every provider accepts: known roles and keys, every tool call answered once and at
once, in order. Ids of tool calls must differ within one message only; providers do repeat theirs from one
message to the next.
"""

import re
from collections.abc import Collection
from typing import Any, cast

import msgspec

from model_server.script import JsonObject, error_body

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PARAMETERS = frozenset(
    """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
    messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty
    prompt_cache_key prompt_cache_retention reasoning_effort response_format safety_identifier seed
    service_tier stop store stream stream_options temperature tool_choice tools top_logprobs top_p user
    verbosity web_search_options
    """.split()
)
_TEXT = frozenset({"text"})
_PARTS: dict[str, frozenset[str]] = {
    "system": _TEXT,
    "developer": _TEXT,
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
    "tool": _TEXT,
}
_KEYS: dict[str, frozenset[str]] = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset({"role", "content", "name", "refusal", "audio", "tool_calls", "function_call"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
}


class Refused(Exception):
    """The request is answered with `status` and the error JSON in `body`."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode(error_body(message, code=code, kind=kind, param=param))


def check(raw: bytes, *, models: Collection[str], tolerated: Collection[str] = ()) -> JsonObject:
    """Return the decoded body, or raise `Refused`.

    `tolerated`: keys this provider accepts besides the published ones, at the top or in an assistant message
    ("reasoning_content" with several).
    """
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"The body of the request is not valid JSON: {error}.") from error
    if not isinstance(body, dict):
        raise Refused("The body of the request must be a JSON object.")
    body = cast(JsonObject, body)
    for key in body.keys() - _PARAMETERS - set(tolerated):
        raise Refused(f"Unrecognized request argument: '{key}'.", param=key, code="unknown_parameter")
    _check_model(body, models)
    _check_options(body)
    _check_tools(body)
    messages = body.get("messages")
    if messages is None:
        raise Refused("Missing required parameter: 'messages'.", param="messages", code="missing_required_parameter")
    if not isinstance(messages, list) or not messages:
        raise Refused("'messages' must be a list of at least one message.", param="messages", code="invalid_type")
    _check_messages(cast("list[Any]", messages), frozenset(tolerated))
    return body


def _check_model(body: JsonObject, models: Collection[str]) -> None:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Refused("A model parameter is required.", param="model", code="missing_required_parameter")
    if model not in models:
        raise Refused(
            f"The model '{model}' does not exist or you have no access to it.",
            code="model_not_found",
            status=404,
        )


def _check_options(body: JsonObject) -> None:
    for name in ("stream", "parallel_tool_calls", "logprobs", "store"):
        _expect(body.get(name) is None or isinstance(body[name], bool), name, "a boolean")
    for name in ("n", "max_tokens", "max_completion_tokens"):
        value = body.get(name)
        _expect(value is None or (type(value) is int and value >= 1), name, "a positive integer")
    for name, low, high in (("temperature", 0, 2), ("top_p", 0, 1)):
        value = body.get(name)
        _expect(
            value is None or (type(value) in (int, float) and low <= value <= high),
            name,
            f"from {low} to {high}",
        )
    options = body.get("stream_options")
    _expect(options is None or isinstance(options, dict), "stream_options", "an object")
    if options is not None and not body.get("stream"):
        raise Refused("'stream_options' is only allowed with 'stream'.", param="stream_options")


def _check_tools(body: JsonObject) -> None:
    tools = body.get("tools")
    if tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                raise Refused(f"'{name}' is only allowed when 'tools' are given.", param=name)
        return
    _expect(isinstance(tools, list) and 1 <= len(tools) <= 128, "tools", "a list of 1 to 128 tools")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        _expect(isinstance(tool, dict) and tool.get("type") == "function", f"{where}.type", "'function'")
        function = _as_object(tool.get("function"), f"{where}.function")
        name = function.get("name")
        _expect(isinstance(name, str) and _NAME.fullmatch(name), f"{where}.function.name", f"like {_NAME.pattern}")
        _expect(name not in seen, f"{where}.function.name", f"unique; '{name}' is there twice")
        seen.add(str(name))
        parameters = function.get("parameters", {"type": "object"})
        if not isinstance(parameters, dict) or cast(JsonObject, parameters).get("type") != "object":
            raise Refused(
                f"Invalid schema for function '{name}': it must be a JSON Schema of type 'object'.",
                param=f"{where}.function.parameters",
                code="invalid_function_parameters",
            )


def _check_messages(messages: list[Any], tolerated: frozenset[str]) -> None:
    unanswered: list[str] = []
    asked_at = 0
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        _expect(isinstance(message, dict), where, "an object")
        role = message.get("role")
        if role not in _KEYS:
            raise Refused(
                f"Invalid role: {role!r}. Supported are {', '.join(_KEYS)}.",
                param=f"{where}.role",
                code="invalid_value",
            )
        extra = tolerated if role == "assistant" else frozenset[str]()
        for key in message.keys() - _KEYS[role] - extra:
            raise Refused(f"Unknown parameter: '{where}.{key}'.", param=f"{where}.{key}", code="unknown_parameter")
        _check_content(message, role, where)
        if role == "tool":
            _answer_one(message, unanswered, where)
            continue
        _all_answered(unanswered, asked_at)
        if role == "assistant" and "tool_calls" in message:
            unanswered, asked_at = _ids_of_calls(message["tool_calls"], where), index
    _all_answered(unanswered, asked_at)


def _answer_one(message: JsonObject, unanswered: list[str], where: str) -> None:
    call_id = message.get("tool_call_id")
    _expect(isinstance(call_id, str) and call_id, f"{where}.tool_call_id", "the id of a tool call")
    if call_id not in unanswered:
        raise Refused(
            f"A message of role 'tool' must answer a tool call of the message before: '{call_id}' is none, "
            "or is answered already.",
            param=f"{where}.role",
        )
    unanswered.remove(call_id)


def _all_answered(unanswered: list[str], asked_at: int) -> None:
    if unanswered:
        raise Refused(
            "An assistant message with 'tool_calls' must be followed by a tool message for each of them. "
            f"Without one: {', '.join(unanswered)}.",
            param=f"messages[{asked_at}].tool_calls",
        )


def _ids_of_calls(calls: Any, where: str) -> list[str]:
    _expect(isinstance(calls, list) and calls, f"{where}.tool_calls", "a list of at least one call")
    ids: list[str] = []
    for index, each in enumerate(calls):
        here = f"{where}.tool_calls[{index}]"
        _expect(isinstance(each, dict) and each.get("type") == "function", f"{here}.type", "'function'")
        _expect(isinstance(each.get("id"), str) and each["id"], f"{here}.id", "a string")
        _expect(each["id"] not in ids, f"{here}.id", f"unique in its message; '{each['id']}' is there twice")
        function = _as_object(each.get("function"), f"{here}.function")
        name, arguments = function.get("name"), function.get("arguments")
        _expect(isinstance(name, str) and _NAME.fullmatch(name), f"{here}.function.name", f"like {_NAME.pattern}")
        _expect(isinstance(arguments, str), f"{here}.function.arguments", "a string")
        ids.append(each["id"])
    return ids


def _check_content(message: JsonObject, role: str, where: str) -> None:
    content = message.get("content")
    where = f"{where}.content"
    if content is None:
        _expect(role == "assistant" and message.get("tool_calls"), where, "a string or a list of parts")
        return
    if isinstance(content, str):
        return
    _expect(isinstance(content, list) and content, where, "a string or a list of parts")
    for index, each in enumerate(cast("list[Any]", content)):
        here = f"{where}[{index}]"
        part = _as_object(each, here)
        kind = part.get("type")
        _expect(kind in _PARTS[role], f"{here}.type", f"one of {sorted(_PARTS[role])}")
        wanted = str if kind in ("text", "refusal") else dict
        _expect(isinstance(part.get(str(kind)), wanted), f"{here}.{kind}", "the content the type says")


def _as_object(value: Any, param: str) -> JsonObject:
    _expect(isinstance(value, dict), param, "an object")
    return cast(JsonObject, value)


def _expect(holds: object, param: str, what: str) -> None:
    if not holds:
        raise Refused(f"Invalid value for '{param}': expected {what}.", param=param, code="invalid_type")
