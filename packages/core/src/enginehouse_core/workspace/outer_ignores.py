"""What git ignores below a root because of files above it: the root may be one folder of a larger repository.

Rule: only the repository the root belongs to counts, and only what lies below the root. Where the root itself is
ignored, a person works there all the same, so nothing from above holds.
"""

import os
import re
import stat
from collections.abc import Iterator

from pathspec import GitIgnoreSpec

from enginehouse_core.workspace.descriptors import FILE_FLAGS

_BYTES = 1024 * 1024
_FOLDERS_UP = 40

OuterRules = tuple[tuple[str, tuple[str, ...]], ...]
"""From the outermost in: where the root is, seen from the folder of the rules (`""`, or ending with a slash), and the
rules."""


def outer_rules(root: str) -> OuterRules:
    """Blocking. `root` is the real, absolute path of a root."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for folder, inner in _upwards(root):
        if inner and (lines := _lines(os.path.join(folder, ".gitignore"))):
            found.append((inner, lines))
        git = os.path.join(folder, ".git")
        if os.path.exists(os.path.join(git, "HEAD")) or os.path.isfile(git):  # a worktree's `.git` is a file
            if lines := _lines(os.path.join(git, "info", "exclude")):
                found.append((inner, lines))
            rules = tuple(reversed(found))
            return () if _is_ignored(rules) else rules
    return ()  # in no repository


def _upwards(root: str) -> Iterator[tuple[str, str]]:
    """The root and the folders above it, each with the way back down."""
    folder, inner = root, ""
    for _ in range(_FOLDERS_UP):
        yield folder, inner
        above, name = os.path.split(folder)
        if above == folder:
            return
        folder, inner = above, f"{name}/{inner}"


def _lines(path: str) -> tuple[str, ...]:
    try:
        descriptor = os.open(path, FILE_FLAGS)
    except OSError:
        return ()
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _BYTES:
            return ()
        text = os.read(descriptor, _BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    finally:
        os.close(descriptor)
    return tuple(line for line in text.splitlines() if line.strip() and not line.startswith("#"))


def _is_ignored(rules: OuterRules) -> bool:
    """Whether the root or a folder it lies in is; what is inside an ignored folder, git does not look at."""
    for inner, lines in rules:
        try:
            spec = GitIgnoreSpec.from_lines(lines)
        except (ValueError, re.error):  # git skips a rule that is none; here the file's others go with it
            continue
        steps = [inner[: at + 1] for at, sign in enumerate(inner) if sign == "/"]
        if any(spec.check_file(step).include for step in steps):
            return True
    return False
