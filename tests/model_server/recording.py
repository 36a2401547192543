"""What the server saw: every request with its bytes and times, and what follows from comparing them.

Rule: bytes are compared, never parsed values. A prompt cache works on bytes, and a client that sends an equal
object in another order has broken the prefix.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal, cast

import msgspec

from model_server.script import JsonObject

Outcome = Literal["open", "complete", "cut", "client_left"]


class RecordedRequest(msgspec.Struct, kw_only=True, dict=True):
    """One request. Times are `time.monotonic_ns()`, which on Linux and macOS all processes of a machine
    share.

    `arrived_ns`: its last byte was read. `completed_ns`: the last byte of the answer was handed to the
    socket, the connection cut, or the client seen to leave.
    """

    number: int
    """Counts chat requests from 1; 0 for every other path."""
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    arrived_ns: int
    first_byte_ns: int | None = None
    completed_ns: int | None = None
    status: int | None = None
    outcome: Outcome = "open"
    """"client_left" is certain where the script waits (hold, pause, stall) or the socket refuses a write. A
    client that leaves while the last bytes are on their way counts as complete."""

    @cached_property
    def json(self) -> JsonObject | None:
        """The body, or None where it is not a JSON object."""
        try:
            decoded = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return cast(JsonObject, decoded) if isinstance(decoded, dict) else None

    @property
    def first_user_text(self) -> str:
        for message in (self.json or {}).get("messages") or []:
            if message.get("role") == "user":
                return str(message.get("content"))
        return ""

    @property
    def messages_bytes(self) -> bytes | None:
        """The `messages` array as it came, brackets included. None where there is none."""
        try:
            return bytes(_decode_messages(self.body).messages).strip()
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


class PrefixBreak(msgspec.Struct, frozen=True, kw_only=True):
    """Two requests of one conversation, where the later does not begin with the messages of the earlier."""

    conversation: str
    earlier: int
    later: int
    at: int
    """The first byte of the messages array that differs."""
    expected: bytes
    found: bytes

    def __str__(self) -> str:
        return (
            f"request {self.later} leaves the messages of request {self.earlier} at byte {self.at}: "
            f"expected {self.expected!r}, found {self.found!r} (conversation {self.conversation[:60]!r})"
        )


def prefix_breaks(
    requests: Iterable[RecordedRequest],
    conversation: Callable[[RecordedRequest], str] = lambda request: request.first_user_text,
) -> list[PrefixBreak]:
    """Where request k+1 of a conversation does not begin with request k's messages, byte for byte.

    `conversation` tells conversations apart; by default their first user message does. Requests without
    messages are left out, refused and faulty ones are not: a retry must be exact, too.
    """
    breaks: list[PrefixBreak] = []
    for name, chain in _chains(requests, conversation).items():
        for earlier, later in pairwise(chain):
            before, after = earlier.messages_bytes or b"", later.messages_bytes or b""
            before = before[:-1].rstrip()  # without the bracket that closes it
            if after.startswith(before):
                continue
            at = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
            start = max(0, at - 20)
            breaks.append(
                PrefixBreak(
                    conversation=name,
                    earlier=earlier.number,
                    later=later.number,
                    at=at,
                    expected=before[start : at + 40],
                    found=after[start : at + 40],
                )
            )
    return breaks


def assert_prefix_chain(
    requests: Iterable[RecordedRequest],
    conversation: Callable[[RecordedRequest], str] = lambda request: request.first_user_text,
) -> None:
    """Fail with the first break; fail also when no conversation has two requests, for then nothing was
    compared."""
    requests = list(requests)
    if all(len(chain) < 2 for chain in _chains(requests, conversation).values()):
        raise AssertionError("no conversation has two requests: there is no prefix to compare")
    for found in prefix_breaks(requests, conversation):
        raise AssertionError(str(found))


def gaps_ms(requests: Sequence[RecordedRequest]) -> list[float]:
    """Milliseconds from the end of each answer to the arrival of the next request: the client's own time per
    step.

    Only meaningful for the requests of one conversation.
    """
    return [
        (later.arrived_ns - earlier.completed_ns) / 1e6
        for earlier, later in pairwise(requests)
        if earlier.completed_ns is not None
    ]


class _Messages(msgspec.Struct):
    messages: msgspec.Raw


_decode_messages = msgspec.json.Decoder(_Messages).decode


def _chains(
    requests: Iterable[RecordedRequest], conversation: Callable[[RecordedRequest], str]
) -> dict[str, list[RecordedRequest]]:
    chains: defaultdict[str, list[RecordedRequest]] = defaultdict(list)
    for request in requests:
        if request.messages_bytes is not None:
            chains[conversation(request)].append(request)
    return chains
