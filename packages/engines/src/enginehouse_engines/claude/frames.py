"""Raw stdout frames of the CLI, decoded. Knows their shape and nothing of their meaning.

Rule: nothing here is fatal. An unknown frame is kept whole, an unknown field is ignored, and a field that is not what
it should be is left out and named: a result frame with one odd field still ends its turn.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.permissions import JsonObject

_SHOWN_OF_A_BROKEN_LINE = 400


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class ApiEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the Messages API's stream, as the provider sent it."""

    type: str = ""
    index: int = 0
    delta: Delta | None = None
    content_block: JsonObject | None = None
    message: JsonObject | None = None
    usage: JsonObject | None = None


class ApiMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    model: str = ""
    content: list[JsonObject] | str = ""
    stop_reason: str | None = None
    usage: JsonObject | None = None


class StreamFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="stream_event"):
    event: ApiEvent = ApiEvent()
    parent_tool_use_id: str | None = None


class AssistantFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="assistant"):
    """One finished block of a reply, or a sentence the CLI made itself (`error`, or the model `<synthetic>`)."""

    message: ApiMessage = ApiMessage()
    parent_tool_use_id: str | None = None
    uuid: str = ""
    error: str | None = None
    api_error: str | None = None
    api_error_status: int | None = None
    api_error_type: str | None = None
    aborted: bool = False
    thinking_duration_ms: float | None = None

    @property
    def is_prose(self) -> bool:
        """Whether the CLI speaks, not the model."""
        return self.error is not None or self.message.model == "<synthetic>"


class UserFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="user"):
    """Tool results, or a text the CLI put into the conversation; never our own prompt."""

    message: ApiMessage = ApiMessage()
    parent_tool_use_id: str | None = None
    uuid: str = ""
    tool_use_result: Any = None
    """The structured form of the one result in the frame."""
    tool_result_meta: list[JsonObject] | None = None
    is_replay: bool = msgspec.field(default=False, name="isReplay")
    """The echo of a command, such as a switch of the model."""


class ResultFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="result"):
    """The end of a turn of the CLI."""

    subtype: str = ""
    is_error: bool = False
    stop_reason: str | None = None
    terminal_reason: str | None = None
    api_error: str | None = None
    api_error_status: int | None = None
    api_error_type: str | None = None
    result: str | None = None
    errors: list[str] | None = None
    origin: JsonObject | None = None
    session_id: str = ""
    user_message_uuid: str | None = None
    user_message_uuids: list[str] | None = None
    model_usage_since_last_result: dict[str, JsonObject] | None = None
    model_usage: dict[str, JsonObject] | None = msgspec.field(default=None, name="modelUsage")


class LifecycleFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="command_lifecycle"):
    """What becomes of a prompt of ours: queued, started, completed, cancelled."""

    command_uuid: str = ""
    state: str = ""


class SystemFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="system"):
    """Everything else the CLI says; `subtype` tells which of the fields mean something."""

    subtype: str = ""
    session_id: str = ""
    model: str = ""
    permission_mode: str | None = msgspec.field(default=None, name="permissionMode")
    tools: list[str] | None = None
    api_key_source: str = msgspec.field(default="", name="apiKeySource")
    status: str | None = None
    compact_result: str | None = None
    compact_error: str | None = None
    compact_metadata: JsonObject | None = None
    attempt: int = 0
    max_retries: int = 0
    retry_delay_ms: float = 0
    error_status: int | None = None
    error: str | None = None
    tool_use_id: str | None = None
    task_id: str = ""
    is_backgrounded: bool = False
    patch: JsonObject | None = None
    tasks: list[JsonObject] | None = None
    summary: str = ""
    content: str = ""
    level: str = ""


class RateLimitFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rate_limit_event"):
    rate_limit_info: JsonObject | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """A frame nobody here knows, or bytes that are no frame."""

    what: str
    data: JsonObject = field(default_factory=dict[str, Any])


Known = StreamFrame | AssistantFrame | UserFrame | ResultFrame | LifecycleFrame | SystemFrame | RateLimitFrame
Frame = Known | Unknown

_decoder: msgspec.json.Decoder[Known] = msgspec.json.Decoder(Known)
_KINDS: dict[str, type[msgspec.Struct]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (StreamFrame, AssistantFrame, UserFrame, ResultFrame, LifecycleFrame, SystemFrame, RateLimitFrame)
}


def decode(raw: bytes | JsonObject) -> tuple[Frame, tuple[str, ...]]:
    """The frame, and the names of the fields that were not what they should be and were left out."""
    if isinstance(raw, bytes):
        try:
            return _decoder.decode(raw), ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        data = _loosely(raw)
        if data is None:
            return Unknown(what="a line that is no JSON object", data={"head": _head(raw)}), ()
    else:
        data = raw
    kind = _KINDS.get(str(data.get("type")))
    if kind is None:
        return Unknown(what=f"frame {data.get('type')}", data=data), ()
    wrong: list[str] = []
    frame = _leniently(kind, data, wrong, "")
    return cast(Known, frame), tuple(wrong)


def _leniently(kind: type[msgspec.Struct], data: Mapping[str, Any], wrong: list[str], where: str) -> msgspec.Struct:
    """A struct of what fits. Every field has a default, so there always is one."""
    fitting: dict[str, Any] = {}
    for each in msgspec.structs.fields(kind):
        if each.encode_name not in data:
            continue
        value = data[each.encode_name]
        try:
            fitting[each.name] = msgspec.convert(value, each.type)
        except (msgspec.ValidationError, RecursionError):
            nested = _NESTED.get((kind, each.name))
            if nested is not None and isinstance(value, dict):
                fitting[each.name] = _leniently(nested, cast(JsonObject, value), wrong, f"{where}{each.name}.")
            else:
                wrong.append(f"{where}{each.name}")
    return kind(**fitting)


_NESTED: dict[tuple[type[msgspec.Struct], str], type[msgspec.Struct]] = {
    (StreamFrame, "event"): ApiEvent,
    (ApiEvent, "delta"): Delta,
    (AssistantFrame, "message"): ApiMessage,
    (UserFrame, "message"): ApiMessage,
}


def _loosely(raw: bytes) -> JsonObject | None:
    """What the strict decoder refuses, such as a lone surrogate or a byte that is no UTF-8, made valid text."""
    try:
        data: Any = json.loads(raw.decode("utf-8", "replace"))
        return cast(JsonObject, _valid(data)) if isinstance(data, dict) else None
    except (ValueError, RecursionError):
        return None


def _valid(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {well_formed(key): _valid(item) for key, item in cast(JsonObject, value).items()}
        case list():
            return [_valid(item) for item in cast(list[Any], value)]
        case _:
            return value


def _head(raw: bytes) -> str:
    return raw[:_SHOWN_OF_A_BROKEN_LINE].decode("utf-8", "replace")
