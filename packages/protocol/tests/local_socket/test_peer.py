"""Who is on the other end, as the kernel tells."""

import os
import socket
import struct
import sys

import pytest

from enginehouse_protocol.local_socket.peer import Peer, is_us, peer_of, uid_from_xucred


def test_the_other_end_of_a_pair_is_this_process() -> None:
    if sys.platform not in ("linux", "darwin"):
        pytest.skip(f"{sys.platform} is not a platform this runs on")
    one, other = socket.socketpair()
    with one, other:
        assert peer_of(one) == Peer(os.getpid(), os.geteuid())


def test_what_has_no_peer_is_foreign() -> None:
    with socket.socket(socket.AF_INET) as unconnected:
        peer = peer_of(unconnected)
        assert not is_us(peer)
    assert not is_us(None)
    assert not is_us(Peer(1, os.geteuid() + 1))


def test_the_answer_of_macos_is_read_as_its_header_says() -> None:
    answer = struct.pack("=IIhxx16I", 0, 501, 3, *range(16))
    assert len(answer) == 76
    assert uid_from_xucred(answer) == 501
    assert uid_from_xucred(struct.pack("=IIhxx16I", 1, 501, 3, *range(16))) is None
    assert uid_from_xucred(answer[:8]) is None


def test_macos_itself_tells_the_user_of_a_peer() -> None:
    if sys.platform != "darwin":
        pytest.skip("LOCAL_PEERCRED exists on macOS only; here its layout is tested, not the system call")
    one, other = socket.socketpair()
    with one, other:
        assert is_us(peer_of(other))
