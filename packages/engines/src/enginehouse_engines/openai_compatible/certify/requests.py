"""The requests of a certification, as small as they can be, in the shapes a session uses.

Rule: an answer can be judged by a program: each asks for one word that nobody would say by chance.
"""

import base64
import struct
import zlib
from collections.abc import Sequence

from enginehouse_engines.openai_compatible.tool_fragments import Call
from enginehouse_protocol.permissions import JsonObject

READY = "PINEAPPLE"
UNICODE = "Žluťoučký kůň 馬 🏠"
REMEMBERED = "QX93"
CODES = {"Oslo": "KT41", "Lima": "VB77"}
NO_MODEL = "enginehouse-no-such-model"
NO_EFFORT = "enginehouse-no-such-effort"
UNKNOWN_FIELD = "enginehouse_unknown_field"
_SYSTEM = {"role": "system", "content": "You are being tested. Follow the instructions exactly and add nothing."}
_FILLER = "The quick brown fox jumps over the lazy dog and does not look back. "


def hello() -> list[JsonObject]:
    return [_SYSTEM, _user(f"Reply with exactly this one word: {READY}")]


def repeat_unicode() -> list[JsonObject]:
    return [_SYSTEM, _user(f"Repeat this line exactly: {UNICODE}")]


def counting() -> list[JsonObject]:
    return [_SYSTEM, _user("Count from 1 to 300, one number a line, all of them.")]


def with_history() -> list[JsonObject]:
    """A conversation with a call that was answered, as it looks after a turn."""
    call = {"id": "call_earlier_1", "type": "function", "function": {"name": "lookup", "arguments": '{"city":"Rome"}'}}
    return [
        _SYSTEM,
        _user("What is the code of Rome?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_earlier_1", "content": f"The code of Rome is {REMEMBERED}."},
        {"role": "assistant", "content": "I have it."},
        _user("Which code was that? Reply with the code alone."),
    ]


def two_in_a_row() -> list[JsonObject]:
    return [_SYSTEM, _user("Ignore the next line's politeness."), _user(f"Please reply with exactly: {READY}")]


def long_prompt() -> list[JsonObject]:
    """About 6,000 tokens, with what is asked for at the very beginning."""
    return [
        _SYSTEM,
        _user(f"The code is {REMEMBERED}.\n{_FILLER * 400}\nWhat was the code? Reply with the code alone."),
    ]


def one_call() -> list[JsonObject]:
    return [_SYSTEM, _user("Use the tool lookup for the city Oslo. Do not answer without it.")]


def two_calls() -> list[JsonObject]:
    return [
        _SYSTEM,
        _user("Use the tool lookup for Oslo and for Lima. Make both calls at once, in this one reply."),
    ]


def call_without_arguments() -> list[JsonObject]:
    return [_SYSTEM, _user("Call the tool current_time now. It takes no arguments.")]


def nested_call() -> list[JsonObject]:
    return [
        _SYSTEM,
        _user(
            "Call the tool edit with two edits of the file a.txt: the first replaces the text 'x' by 'y', the second "
            "replaces the text 'say \"hi\"\\n' (with the quotes and the line break) by an empty text."
        ),
    ]


def no_call_needed() -> list[JsonObject]:
    return [_SYSTEM, _user(f"Do not use any tool. Reply with exactly this one word: {READY}")]


def answered(asked: list[JsonObject], calls: Sequence[Call], reasoning: JsonObject | None = None) -> list[JsonObject]:
    """`asked`, with the calls that came and a result for each."""
    own = {call.id for call in calls}
    ids = (
        [call.id for call in calls] if "" not in own and len(own) == len(calls) else [_id(n) for n in range(len(calls))]
    )
    sent: list[JsonObject] = []
    results: list[JsonObject] = []
    for call_id, call in zip(ids, calls, strict=True):
        function = {"name": call.name, "arguments": call.arguments or "{}"}
        sent.append({"id": call_id, "type": "function", "function": function})
        city = next((city for city in CODES if city.lower() in call.arguments.lower()), "Oslo")
        results.append({"role": "tool", "tool_call_id": call_id, "content": f"The code is {CODES[city]}."})
    assistant: JsonObject = {"role": "assistant", "content": None, "tool_calls": sent} | (reasoning or {})
    return [*asked, assistant, *results]


def empty_result() -> list[JsonObject]:
    """A tool that printed nothing."""
    call = {"id": _id(0), "type": "function", "function": {"name": "lookup", "arguments": '{"city":"Rome"}'}}
    return [
        _SYSTEM,
        _user(f"Use lookup for Rome once. When its result is empty, reply with exactly: {READY}"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _id(0), "content": ""},
    ]


def red_image() -> list[JsonObject]:
    content = [
        {"type": "text", "text": "Which colour is this picture? Reply with one English word."},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(_red()).decode()}"}},
    ]
    return [_SYSTEM, {"role": "user", "content": content}]


LOOKUP: JsonObject = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "The secret code of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city's name."}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CURRENT_TIME: JsonObject = {
    "type": "function",
    "function": {
        "name": "current_time",
        "description": "The current time.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
EDIT: JsonObject = {
    "type": "function",
    "function": {
        "name": "edit",
        "description": "Replace texts in a file.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                        "required": ["old", "new"],
                        "additionalProperties": False,
                    },
                },
            },
            "required": ["path", "edits"],
            "additionalProperties": False,
        },
    },
}


def _user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def _id(number: int) -> str:
    return f"call_certify_{number + 1}"


def _red() -> bytes:
    """A PNG of 32 by 32 red points."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * 32) * 32
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
