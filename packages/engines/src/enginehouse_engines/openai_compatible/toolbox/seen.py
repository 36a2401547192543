"""What the model has seen of each file, so that it does not change one that is no longer what it saw.

Rule: only a file that was seen and is different now is refused. A file nobody read may be changed: an edit has to find
its text in it, and a write shows what it replaces. So an edit is held only to what was *read*; what replaces or removes
a whole file also to what the model wrote itself, or somebody's work on it would be gone.

The memory is the session's, and a session has one workspace for as long as its engine session lives; so it hangs on
that, and goes with it.
"""

from collections import OrderedDict
from weakref import WeakKeyDictionary

from enginehouse_engines.openai_compatible.toolbox.tool import ToolRefused
from enginehouse_protocol.workspace import Workspace

_REMEMBERED = 4_000


class SeenFiles:
    """Digests by path. Paths are those the workspace displays."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, tuple[str, bool]] = OrderedDict()
        """The digest, and whether the file was ever read."""

    def read(self, path: str, sha256: str) -> None:
        self._note(path, sha256, was_read=True)

    def wrote(self, path: str, sha256: str) -> None:
        self._note(path, sha256, was_read=path in self._files and self._files[path][1])

    def deleted(self, path: str) -> None:
        self._files.pop(path, None)

    def moved(self, path: str, to: str) -> None:
        if (known := self._files.pop(path, None)) is not None:
            self._note(to, known[0], was_read=known[1])

    def require_current(self, path: str, sha256: str, *, for_edit: bool = False) -> None:
        """Raises `ToolRefused` when the model saw something else under this path."""
        known = self._files.get(path)
        if known is not None and known[0] != sha256 and (known[1] or not for_edit):
            raise ToolRefused(f"{path!r} changed since you last read or wrote it; read it again first")

    def _note(self, path: str, sha256: str, *, was_read: bool) -> None:
        self._files[path] = (sha256, was_read)
        self._files.move_to_end(path)
        while len(self._files) > _REMEMBERED:
            self._files.popitem(last=False)


_seen: WeakKeyDictionary[Workspace, SeenFiles] = WeakKeyDictionary()


def seen_in(workspace: Workspace) -> SeenFiles:
    """The memory of the session this workspace belongs to."""
    found = _seen.get(workspace)
    if found is None:
        found = _seen[workspace] = SeenFiles()
    return found
