"""The search itself, run as a process of its own: `python -m enginehouse_core.workspace.searcher DESCRIPTOR`.

One JSON request on stdin, one JSON outcome on stdout (`search.Request`, `search.Outcome`). It starts at an inherited
descriptor and, like the fence, opens every name below its folder without following links.

Rule: it always ends. A timer interrupts even a regular expression that backtracks without end (Python's `re` answers
signals, but only on a main thread: one reason for a process), and what was found until then is still reported.
"""

import codecs
import json
import os
import re
import resource
import signal
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn

from pathspec import GitIgnoreSpec

from enginehouse_core.workspace.descriptors import FILE_FLAGS, FOLDER_FLAGS, identity, is_stored

FILE_BYTES = 8 * 1024 * 1024
"""Larger files are skipped: nobody writes them by hand."""
NAMED_FILE_BYTES = 64 * 1024 * 1024
"""Whoever names a file, such as the kept output of a command, wants to look into it."""
LINE_CHARACTERS = 20_000
"""Of a longer line only the beginning is searched: minified code would cost seconds a line."""
SHOWN_CHARACTERS = 500
GLOB_CHOICES = 1000
MEMORY_BYTES = 4 * 1024 * 1024 * 1024
FOLDERS_DEEP = 256
IGNORE_FILES = (".gitignore", ".ignore")

Rules = tuple[tuple[str, str, GitIgnoreSpec], ...]
"""Ignore files, outermost first: the folder each lies in, and for one above the root the way down to it. Both are `""`
or end with a slash."""


class DeadlinePassed(BaseException):
    """Raised by the timer, anywhere. Not an `Exception`: nothing on the way may take it for a file's failure."""


class Enough(Exception):
    """One more line matched than was asked for."""


class Search:
    """One walk. `hits` grows while it runs; `at` is the file it is in."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.hits: list[dict[str, Any]] = []
        self.at = ""
        self._parts: list[str] = request["parts"]
        self._limit: int = request["limit"]
        self._outer: Rules = tuple(("", inner, spec_of(lines)) for inner, lines in request["outer"])
        self._off_limits = {(device, inode) for device, inode in request["off_limits"]}
        self._pattern = None if request["pattern"] is None else re.compile(request["pattern"])
        self._wanted = wanted_by(request["glob"])

    def run(self, root: int) -> None:
        rules = self._outer
        here, above = root, ""
        for name in self._parts[:-1]:
            rules = self._with_ignore_files(here, above, rules)
            here = os.open(name, FOLDER_FLAGS, dir_fd=here)
            above += name + "/"
        if not self._parts:
            self._walk(root, "", "", rules)
            return
        name = self._parts[-1]
        rules = self._with_ignore_files(here, above, rules)
        if not is_stored(here, name):
            raise FileNotFoundError(name)
        if not stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
            if is_plain_file(here, name) and (self._pattern is not None or self._wanted(name)):
                self._file(here, name, above + name, NAMED_FILE_BYTES)
            return
        below = above + name + "/"
        # Whoever names an ignored folder wants to look into it.
        explicit = any(ignored(rules, below[: at + 1]) for at, sign in enumerate(below) if sign == "/")
        self._walk(os.open(name, FOLDER_FLAGS, dir_fd=here), below, below, () if explicit else rules)

    def _walk(self, folder: int, path: str, start: str, rules: Rules) -> None:
        """Search a folder and close its descriptor. `path` and `start` (where the walk began) end with a slash."""
        try:
            if identity(os.fstat(folder)) in self._off_limits:
                return
            rules = self._with_ignore_files(folder, path, rules)
            with os.scandir(folder) as entries:
                found = sorted(
                    (entry.name, entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False))
                    for entry in entries
                )
            for name, is_folder, is_plain in found:
                own = f"{path}{name}/" if is_folder else path + name
                if name == ".git" or ignored(rules, own):
                    continue
                if not is_folder:
                    # Anything else is not opened: that may wait, or do something.
                    if is_plain and self._wanted(own[len(start) :]):
                        self._file(folder, name, own)
                elif own.count("/") <= FOLDERS_DEEP:
                    with suppress(OSError):  # gone, unreadable, or a link by now
                        self._walk(os.open(name, FOLDER_FLAGS, dir_fd=folder), own, start, rules)
        finally:
            os.close(folder)

    def _with_ignore_files(self, folder: int, path: str, rules: Rules) -> Rules:
        for name in IGNORE_FILES:
            if is_plain_file(folder, name) and (text := text_of(folder, name)):
                rules = (*rules, (path, "", spec_of(text.splitlines())))
        return rules

    def _file(self, folder: int, name: str, path: str, most_bytes: int = FILE_BYTES) -> None:
        self.at = path
        if self._pattern is None:
            self._hit({"path": readable(path)})
            return
        text = text_of(folder, name, most_bytes)
        if not text:
            return
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()  # the file ended with a newline; that is no line
        for number, line in enumerate(lines, 1):
            line = line.removesuffix("\r")
            if match := self._pattern.search(line[:LINE_CHARACTERS]):
                self._hit({"path": readable(path), "line_number": number, "line": shown(line, match.start())})

    def _hit(self, hit: dict[str, Any]) -> None:
        if len(self.hits) == self._limit:
            raise Enough
        self.hits.append(hit)


def ignored(rules: Rules, path: str) -> bool:
    """The innermost ignore file with an opinion decides. `path` of a folder ends with a slash."""
    for base, inner, spec in reversed(rules):
        verdict = spec.check_file(inner + path[len(base) :]).include
        if verdict is not None:
            return verdict
    return False


def wanted_by(glob: str | None) -> Callable[[str], bool]:
    """`*.py` at any depth, `src/**/*.ts` from the searched folder, `*.{c,h}` both, `!*.lock` all others."""
    if glob is None:
        return bool  # every path is
    excluding = glob.startswith("!")
    choices = list(islice(braces_expanded(glob.removeprefix("!")), GLOB_CHOICES + 1))
    if len(choices) > GLOB_CHOICES:
        raise ValueError(f"its braces stand for more than {GLOB_CHOICES} patterns")
    try:
        spec = GitIgnoreSpec.from_lines(choices)
    except re.error as error:
        raise ValueError(f"{error}") from error
    return lambda path: spec.match_file(path) != excluding


def braces_expanded(glob: str) -> Iterator[str]:
    found = re.search(r"\{([^{}]*)\}", glob)
    if found is None:
        yield glob
        return
    for choice in found[1].split(","):
        yield from braces_expanded(glob[: found.start()] + choice + glob[found.end() :])


def spec_of(lines: Iterable[str]) -> GitIgnoreSpec:
    """A rule that is no pattern must not end the search: git skips it, too."""
    return GitIgnoreSpec.from_lines([line for line in lines if compiles(line)])


def compiles(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


def is_plain_file(folder: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def text_of(folder: int, name: str, most_bytes: int = FILE_BYTES) -> str | None:
    """A file's text; None for what the fence would not open, for large and for binary files."""
    try:
        descriptor = os.open(name, FILE_FLAGS, dir_fd=folder)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_size > most_bytes:
            return None
        data = content_of(descriptor, found.st_size, most_bytes)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:8192]:
        return None
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")


