"""Which directory a command is about.

Rule: it is named by its real path, everywhere the same, and it exists before anything is done with it.
"""

import os

from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.errors import UsageError


def directory_of(named: str | None) -> str:
    """The real path of `-C DIR`, or of the current directory.

    Raises:
        UsageError: there is none, or its name is not valid Unicode and could not be recorded.
    """
    try:
        path = os.path.realpath(named if named is not None else os.getcwd())
    except (OSError, ValueError) as error:
        raise UsageError(f"the directory {named or '.'!r} cannot be used: {error}") from error
    if well_formed(path) != path:
        raise UsageError(f"the path {os.fsencode(path)!r} is not valid UTF-8; rename it, or link to it by another name")
    if not os.path.isdir(path):
        raise UsageError(f"{path} is not a directory")
    if not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"{path} cannot be read")
    return path
