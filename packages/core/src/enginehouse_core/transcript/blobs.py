"""Content too large for a record, stored beside the transcript under the digest of its bytes.

Rule: a blob is on disk before the record that names it. Blocking: call it from a worker thread.
"""

import hashlib
import os
import re
import secrets
from pathlib import Path

from enginehouse_protocol.errors import FileUnusable, TranscriptUnavailable

BLOBS = "blobs"
"""The folder beside the transcript."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def store_blob(folder: Path, data: bytes) -> str:
    """Write `data` durably and return its digest. Storing the same bytes again costs nothing.

    Raises:
        TranscriptUnavailable: the disk refuses.
    """
    digest = digest_of(data)
    if not (folder / digest).exists():
        write_whole(folder, digest, data)
    return digest


def write_whole(folder: Path, name: str, data: bytes) -> None:
    """Make or replace the file `name` (0600) in one step, on disk when this returns. A link of that name is replaced.

    Raises:
        TranscriptUnavailable: the disk refuses; what was there before still is.
    """
    temporary = folder / f".{name}.{secrets.token_hex(8)}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(folder / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(folder)
    except OSError as error:
        raise TranscriptUnavailable(f"cannot store {len(data)} bytes in {folder}: {error.strerror}") from error


def load_blob(folder: Path, digest: str) -> bytes:
    """The blob's bytes, checked against its name.

    Raises:
        FileUnusable: no such blob, or its bytes are not what was stored.
    """
    if not _DIGEST.fullmatch(digest):
        raise FileUnusable(digest, "not the name of a blob")
    try:
        data = (folder / digest).read_bytes()
    except OSError as error:
        raise FileUnusable(digest, f"this blob cannot be read: {error.strerror}") from error
    if digest_of(data) != digest:
        raise FileUnusable(digest, "this blob is damaged")
    return data


def sync_folder(folder: Path) -> None:
    """Make a creation or rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
