"""One chat request, with what a program asks of it.

Rule: everything here is read from the request alone, so a program that uses nothing else survives any
restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

from model_server.script import JsonObject


class ToolAnswer(NamedTuple):
    call_id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    number: int
    """1 for the first chat request this server received, also those it refused."""
    body: JsonObject
    raw: bytes
    headers: Mapping[str, str]
    """Names in lower case."""

    @property
    def model(self) -> str:
        return self.body["model"]

    @property
    def messages(self) -> list[JsonObject]:
        return self.body["messages"]

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def wants_usage(self) -> bool:
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    @property
    def tool_names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.body.get("tools") or []]

    @cached_property
    def system_text(self) -> str:
        return "\n".join(text_of(each) for each in self.messages if each["role"] in ("system", "developer"))

    @cached_property
    def user_texts(self) -> list[str]:
        return [text_of(each) for each in self.messages if each["role"] == "user"]

    @property
    def first_user_text(self) -> str:
        return self.user_texts[0] if self.user_texts else ""

    @property
    def last_user_text(self) -> str:
        return self.user_texts[-1] if self.user_texts else ""

    @cached_property
    def tool_results(self) -> list[ToolAnswer]:
        return [ToolAnswer(each["tool_call_id"], text_of(each)) for each in self.messages if each["role"] == "tool"]

    @property
    def assistant_messages(self) -> int:
        return sum(each["role"] == "assistant" for each in self.messages)

    @property
    def steps_taken(self) -> int:
        """Replies with tool calls in the whole conversation."""
        return sum(bool(each.get("tool_calls")) for each in self.messages)

    @property
    def steps_this_turn(self) -> int:
        """Replies with tool calls after the last message of the user."""
        taken = 0
        for each in reversed(self.messages):
            if each["role"] == "user":
                break
            taken += bool(each.get("tool_calls"))
        return taken


def text_of(message: JsonObject) -> str:
    """The text of a message, whether its content is a string or parts; other parts are left out."""
    content = message.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return "".join(part["text"] for part in parts if part.get("type") == "text")
    return content or ""
