"""What a file is that is no text, told from its first bytes.

Rule: a name for people and models, never a decision about bytes. What is not known stays unnamed.
"""

from enginehouse_protocol.image_headers import image_header

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


_IMAGES = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WebP"}


def image_kind(data: bytes) -> str | None:
    """`PNG image, 640×480`, also for JPEG, GIF and WebP; None for everything else."""
    header = image_header(data)
    if header is None:
        return None
    return f"{_IMAGES[header.media_type]} image" + (f", {header.width}×{header.height}" if header.width else "")


def binary_kind(data: bytes) -> str | None:
    """`a PDF document`; None when the first bytes say nothing."""
    return next((name for magic, name in _MAGIC if data.startswith(magic)), None)
