"""`enginehouse profile check`: what is wrong with a profile, without changing anything.

Rule: it goes on after every finding, and a folder it cannot read is a finding too.
"""

import difflib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from enginehouse_core.credentials.unencrypted_file import NAME as UNENCRYPTED_KEYS
from enginehouse_core.profile.document import Document, read_document, unknown_keys
from enginehouse_core.profile.folders import Folders, is_name, reason
from enginehouse_core.profile.provider import ProviderFile
from enginehouse_core.profile.rules_file import PermissionsFile
from enginehouse_core.profile.settings import Settings
from enginehouse_protocol.errors import ProfileError, ProfileInvalid

_SHOWN = 20
"""How many paths with a wrong mode are named one by one."""
_PLACES = ("settings.toml", "permissions.toml", "providers", "transcripts", "engines", "lock", UNENCRYPTED_KEYS)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`error`: something will not work, or is open to others. `warning`: probably not what was meant."""

    severity: Literal["error", "warning"]
    path: str
    message: str


def check_profile(folders: Folders) -> list[Finding]:
    """Everything found, most important place first; none for a profile that does not exist yet. Blocks."""
    findings: list[Finding] = []
    if not os.path.lexists(folders.profile):
        return findings
    if not os.path.isdir(folders.profile):
        return [Finding(severity="error", path=str(folders.profile), message="is not a folder; move it away")]
    findings += _owner(folders.profile)
    if not os.access(folders.profile, os.W_OK | os.X_OK):
        findings.append(_error(folders.profile, "cannot be written, so nothing can be run with this profile"))
    findings += _document(folders.settings, Settings)
    findings += _document(folders.permissions, PermissionsFile)
    for path in _listed(folders.providers, findings):
        if path.suffix == ".toml" and is_name(path.stem):
            findings += _document(path, ProviderFile)
        elif not path.name.startswith("."):
            findings.append(_warning(path, "is not used: a provider's file is <name>.toml, <name> in a-z 0-9 - _"))
    if os.path.lexists(keys := folders.profile / UNENCRYPTED_KEYS):
        findings.append(_warning(keys, "holds keys that are not encrypted; that was chosen when they were added"))
    for path in _listed(folders.profile, findings):
        if path.name.startswith("."):
            if path.suffix == ".tmp":
                findings.append(_warning(path, "is what an interrupted write left; it can be deleted"))
        elif path.name not in _PLACES and (close := difflib.get_close_matches(path.name, _PLACES, n=1, cutoff=0.8)):
            findings.append(_warning(path, f"is not used; did you mean {close[0]}?"))
    findings += _modes(folders)
    return findings


def _document(path: Path, kind: type[Document]) -> Iterator[Finding]:
    try:
        document = read_document(path, kind)
    except ProfileInvalid as error:
        yield Finding(severity="error", path=error.path, message=error.problem)
        return
    if document is not None:
        for key, meant in unknown_keys(document):
            yield _warning(
                path, f"{key} is not known" + (f"; did you mean {meant}?" if meant else " and has no effect")
            )


def _modes(folders: Folders) -> Iterator[Finding]:
    """Whatever others may read or change. Links are not followed; an engine's own store is the engine's
    business."""
    found = 0
    places = [folders.profile]
    for name in ("data", "log", "run"):
        try:
            places.append(getattr(folders, name))
        except ProfileError as error:
            yield Finding(severity="error", path=name, message=str(error))
    for place in places:
        if place != folders.profile and os.path.lexists(place):
            yield from _owner(place)
        for path, status in _walk(place, lambda path: path.parent != folders.engines):
            open_to_others = stat.S_IMODE(status.st_mode) & 0o077
            if stat.S_ISLNK(status.st_mode) or not open_to_others:
                continue
            found += 1
            if found <= _SHOWN:
                wanted = "700" if stat.S_ISDIR(status.st_mode) else "600"
                mode = f"{stat.S_IMODE(status.st_mode):03o}"
                yield _error(path, f"is open to other users (mode {mode}); `chmod {wanted}` closes it")
    if found > _SHOWN:
        yield _error(folders.profile, f"{found - _SHOWN} more files and folders are open to other users")


def _walk(top: Path, inside: Callable[[Path], bool]) -> Iterator[tuple[Path, os.stat_result]]:
    """`top` and what is below it, folders before their content; `inside` says which folders are entered."""
    waiting = [top]
    while waiting:
        path = waiting.pop()
        try:
            status = path.lstat()
            yield path, status
            if stat.S_ISDIR(status.st_mode) and inside(path):
                waiting += sorted((path / name for name in os.listdir(path)), reverse=True)
        except OSError:  # gone meanwhile, or unreadable: `_listed` and `_document` speak about what matters
            continue


def _listed(folder: Path, findings: list[Finding]) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        findings.append(_error(folder, f"cannot be read: {reason(error)}"))
        return []


def _owner(path: Path) -> Iterator[Finding]:
    owner = path.lstat().st_uid
    if owner != os.geteuid():
        yield _warning(path, f"belongs to user {owner}, not to you (user {os.geteuid()})")


def _error(path: Path, message: str) -> Finding:
    return Finding(severity="error", path=str(path), message=message)


def _warning(path: Path, message: str) -> Finding:
    return Finding(severity="warning", path=str(path), message=message)
