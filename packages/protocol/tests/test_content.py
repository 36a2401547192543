"""Long content says what is missing."""

from enginehouse_protocol.content import SpilledText, Text, content_text, plain

SPILL = SpilledText(head="äb", tail="yz", size_bytes=1005, sha256="0" * 64)


def test_a_spilled_text_shows_its_ends_and_says_how_much_is_not_shown() -> None:
    assert plain(SPILL) == "äb\n[… 1000 bytes not shown …]\nyz"
    assert plain("as it is") == "as it is"


def test_parts_become_one_text_in_their_order() -> None:
    assert content_text((Text(text="one"), SPILL, Text(text="two"))) == f"one\n{plain(SPILL)}\ntwo"
    assert content_text(()) == ""


def test_the_agent_reads_a_spill_under_the_name_of_its_digest() -> None:
    assert SPILL.blob_name == "0" * 64 + ".txt"
