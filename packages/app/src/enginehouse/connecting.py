"""Reaching the hub from a command: start it if nobody is, with nothing of the person's in its environment.

Rule: what goes wrong on the way is one line that names its cause. A hub that could not start said why in its log; that
sentence is repeated here, not the log.
"""

import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread
from anyio.abc import ByteStream

from enginehouse import __version__
from enginehouse.hub_place import EDITION, hub_place, is_held_by_hub
from enginehouse_core.profile.folders import VARIABLE, Folders, make_private
from enginehouse_core.profile.lock import holder_of
from enginehouse_core.workspace.environment import looks_like_credential
from enginehouse_hosts.client import RemoteHub
from enginehouse_protocol.errors import ProfileLocked, ServiceUnavailable
from enginehouse_protocol.local_socket import Launch, Place, connect
from enginehouse_protocol.methods import HostInfo

TERMINAL = HostInfo(id="terminal", name="terminal", version=__version__)
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_PASSED = ("HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR")
_XDG = ("DATA", "CACHE", "STATE", "CONFIG")
_SAID = "enginehouse: "


@asynccontextmanager
async def connected(
    folders: Folders, environment: Mapping[str, str], *, can_answer: bool, start: bool = True
) -> AsyncGenerator[RemoteHub]:
    """The hub of this profile, for as long as the block lasts; one that dies meanwhile is started again.

    `can_answer`: a person sits here who can be asked. `start` false: only a hub that runs already.

    Raises:
        ProfileError: the profile cannot be written, or somebody uses it without a hub.
        LocalSocketError: the hub cannot be reached or started; the message says why and what to do.
    """
    await anyio.to_thread.run_sync(make_private, folders.profile)
    place = hub_place(folders)
    launch = partial(_launch, folders, environment)

    async def dial() -> ByteStream:
        try:
            return (await connect(place, EDITION, start=launch if start else None)).stream
        except ServiceUnavailable as error:
            raise await anyio.to_thread.run_sync(_explained, error, place, folders) from error

    async with RemoteHub(dial, TERMINAL, can_answer=can_answer, hint="`enginehouse hub logs` tells why") as hub:
        yield hub


def hub_environment(folders: Folders, environment: Mapping[str, str]) -> dict[str, str]:
    """All the hub gets. What a session needs of a person's variables travels with the session."""
    passed = (*_PASSED, *(f"XDG_{name}_HOME" for name in _XDG), *(name for name in environment if name[:3] == "LC_"))
    kept = {
        name: environment[name]
        for name in passed
        if name in environment and not looks_like_credential(name, environment[name])
    }
    return {**kept, "PATH": _PATH, VARIABLE: str(folders.profile)}


def _launch(folders: Folders, environment: Mapping[str, str]) -> Launch:
    """Raises: ProfileLocked: somebody uses the profile without a hub, so starting one is of no use. Blocks."""
    if holder := holder_of(folders.profile):
        locked = ProfileLocked(str(folders.profile), holder)
        if not is_held_by_hub(locked):  # that one was killed or ends just now, and lets go
            raise locked
    # -P: the current directory is no place to import from. What names a profile is in the environment, so that no two
    # command lines differ.
    argv = [sys.executable, "-P", "-m", "enginehouse", "hub", "serve"]
    return Launch(argv=argv, environment=hub_environment(folders, environment))


def _explained(error: ServiceUnavailable, place: Place, folders: Folders) -> Exception:
    """The same, in one line. Blocks."""
    said = [line.removeprefix(_SAID) for line in error.log_tail.splitlines() if line.startswith(_SAID)]
    if said:
        return ServiceUnavailable(f"{place.name} could not start: {said[-1]}")
    holder = holder_of(folders.profile)
    if holder is not None:
        locked = ProfileLocked(str(folders.profile), holder)
        if not is_held_by_hub(locked):
            return locked
    if _is_full(folders):
        return ServiceUnavailable(f"{place.name} could not start: no space left on the disk of {folders.profile}")
    return error


def _is_full(folders: Folders) -> bool:
    try:
        return os.statvfs(folders.profile).f_bavail == 0
    except OSError:
        return False
