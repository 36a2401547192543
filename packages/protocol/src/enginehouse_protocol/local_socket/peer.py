"""Which process and user is on the other end of a local socket, as the kernel tells.

Rule: unknown is foreign. Where the kernel cannot be asked, nobody is let in.
"""

import os
import socket
import struct
import sys
from typing import NamedTuple

_LINUX = struct.Struct("3i")  # struct ucred: pid, uid, gid
_MACOS = struct.Struct("=IIh")  # struct xucred begins with: version, uid, number of groups
_MACOS_SIZE = 76
_SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2  # <sys/un.h>; Python does not name them everywhere


class Peer(NamedTuple):
    """`pid` is None where the kernel does not tell."""

    pid: int | None
    uid: int


def peer_of(connected: socket.socket) -> Peer | None:
    """Who is there, as of when the connection was made. None: unknown, so foreign."""
    try:
        if sys.platform == "linux":
            pid, uid, _ = _LINUX.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _LINUX.size))
            return Peer(pid or None, uid)
        if sys.platform == "darwin":
            uid = uid_from_xucred(connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _MACOS_SIZE))
            pid = connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)
            return None if uid is None else Peer(pid or None, uid)
    except (OSError, struct.error):
        return None
    return None


def uid_from_xucred(answer: bytes) -> int | None:
    """What macOS says about a peer. A layout of another version is not guessed at."""
    if len(answer) < _MACOS.size:
        return None
    version, uid, groups = _MACOS.unpack_from(answer)
    return uid if version == 0 and groups > 0 else None


def is_us(peer: Peer | None) -> bool:
    return peer is not None and peer.uid == os.geteuid()
