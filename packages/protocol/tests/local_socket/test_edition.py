"""Which protocol two sides speak, and which of two is newer."""

import pytest

from enginehouse_protocol.local_socket import Edition, Span
from enginehouse_protocol.local_socket.edition import is_newer, newest_common


@pytest.mark.parametrize(
    "one,other,common",
    [((1, 3), (1, 3), 3), ((1, 3), (2, 5), 3), ((3, 3), (1, 9), 3), ((1, 2), (3, 4), None), ((5, 6), (3, 4), None)],
)
def test_the_newest_protocol_both_know_is_spoken(
    one: tuple[int, int], other: tuple[int, int], common: int | None
) -> None:
    a, b = Span(min=one[0], max=one[1]), Span(min=other[0], max=other[1])
    assert (newest_common(a, b), newest_common(b, a)) == (common, common)


@pytest.mark.parametrize(
    "older,newer",
    [
        ("0.9", "0.10"),
        ("1.0", "1.0.1"),
        ("1.0rc1", "1.0"),
        ("1.0.dev3", "1.0.dev4"),
        ("1.0a1", "1.0"),
        ("1.0", "1.0.post1"),
        ("not a version", "0.1"),
    ],
)
def test_versions_are_compared_as_people_mean_them(older: str, newer: str) -> None:
    span = Span(min=1, max=1)
    a, b = Edition(version=older, protocol=span), Edition(version=newer, protocol=span)
    assert (is_newer(a, b), is_newer(b, a)) == (False, True)


def test_two_builds_of_one_release_are_not_newer_than_each_other() -> None:
    span = Span(min=1, max=1)
    a, b = Edition(version="1.0+abc", protocol=span), Edition(version="1.0.0+def9", protocol=span)
    assert (is_newer(a, b), is_newer(b, a)) == (False, False)


def test_who_speaks_a_newer_protocol_is_newer_whatever_its_version() -> None:
    a, b = Edition(version="9", protocol=Span(min=1, max=1)), Edition(version="1", protocol=Span(min=1, max=2))
    assert (is_newer(a, b), is_newer(b, a)) == (False, True)
