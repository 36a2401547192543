"""The fence: from a path the model wrote to a descriptor that is certainly inside a folder of the session.

Rule: the disk is reached by descriptors only. Every name is opened below the descriptor of its parent, without
following a link, starting at a root opened once; no path is checked and then used. So a link swapped in between check
and use leads nowhere (see docs/architecture.md, "Workspace").

For reading and writing alike: links are refused, files must be regular with one name only (a hard link may be a file
outside), pipes, sockets and devices are never opened, the stored name must be the asked one (on a file system that
ignores case or normalisation an alias would pass by rules and by this fence), and the protected folders (the profile:
it holds other sessions' talk and engines' credentials) are closed. For writing, the names of `path_lint` come on top.

Only `display` and `locate` may be called on the event loop: they read text. The rest blocks.
"""

import errno
import os
import stat
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from enginehouse_core.workspace.descriptors import (
    FILE_FLAGS,
    FOLDER_FLAGS,
    Identity,
    identity,
    is_stored,
    kind_of,
    require_plain_file,
    sync_folder,
    unusable,
)
from enginehouse_core.workspace.path_lint import is_never_written, parts_of, problem_of_text, problem_of_written_name
from enginehouse_protocol.errors import FileUnusable, PathRefused, UsageError, WorkspaceError

_PROTECTED = "it belongs to the Enginehouse profile, which is closed to sessions"


class Anchor:
    """A top folder of the session: a root or the scratch folder, open between `open` and `close`.

    A borrowed descriptor stays valid until it is given back, also when `close` comes first: a reader that was
    abandoned to a slow disk must not find its number reused for another folder.
    """

    def __init__(self, path: str, *, primary: bool = False, private: bool = False) -> None:
        self.path = os.path.abspath(path)
        self.primary = primary
        """The working directory: relative paths belong to it."""
        self.private = private
        """Made by us, for this session; where it lies is not the project's business."""
        self.real = self.path
        self._descriptor: int | None = None
        self._borrowers = 0
        self._closed = True
        self._lock = threading.Lock()

    def open(self) -> None:
        if self.private:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._descriptor = os.open(self.path, FOLDER_FLAGS)
            if os.fstat(self._descriptor).st_uid != os.geteuid():
                raise PathRefused(self.path, "the scratch folder belongs to somebody else")
            os.fchmod(self._descriptor, 0o700)
        else:  # a project may be reached by a link: the person chose it
            self._descriptor = os.open(self.path, FOLDER_FLAGS & ~os.O_NOFOLLOW)
        self.real = os.path.realpath(self.path)
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close_if_unused()

    @contextmanager
    def borrow(self) -> Generator[int]:
        with self._lock:
            if self._closed or self._descriptor is None:
                raise FileUnusable(self.path, "the session's workspace is closed")
            self._borrowers += 1
            descriptor = self._descriptor
        try:
            yield descriptor
        finally:
            with self._lock:
                self._borrowers -= 1
                self._close_if_unused()

    def names(self) -> Iterator[tuple[str, ...]]:
        """The folder's own path, as given and as it really is."""
        yield parts_of(self.path)
        if self.real != self.path:
            yield parts_of(self.real)

    def _close_if_unused(self) -> None:
        if self._closed and not self._borrowers and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Place(NamedTuple):
    """A path understood as text: which top folder, and the names below it. Says nothing about the disk."""

    asked: str
    anchor: Anchor
    parts: tuple[str, ...]

    def named(self, count: int | None = None) -> str:
        """The first `count` names, as a path that can be asked for again: relative only to the first root."""
        below = "/".join(self.parts[:count])
        return (below or ".") if self.anchor.primary else os.path.join(self.anchor.path, below).rstrip("/")


