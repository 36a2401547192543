"""Long content says what is missing; a picture says what it is."""

import msgspec
import pytest

from enginehouse_protocol.content import Content, Image, SpilledText, Text, content_text, image_text, plain

SPILL = SpilledText(head="äb", tail="yz", size_bytes=1005, sha256="0" * 64)


def test_a_spilled_text_shows_its_ends_and_says_how_much_is_not_shown() -> None:
    assert plain(SPILL) == "äb\n[… 1000 bytes not shown …]\nyz"
    assert plain("as it is") == "as it is"


def test_parts_become_one_text_in_their_order() -> None:
    assert content_text((Text(text="one"), SPILL, Text(text="two"))) == f"one\n{plain(SPILL)}\ntwo"
    assert content_text(()) == ""


def test_the_agent_reads_a_spill_under_the_name_of_its_digest() -> None:
    assert SPILL.blob_name == "0" * 64 + ".txt"


def test_a_picture_in_words_is_one_line_with_name_pixels_and_weight() -> None:
    image = Image(
        media_type="image/png", sha256="0" * 64, size_bytes=48_213, width=1200, height=800, name="plan of the house.png"
    )
    assert content_text((Text(text="look:"), image)) == "look:\n[image: plan of the house.png, 1200×800, 48 kB]"
    assert image_text(Image(media_type="image/webp", data=bytes(999))) == "[image: WEBP, 999 bytes]"
    big = Image(media_type="image/gif", sha256="0" * 64, size_bytes=3_140_000, name="a\nb.gif")
    assert image_text(big) == '[image: "a\\nb.gif", 3.1 MB]'


def test_a_picture_is_either_bytes_or_the_name_of_some() -> None:
    for sha256, data in (("", None), ("0" * 64, b"x")):
        with pytest.raises(ValueError, match="either"):
            Image(media_type="image/png", sha256=sha256, data=data)
    with pytest.raises(msgspec.ValidationError, match="either"):
        msgspec.json.decode(b'{"type":"image","media_type":"image/png"}', type=Content)
    sent = Image(media_type="image/png", data=b"\x89PNG", name="a.png")
    line = msgspec.json.encode(sent)
    assert line == b'{"type":"image","media_type":"image/png","name":"a.png","data":"iVBORw=="}'
    assert msgspec.json.decode(line, type=Content) == sent
