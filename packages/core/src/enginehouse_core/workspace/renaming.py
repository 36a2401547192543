"""Giving a file a name that is free, and staying sure that it was.

Rule: nothing is replaced. A name that is taken at the last moment, by whomever, stays theirs: a link is made, which the
system refuses where something is, and the old name removed. Only where a file system has no links is the moment between
looking and renaming unguarded.
"""

import errno
import os
from contextlib import suppress

from enginehouse_core.workspace.descriptors import identity
from enginehouse_core.workspace.fence import Place
from enginehouse_protocol.errors import FileUnusable, PathRefused

_NO_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})
"""What systems answer that have no hard links, or do not let us make one of somebody else's file."""


def rename_to_free_name(folder: int, into: int, place: Place, target: Place, found: os.stat_result) -> None:
    """Rename `found`, the file at `place` in `folder`, to the last name of `target` in the folder `into`. Blocking.

    Raises:
        FileUnusable: the name is taken, or lies on another disk.
        PathRefused: the file was swapped for another since `found`.
    """
    old, new = place.parts[-1], target.parts[-1]
    try:
        os.link(old, new, src_dir_fd=folder, dst_dir_fd=into, follow_symlinks=False)
    except FileExistsError as error:
        raise FileUnusable(target.asked, "it exists already; nothing was moved over it") from error
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise FileUnusable(
                target.asked, "it lies on another disk than the file; copy the file there with a command"
            ) from error
        if error.errno not in _NO_LINKS:
            raise
        os.rename(old, new, src_dir_fd=folder, dst_dir_fd=into)
        return
    try:
        now = os.stat(new, dir_fd=into, follow_symlinks=False)
        # Inode numbers are given out again at once, so the number alone does not say that it is the same file.
        if (*identity(now), now.st_mode, now.st_mtime_ns) != (*identity(found), found.st_mode, found.st_mtime_ns):
            raise PathRefused(place.asked, "it changed while it was being moved")
        os.unlink(old, dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(new, dir_fd=into)
        raise