class Fence:
    """Roots, scratch folder and protected folders of one session. `open` before use, `close` after."""

    def __init__(self, roots: Sequence[str], *, scratch: str, protected: Sequence[str] = ()) -> None:
        if not roots:
            raise UsageError("a workspace needs at least one root")
        self.anchors = (
            *(Anchor(path, primary=index == 0) for index, path in enumerate(roots)),
            Anchor(scratch, private=True),
        )
        self._protected = tuple({os.path.abspath(path): None for path in protected})
        self._protected_names = tuple(map(parts_of, self._protected))

    def open(self) -> None:
        try:
            for anchor in self.anchors:
                try:
                    anchor.open()
                except OSError as error:
                    raise unusable(anchor.path, error) from error
            self._protected_names = self._names_of_protected()
            scratch = self.anchors[-1]
            if self._is_protected(parts_of(scratch.real)):
                raise UsageError(f"the scratch folder {scratch.path} lies in a folder that is never written")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for anchor in self.anchors:
            anchor.close()

    # ── text ──

    def display(self, path: str) -> str:
        """The path for a person and a rule: relative below the first root, absolute elsewhere; `..` is resolved."""
        text = path.encode("utf-8", "replace").decode()
        names: list[str] = []
        for name in parts_of(text if text.startswith("/") else f"{self.anchors[0].path}/{text}"):
            if name != "..":
                names.append(name)
            elif names:
                names.pop()
        found = self._anchor_of(tuple(names))
        return Place(path, *found).named() if found else "/" + "/".join(names)

    def locate(self, path: str, *, writing: bool = False, folder: bool = False) -> Place:
        """Understand a path, or refuse it for what its text says. `folder`: it may end with a slash."""
        if problem := problem_of_text(path):
            raise PathRefused(path, problem)
        if path.endswith(("/", "/.")) and not folder:
            raise PathRefused(path, "the path ends with '/' or '/.', which names a folder, not a file")
        names = parts_of(path)
        found = self._anchor_of(names) if path.startswith("/") else (self.anchors[0], names)
        if found is None:
            folders = ", ".join(anchor.path for anchor in self.anchors)
            raise PathRefused(path, f"it lies outside the session's folders ({folders})")
        place = Place(path, *found)
        self._check_protected(place)
        if writing:
            self._check_writable(place)
        return place

    def _anchor_of(self, names: tuple[str, ...]) -> tuple[Anchor, tuple[str, ...]] | None:
        matches = [
            (anchor, names[len(own) :]) for anchor in self.anchors for own in anchor.names() if names[: len(own)] == own
        ]
        return min(matches, key=lambda match: len(match[1]), default=None)  # roots may lie in each other

    def _check_writable(self, place: Place) -> None:
        if not place.anchor.private and any(map(is_never_written, parts_of(place.anchor.real))):
            raise PathRefused(place.asked, "its root lies in a folder that is never written")
        for name in place.parts:
            if problem := problem_of_written_name(name):
                raise PathRefused(place.asked, problem)

    def _check_protected(self, place: Place) -> None:
        if any(self._is_protected((*own, *place.parts)) for own in place.anchor.names()):
            raise PathRefused(place.asked, _PROTECTED)

    def _is_protected(self, names: tuple[str, ...]) -> bool:
        return any(names[: len(own)] == own for own in self._protected_names)

    def _names_of_protected(self) -> tuple[tuple[str, ...], ...]:
        both = (form for path in self._protected for form in (path, os.path.realpath(path)))
        return tuple({parts_of(path): None for path in both})

    # ── disk ──

    def identities_of_protected(self) -> frozenset[Identity]:
        """The protected folders that exist now; finds them behind bind mounts and aliases, where names do not."""
        found: set[Identity] = set()
        for path in self._protected:
            with suppress(OSError):
                found.add(identity(os.stat(path)))
        return frozenset(found)

    @contextmanager
    def folder(self, place: Place, *, parent: bool, create: bool = False) -> Generator[int]:
        """The descriptor of the folder at `place` (with `parent`: of the one that holds it), while in the context.

        `create` makes missing folders; those that were made go again when the context ends with an error.
        """
        depth = len(place.parts) - 1 if parent else len(place.parts)
        if depth < 0:
            raise FileUnusable(place.asked, "it is a folder")
        protected = self.identities_of_protected()
        made: list[tuple[int, str]] = []
        with ExitStack() as opened:
            here = opened.enter_context(place.anchor.borrow())
            try:
                _refuse_protected(here, protected, place)
                for index in range(depth):
                    below = self._step(here, place, index, made if create else None)
                    opened.callback(os.close, below)
                    _refuse_protected(below, protected, place)
                    here = below
                yield here
            except BaseException:
                for holder, name in reversed(made):
                    with suppress(OSError):
                        os.rmdir(name, dir_fd=holder)
                raise

    def _step(self, here: int, place: Place, index: int, made: list[tuple[int, str]] | None) -> int:
        name = place.parts[index]
        try:
            try:
                below = os.open(name, FOLDER_FLAGS, dir_fd=here)
            except FileNotFoundError:
                if made is None:
                    raise
                with suppress(FileExistsError):  # somebody else was first: theirs is as good, if it is a folder
                    os.mkdir(name, dir_fd=here)
                    made.append((here, name))
                    sync_folder(here)
                below = os.open(name, FOLDER_FLAGS, dir_fd=here)
        except OSError as error:
            raise self._why_not_a_folder(error, here, place, index) from error
        if not is_stored(here, name):
            os.close(below)
            raise PathRefused(place.asked, _alias(place.named(index + 1)))
        return below

    def _why_not_a_folder(self, error: OSError, here: int, place: Place, index: int) -> WorkspaceError:
        shown = place.named(index + 1)
        try:
            found = os.stat(place.parts[index], dir_fd=here, follow_symlinks=False)
        except FileNotFoundError:
            return FileUnusable(place.asked, f"there is no {shown!r}")
        except OSError:
            return unusable(place.asked, error)
        if stat.S_ISLNK(found.st_mode):
            return PathRefused(place.asked, _link(here, place.parts[index], shown))
        if not stat.S_ISDIR(found.st_mode):
            return FileUnusable(place.asked, f"{shown!r} is {kind_of(found.st_mode)}, not a folder")
        return unusable(place.asked, error)

    def look(self, here: int, place: Place) -> os.stat_result | None:
        """What the last name of `place` stands for in the folder `here`. None: nothing. A link is refused."""
        name = place.parts[-1]
        try:
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unusable(place.asked, error) from error
        if stat.S_ISLNK(found.st_mode):
            raise PathRefused(place.asked, _link(here, name, place.named()))
        if not is_stored(here, name):
            raise PathRefused(place.asked, _alias(place.named()))
        if identity(found) in self.identities_of_protected():
            raise PathRefused(place.asked, _PROTECTED)
        return found

    @contextmanager
    def file(self, here: int, place: Place) -> Generator[tuple[int, os.stat_result]]:
        """The regular file called by the last name of `place`, open for reading, with its status."""
        found = self.look(here, place)
        if found is None:
            raise FileUnusable(place.asked, "it does not exist")
        require_plain_file(found, place.asked)
        try:
            descriptor = os.open(place.parts[-1], FILE_FLAGS, dir_fd=here)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # swapped since we looked
                raise PathRefused(place.asked, "it changed while it was being opened") from error
            raise unusable(place.asked, error) from error
        try:
            found = os.fstat(descriptor)
            require_plain_file(found, place.asked)
            yield descriptor, found
        finally:
            os.close(descriptor)


@contextmanager
def failing_as(place: Place) -> Generator[None]:
    """Whatever the operating system refuses is said about the path as it was asked for."""
    try:
        yield
    except OSError as error:
        raise unusable(place.asked, error) from error


def _refuse_protected(folder: int, protected: frozenset[Identity], place: Place) -> None:
    if protected and identity(os.fstat(folder)) in protected:
        raise PathRefused(place.asked, _PROTECTED)


def _link(folder: int, name: str, shown: str) -> str:
    try:
        target = repr(os.readlink(name, dir_fd=folder)[:200])
    except OSError:
        target = "somewhere"
    return f"{shown!r} is a symbolic link to {target}; links are not followed, name the real path if it is inside"


def _alias(shown: str) -> str:
    return f"{shown!r} is stored under another spelling; use the name as the folder lists it"
