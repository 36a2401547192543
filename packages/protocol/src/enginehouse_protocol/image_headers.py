"""What kind of image some bytes are, and how large, told from their first bytes.

Rule: only headers are read; nothing is decoded, so an image that lies about itself costs nothing here. The kind is
what the bytes say, never what a name says.
"""

from typing import Literal, NamedTuple

ImageType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
"""What models take."""
_PNG = b"\x89PNG\r\n\x1a\n"
_NO_FRAME = (0xC4, 0xC8, 0xCC)
"""Among JPEG's frame markers those that begin tables and extensions."""


class ImageHeader(NamedTuple):
    media_type: ImageType
    width: int | None = None
    height: int | None = None


def image_header(data: bytes) -> ImageHeader | None:
    """None: no image of a kind we know. The size is None where the header is cut short or does not say."""
    if data.startswith(_PNG):
        known = data[12:16] == b"IHDR" and len(data) >= 24
        return ImageHeader("image/png", *(_pair(data, 16, 4, "big") if known else ()))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return ImageHeader("image/gif", *(_pair(data, 6, 2, "little") if len(data) >= 10 else ()))
    if data.startswith(b"\xff\xd8\xff"):
        return ImageHeader("image/jpeg", *_jpeg_size(data))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return ImageHeader("image/webp", *_webp_size(data))
    return None


def _pair(data: bytes, at: int, width: int, order: Literal["big", "little"]) -> tuple[int, int]:
    return (
        int.from_bytes(data[at : at + width], order),
        int.from_bytes(data[at + width : at + 2 * width], order),
    )


def _jpeg_size(data: bytes) -> tuple[int, int] | tuple[()]:
    """From the first frame header; the segments before it say how long they are."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = _pair(data, at + 5, 2, "big")
            return width, height
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2:
            return ()
        at += 2 + length
    return ()


def _webp_size(data: bytes) -> tuple[int, int] | tuple[()]:
    """Three kinds of first chunk, each with a place of its own for it."""
    if len(data) < 30:
        return ()
    match data[12:16]:
        case b"VP8X":
            width, height = _pair(data, 24, 3, "little")
            return width + 1, height + 1
        case b"VP8L" if data[20] == 0x2F:
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            width, height = _pair(data, 26, 2, "little")
            return width & 0x3FFF, height & 0x3FFF
        case _:
            return ()
