"""JSON-RPC 2.0 between two processes, or two halves of one. Both sides may ask.

Rule: nothing the other side sends, and nothing it fails to read, can take more than a bounded amount of memory or end
anything but this one connection.
"""

from enginehouse_protocol.rpc.envelope import WireError
from enginehouse_protocol.rpc.errors_on_the_wire import Refused, from_wire, to_wire
from enginehouse_protocol.rpc.framing import LINE_LIMIT_BYTES
from enginehouse_protocol.rpc.memory import memory_pair
from enginehouse_protocol.rpc.peer import Handler, Notified, Params, Peer, Reply, Result
from enginehouse_protocol.rpc.stdio import DescriptorStream, stdio_stream

__all__ = [
    "LINE_LIMIT_BYTES",
    "DescriptorStream",
    "Handler",
    "Notified",
    "Params",
    "Peer",
    "Refused",
    "Reply",
    "Result",
    "WireError",
    "from_wire",
    "memory_pair",
    "stdio_stream",
    "to_wire",
]
