"""Where the hub of a profile is found, and what is said when it, or somebody else, has the profile.

Rule: the place follows from the profile alone. Two shells that differ in everything else meet at one hub.
"""

from enginehouse import __version__
from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.errors import ProfileLocked
from enginehouse_protocol.local_socket import Edition, Place, Span
from enginehouse_protocol.methods import PROTOCOL_VERSION

SERVE = "enginehouse hub serve"
"""What others are told that holds the profile."""
STOP = "enginehouse hub stop"

EDITION = Edition(version=__version__, protocol=Span(min=PROTOCOL_VERSION, max=PROTOCOL_VERSION))


def hub_place(folders: Folders) -> Place:
    """Knowing it creates nothing. Not in `XDG_RUNTIME_DIR`, which two logins of one person need not share."""
    return Place(folders.profile / "run", "hub", stop_hint=STOP)


def is_held_by_hub(error: ProfileLocked) -> bool:
    return f"`{SERVE}`" in error.holder


def locked_text(error: ProfileLocked) -> str:
    """What to do about a profile that is in use; a hub is not waited for, it is stopped."""
    if is_held_by_hub(error):
        return f"the profile {error.path} is in use by {error.holder}; stop it with `{STOP}`"
    return str(error)
