"""The secret of one boot: whoever can read the private folder may talk to the service that runs now.

Rule: the token is on disk before the socket exists, and it is nowhere else: no argument, no environment, no log.
"""

import hmac
import os
import re
import secrets
import stat

from enginehouse_protocol.errors import AccessRefused
from enginehouse_protocol.local_socket.place import Place

_SHAPE = re.compile(rb"[0-9a-f]{64}\n?")


def write_token(place: Place, folder: int) -> str:
    """Make a new token and put it in place as a whole. Only for who holds the lifetime lock."""
    token = secrets.token_hex(32)
    fresh = f"{place.token_name}.new"
    remove(fresh, folder)  # left by a process that was killed right here
    descriptor = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        os.write(descriptor, token.encode() + b"\n")  # 65 bytes are written as one, or not at all
    finally:
        os.close(descriptor)
    os.replace(fresh, place.token_name, src_dir_fd=folder, dst_dir_fd=folder)
    return token


def read_token(place: Place, folder: int) -> str:
    """The token of the service that runs now. Read it after connecting: then it cannot be an earlier one's.

    Raises:
        FileNotFoundError: no service has one.
        AccessRefused: the file is not a private file of ours.
    """
    where = str(place.token)
    remedy = "stop the service, remove the file, start the service again"
    try:
        descriptor = os.open(
            place.token_name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise AccessRefused(where, error.strerror or str(error), remedy) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise AccessRefused(where, "is not a file that only you can read", remedy)
        text = os.read(descriptor, 128)
    finally:
        os.close(descriptor)
    if not _SHAPE.fullmatch(text):
        raise AccessRefused(where, "does not hold a token", remedy)
    return text.decode().strip()


def same_token(one: str, other: str) -> bool:
    """Compare without telling by the time it takes how much was right."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def remove(name: str, folder: int) -> None:
    """Remove a file of the service, if it is there. Only for who holds the lifetime lock."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
