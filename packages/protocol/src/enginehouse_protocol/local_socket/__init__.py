"""A service with a name that lives in a private folder, one per folder, and those who talk to it.

Rule: the lock held for life is the only authority on who is the service. A socket file proves nothing, and only
who holds the lock may remove one.

| room | owns |
|---|---|
| `place` | the private folder, its checks, a socket address short enough for the kernel |
| `lock` | the lifetime lock, and who holds it |
| `token` | the secret of one boot |
| `peer` | which user is on the other end |
| `edition` | what one side speaks, which of two is newer |
| `handshake` | the first line each way |
| `server` | accepting, idle exit, clean stop |
| `dialling` | one attempt to reach the service |
| `starting` | starting it when there is none |
| `client` | connect, start, replace |
| `control` | status and stop |

It knows neither the hub nor any other service, and nothing of what is said after the handshake.
"""

from enginehouse_protocol.local_socket.client import Connection, connect
from enginehouse_protocol.local_socket.control import Status, StopOutcome, ask_to_stop, status
from enginehouse_protocol.local_socket.edition import Edition, Span
from enginehouse_protocol.local_socket.lock import Holder, Lifetime, holder_of
from enginehouse_protocol.local_socket.place import Place
from enginehouse_protocol.local_socket.server import Ending, Guest, OnConnection, Server, serve
from enginehouse_protocol.local_socket.starting import ALREADY_RUNNING_EXIT, Launch

__all__ = [
    "ALREADY_RUNNING_EXIT",
    "Connection",
    "Edition",
    "Ending",
    "Guest",
    "Holder",
    "Launch",
    "Lifetime",
    "OnConnection",
    "Place",
    "Server",
    "Span",
    "Status",
    "StopOutcome",
    "ask_to_stop",
    "connect",
    "holder_of",
    "serve",
    "status",
]
