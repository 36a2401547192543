"""A picture's kind and size from its first bytes, cut short anywhere."""

import struct

import pytest

from enginehouse_protocol.image_headers import ImageHeader, image_header

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 1200, 800) + b"\x08\x06\0\0\0"
GIF = b"GIF89a" + struct.pack("<HH", 12, 34)
JPEG = (
    b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(10) + b"\xff\xc4\0\x04ab" + b"\xff\xc0\0\x11\x08" + struct.pack(">HH", 7, 9)
)
WEBP = b"RIFF\0\0\0\0WEBP"
LOSSY = WEBP + b"VP8 \0\0\0\0" + b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 640 | 1 << 14, 480)
LOSSLESS = WEBP + b"VP8L\0\0\0\0\x2f" + struct.pack("<I", 639 | 479 << 14) + bytes(8)
EXTENDED = WEBP + b"VP8X\0\0\0\0" + bytes(4) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")


@pytest.mark.parametrize(
    "data, header",
    [
        (PNG, ImageHeader("image/png", 1200, 800)),
        (GIF, ImageHeader("image/gif", 12, 34)),
        (JPEG, ImageHeader("image/jpeg", 9, 7)),
        (LOSSY, ImageHeader("image/webp", 640, 480)),
        (LOSSLESS, ImageHeader("image/webp", 640, 480)),
        (EXTENDED, ImageHeader("image/webp", 640, 480)),
    ],
    ids=["png", "gif", "jpeg", "webp lossy", "webp lossless", "webp extended"],
)
def test_the_header_tells_kind_and_size_and_cut_short_no_size(data: bytes, header: ImageHeader) -> None:
    assert image_header(data) == header
    for length in range(len(data)):
        assert image_header(data[:length]) in (None, ImageHeader(header.media_type), header)


@pytest.mark.parametrize(
    "data", [b"", b"GIF88a" + bytes(20), b"RIFF\0\0\0\0WAVEfmt " + bytes(20), b"<svg></svg>", b"BM"]
)
def test_what_models_do_not_take_is_no_picture(data: bytes) -> None:
    assert image_header(data) is None


def test_a_segment_that_would_never_end_is_left_alone() -> None:
    assert image_header(b"\xff\xd8\xff\xe0\0\0" + bytes(20)) == ImageHeader("image/jpeg")
