"""What a file is that is no text, told from its first bytes.

Rule: a name for people and models, never a decision about bytes. What is not known stays unnamed.
"""

_MAGIC = (
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive (or an office document, which is one)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x7fELF", "a program (ELF)"),
    (b"SQLite format 3\0", "an SQLite database"),
)


def image_kind(data: bytes) -> str | None:
    """`PNG image, 640×480`, also for JPEG, GIF and WebP; None for everything else."""
    kind, size = None, None
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        kind = "PNG"
        if data[12:16] == b"IHDR" and len(data) >= 24:
            size = (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))
    elif data.startswith((b"GIF87a", b"GIF89a")):
        kind = "GIF"
        if len(data) >= 10:
            size = (int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little"))
    elif data.startswith(b"\xff\xd8\xff"):
        kind, size = "JPEG", _jpeg_size(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        kind = "WebP"
    if kind is None:
        return None
    return f"{kind} image" + (f", {size[0]}×{size[1]}" if size else "")


def binary_kind(data: bytes) -> str | None:
    """`a PDF document`; None when the first bytes say nothing."""
    return next((name for magic, name in _MAGIC if data.startswith(magic)), None)


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """From the first frame header; the segments before it say how long they are."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2:
            return None
        at += 2 + length
    return None
