"""What a descriptor may lead to: the steps everything that touches a session's files is made of.

Rule: a name is only ever used below the descriptor of its folder, and never through a link. Nothing here knows of roots
or paths; the fence and the search (in a process of its own) build on it. Everything blocks.
"""

import errno
import os
import stat

from enginehouse_protocol.errors import FileUnusable, PathRefused

# O_NONBLOCK: should a pipe or device be swapped in after we looked, opening it returns at once.
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Identity = tuple[int, int]
"""Device and inode."""


def require_plain_file(found: os.stat_result, asked: str) -> None:
    """Refuse everything but a regular file that has this one name."""
    if stat.S_ISDIR(found.st_mode):
        raise FileUnusable(asked, "it is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise PathRefused(asked, f"it is {kind_of(found.st_mode)}, not a file")
    if found.st_nlink > 1:
        raise PathRefused(
            asked,
            f"it is a hard link ({found.st_nlink} names), so it may be a file outside; replace it with a copy",
        )


def is_stored(folder: int, name: str) -> bool:
    """Whether the folder holds exactly this name. Looks again before it says no: a busy folder may hide an entry."""
    return any(name in names_in(folder) for _ in range(3))


def names_in(folder: int) -> set[str]:
    # A descriptor of its own: `scandir` would move the read position all users of `folder` share.
    own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return set(os.listdir(own))
    finally:
        os.close(own)


def sync_folder(folder: int) -> None:
    """Make names durable. Some network file systems cannot, and say so: their best is enough."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise


def identity(found: os.stat_result) -> Identity:
    return (found.st_dev, found.st_ino)


def kind_of(mode: int) -> str:
    for is_kind, text in (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if is_kind(mode):
            return text
    return "a device"


def unusable(asked: str, error: OSError) -> FileUnusable:
    """The operating system's refusal in words for a person and a model."""
    return FileUnusable(asked, _REASONS.get(error.errno or 0) or f"{error.strerror or error}".lower())


_REASONS = {
    errno.ENOENT: "it does not exist",
    errno.EACCES: "permission denied by the operating system",
    errno.EPERM: "permission denied by the operating system",
    errno.ENOSPC: "no space is left on its disk; nothing was changed",
    errno.EDQUOT: "the disk quota is used up; nothing was changed",
    errno.EROFS: "its file system is read-only",
    errno.EFBIG: "the file would be larger than the limit set for this process",
    errno.EIO: "its disk reported an input/output error",
    errno.EMFILE: "too many files are open; try again",
    errno.ENFILE: "too many files are open; try again",
}
