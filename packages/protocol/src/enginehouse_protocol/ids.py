"""Identifiers. Each is a `NewType`, so a call id cannot be handed over where a turn id is wanted.

Rule: an id made here sorts by the time it was made and is safe as a file name and as a command-line value; an id
that came from outside is checked with `is_id` before it is used as either.
"""

import re
import secrets
import time
from typing import NewType

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
CallId = NewType("CallId", str)
"""Our own id of a tool use. The provider's id is kept beside it: providers repeat theirs."""
MessageId = NewType("MessageId", str)
ReplyId = NewType("ReplyId", str)
"""Groups what one model reply consisted of: its text blocks and its tool uses."""
RequestId = NewType("RequestId", str)
QuestionId = NewType("QuestionId", str)
EngineName = NewType("EngineName", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no letter that looks like a digit
_GRAMMAR = re.compile(r"[a-z]{1,3}_[0-9a-hjkmnp-tv-z]{26}")


def _new(prefix: str) -> str:
    """48 bits of milliseconds, then 80 random bits."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return f"{prefix}_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def new_session_id() -> SessionId:
    return SessionId(_new("s"))


def new_turn_id() -> TurnId:
    return TurnId(_new("t"))


def new_call_id() -> CallId:
    return CallId(_new("c"))


def new_message_id() -> MessageId:
    return MessageId(_new("m"))


def new_reply_id() -> ReplyId:
    return ReplyId(_new("r"))


def new_request_id() -> RequestId:
    return RequestId(_new("p"))


def new_question_id() -> QuestionId:
    return QuestionId(_new("q"))


def is_id(text: str) -> bool:
    """True for the exact shape made here; nothing else may become a path or an argument."""
    return _GRAMMAR.fullmatch(text) is not None