def content_of(descriptor: int, size: int, most_bytes: int) -> bytes:
    """What is there, also when it grew: two calls for nearly every file, in a buffer no larger than it needs."""
    parts: list[bytes] = []
    while most_bytes > 0 and (part := os.read(descriptor, min(size + 1, most_bytes))):
        parts.append(part)
        most_bytes -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def shown(line: str, start: int) -> str:
    """A line cut around its match."""
    if len(line) <= SHOWN_CHARACTERS:
        return line
    first = max(0, start - SHOWN_CHARACTERS // 4)
    piece = line[first : first + SHOWN_CHARACTERS]
    return f"{'…' if first else ''}{piece}{'…' if first + len(piece) < len(line) else ''}"


def readable(path: str) -> str:
    """Names that are not UTF-8 cannot be asked for; they can be shown."""
    return os.fsencode(path).decode("utf-8", "replace")


def main() -> None:
    request = json.load(sys.stdin.buffer)
    seconds: float = request["deadline_s"]
    # Should the hub die and a disk hang, the kernel still ends what computes.
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 2, int(seconds) + 3))
    with suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    def on_alarm(*_: object) -> NoReturn:
        raise DeadlinePassed

    signal.signal(signal.SIGALRM, on_alarm)
    search, ended, detail = None, "complete", ""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        search = Search(request)
        search.run(int(sys.argv[1]))
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Enough:
        ended = "limit"
    except DeadlinePassed:
        ended, detail = "deadline", search.at if search else ""
    except (re.error, OverflowError, RecursionError) as error:
        ended, detail = "bad_pattern", str(error)
    except ValueError as error:  # pathspec's own errors are
        ended, detail = "bad_glob", str(error)
    except MemoryError:
        ended, detail = "failed", "it needed too much memory"
    except OSError as error:
        ended, detail = "failed", f"{error.strerror or error}".lower()
    signal.setitimer(signal.ITIMER_REAL, 0)
    hits = search.hits if search else []
    json.dump({"hits": hits, "ended": ended, "detail": readable(detail)}, sys.stdout)


if __name__ == "__main__":
    main()
