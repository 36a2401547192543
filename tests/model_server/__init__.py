"""A scripted model server for tests and benchmarks: Chat Completions over real HTTP, on loopback.

    async with ModelServer(steps(3, lambda k: f"echo {k} >> steps.txt")) as server:
        ...                                             # a client with base_url=server.base_url
        assert_prefix_chain(server.chats)

Rule: it is as strict as a real provider and as rude as a bad network, and knows nothing of the client it
serves.

Rooms: `script` (answers as data), `programs` (choosing one by the request), `wire` (their bytes),
`performance` (what is done on the socket), `validation`, `recording` (what came, prefix chains, times),
`server`, `process` (in a thread or a process of its own), `messages_api` and `messages_wire` (the same script over
Anthropic's Messages API).
"""

from model_server.messages_api import MessagesRequest, MessagesServer
from model_server.process import Distant, server_in_process, server_in_thread
from model_server.programs import Program, Script, by_first_user, by_history, in_order, steps, with_faults
from model_server.recording import PrefixBreak, RecordedRequest, assert_prefix_chain, gaps_ms, prefix_breaks
from model_server.request import ChatRequest, ToolAnswer, text_of
from model_server.script import (
    Answer,
    Call,
    Fault,
    Reply,
    Usage,
    Verbatim,
    breaking,
    call,
    cut,
    end,
    error_event,
    fault,
    hang_up,
    hold,
    keep_alive,
    pause,
    raw,
    reply,
    stall,
    verbatim,
)
from model_server.server import ModelServer

__all__ = [
    "Answer",
    "Call",
    "ChatRequest",
    "Distant",
    "Fault",
    "MessagesRequest",
    "MessagesServer",
    "ModelServer",
    "PrefixBreak",
    "Program",
    "RecordedRequest",
    "Reply",
    "Script",
    "ToolAnswer",
    "Usage",
    "Verbatim",
    "assert_prefix_chain",
    "breaking",
    "by_first_user",
    "by_history",
    "call",
    "cut",
    "end",
    "error_event",
    "fault",
    "gaps_ms",
    "hang_up",
    "hold",
    "in_order",
    "keep_alive",
    "pause",
    "prefix_breaks",
    "raw",
    "reply",
    "server_in_process",
    "server_in_thread",
    "stall",
    "steps",
    "text_of",
    "verbatim",
    "with_faults",
]
