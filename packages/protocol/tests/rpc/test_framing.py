"""Bytes become lines wherever the chunks end, and a line that is too long costs no memory."""

import pytest

from enginehouse_protocol.rpc.framing import EDGE_BYTES, LineSplitter, Oversized

TEXT = '{"text":"größer 𝄞 ≥ 1"}\r\n\n{"next":2}\n'.encode()
LINES = ['{"text":"größer 𝄞 ≥ 1"}\r'.encode(), b"", b'{"next":2}']


@pytest.mark.parametrize("cut", range(len(TEXT) + 1))
def test_a_chunk_may_end_at_any_byte(cut: int) -> None:
    splitter = LineSplitter()
    assert splitter.feed(TEXT[:cut]) + splitter.feed(TEXT[cut:]) == LINES
    assert not splitter.inside_a_line


def test_a_message_may_come_byte_by_byte() -> None:
    splitter = LineSplitter()
    assert [line for byte in TEXT for line in splitter.feed(bytes([byte]))] == LINES


def test_a_line_as_long_as_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    splitter = LineSplitter(limit_bytes=8)
    assert splitter.feed(b"12345678\n123456789\n1\n") == [b"12345678", Oversized(b"123456789", b"123456789", 9), b"1"]


def test_of_a_line_that_is_too_long_only_the_edges_are_kept() -> None:
    splitter = LineSplitter(limit_bytes=100_000)
    head, tail = b"h" * EDGE_BYTES, b"t" * EDGE_BYTES
    lines = splitter.feed(head)
    for _ in range(100):
        lines += splitter.feed(b"-" * 50_000)
        assert len(splitter._held) <= 100_000  # pyright: ignore[reportPrivateUsage]
    assert splitter.inside_a_line
    lines += splitter.feed(tail + b"\nnext\n")
    assert lines == [Oversized(head, tail, 5_000_000 + 2 * EDGE_BYTES), b"next"]
