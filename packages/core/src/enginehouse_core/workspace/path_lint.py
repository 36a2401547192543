"""What can be said about a path by reading it: no disk, the same answer on every operating system.

Rule: what could mean something else elsewhere is refused, not repaired. A project travels to Windows and macOS, and a
name that is harmless here may be `.git` there.

Two sets of rules. Always: text that is no path inside the workspace (`..`, `~`, drives, control characters, ill-formed
Unicode, over-long). For writing only: names that Windows or macOS would understand differently, and the folders nobody
writes (`.git`, `.enginehouse`, whole, at any depth, under any alias). Such names can be *read*: `.git/HEAD` is useful,
and a Linux project may well contain `aux.c`. A read through an alias is stopped later, by the fence, which compares
the asked name with the stored one.
"""

import re
import unicodedata

NAME_BYTES = 255
PATH_BYTES = 4096
DEPTH = 256

NEVER_WRITTEN = frozenset({".git", ".enginehouse"})

# NTFS invents these for names with a leading dot or more than eight characters; the second form holds a hash.
_SHORT_NAMES = re.compile(r"(?:git|engine)~\d+|(?:gi|en)[0-9a-f]{4}~\d+")
_DRIVE = re.compile(r"[A-Za-z]:")
_WINDOWS_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{number}" for port in ("com", "lpt") for number in "0123456789¹²³"}
)
# HFS+ ignores some of these in names, and every one can hide what a person is shown. Joiners stay: emoji need them.
_INVISIBLE = re.compile(r"[\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_IGNORABLE = re.compile(r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
                        r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0]")  # fmt: skip


def problem_of_text(path: str) -> str | None:
    """Why `path`, relative or absolute, is no path the fence would look at. None when it is one."""
    if not path:
        return "the path is empty"
    if any(unicodedata.category(character) == "Cs" for character in path):
        return "the path is not valid Unicode"
    if any(unicodedata.category(character) == "Cc" for character in path):
        return "the path contains a control character"
    if "\\" in path:
        return "the path contains a backslash; write '/' between folders"
    if _DRIVE.match(path):
        return "the path begins with a drive letter; name the file relative to the working directory"
    if len(path.encode()) > PATH_BYTES:
        return f"the path is longer than {PATH_BYTES} bytes"
    names = parts_of(path)
    if ".." in names:
        return "the path contains '..'; name the file directly, relative to the working directory"
    if names and not path.startswith("/") and names[0].startswith("~"):
        # A shell would expand it, the fence never does: only confusion can come of it.
        if names[0] == "~" or len(names) > 1:
            return "the path begins with '~', which is not expanded here"
    if len(names) > DEPTH:
        return f"the path is more than {DEPTH} folders deep"
    if any(len(name.encode()) > NAME_BYTES for name in names):
        return f"a name in the path is longer than {NAME_BYTES} bytes"
    return None


def problem_of_written_name(name: str) -> str | None:
    """Why a file or folder called `name` is never written or made. `name` has passed `problem_of_text`."""
    if is_never_written(name):
        return f"{name!r} is, or could be taken for, {' or '.join(sorted(NEVER_WRITTEN))}, which are never written"
    if ":" in name:
        return f"{name!r} contains ':', which names a stream of another file on Windows"
    if name[-1] in ". ":
        return f"{name!r} ends with a dot or space, which Windows drops"
    if name.split(".", maxsplit=1)[0].rstrip(" ").casefold() in _WINDOWS_DEVICES:
        return f"{name!r} is a device on Windows, whatever its ending"
    if _INVISIBLE.search(name):
        return f"{name!r} contains an invisible character"
    return None


def is_never_written(name: str) -> bool:
    """True for `.git`, `.enginehouse`, and what Windows or macOS would take for one of them."""
    # NFKC also unmasks full-width look-alikes: more than any file system does, and nobody needs those names.
    plain = unicodedata.normalize("NFKC", _IGNORABLE.sub("", name)).casefold()
    plain = _IGNORABLE.sub("", plain).partition(":")[0].rstrip(". ")
    return plain in NEVER_WRITTEN or _SHORT_NAMES.fullmatch(plain) is not None


def parts_of(path: str) -> tuple[str, ...]:
    """The names in a path, without empty ones and `.`; `..` is kept."""
    return tuple(name for name in path.split("/") if name not in ("", "."))
