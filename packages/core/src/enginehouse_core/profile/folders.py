"""Where one profile keeps its things, and how its folders come to be: private, or with a clear error.

Rule: knowing a path creates nothing, and two profiles share nothing. What lies outside the profile folder
(data, cache, log, run-time) is keyed by the real path of the profile.
"""

import hashlib
import os
import re
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from enginehouse_protocol.errors import ProfileInvalid, ProfileUnwritable, UsageError

VARIABLE = "ENGINEHOUSE_PROFILE"
_APP = "enginehouse"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_CHOOSE = f"make it writable, or choose another folder with {VARIABLE}"


@dataclass(frozen=True)
class Folders:
    """The folders of one profile. `profile` is absolute; nothing needs to exist.

    `data`, `cache`, `log` and `run` follow the platform's conventions (and `XDG_*`) at the time they are
    first asked for. Asking may raise `ProfileInvalid` (no home folder) or, for `run`, `ProfileUnwritable` (no
    safe place for it).
    """

    profile: Path

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> "Folders":
        """The profile this environment names: `ENGINEHOUSE_PROFILE`, else `~/.enginehouse/profile`.

        Raises:
            ProfileInvalid: neither is usable, because no home folder is known.
        """
        env = os.environ if environment is None else environment
        home = env.get("HOME", "")
        named = env.get(VARIABLE, "") or "~/.enginehouse/profile"
        if named == "~" or named.startswith("~/"):
            if not os.path.isabs(home):
                raise _homeless(named)
            named = home + named[1:]
        return cls(Path(os.path.abspath(named)))

    @property
    def settings(self) -> Path:
        return self.profile / "settings.toml"

    @property
    def permissions(self) -> Path:
        return self.profile / "permissions.toml"

    @property
    def providers(self) -> Path:
        return self.profile / "providers"

    @property
    def transcripts(self) -> Path:
        return self.profile / "transcripts"

    @property
    def engines(self) -> Path:
        return self.profile / "engines"

    def provider(self, name: str) -> Path:
        """The file of one provider. Raises `UsageError` for a name that is none."""
        return self.providers / f"{checked_name(name, 'provider')}.toml"

    def engine(self, name: str) -> Path:
        """The state folder of one engine; it exists once `make_private` made it."""
        return self.engines / checked_name(name, "engine")

    @cached_property
    def key(self) -> str:
        """Tells this profile from every other one in the shared places of the platform."""
        return hashlib.sha256(os.fsencode(os.path.realpath(self.profile))).hexdigest()[:12]

    @cached_property
    def data(self) -> Path:
        return self._platform("user_data_dir")

    @cached_property
    def cache(self) -> Path:
        return self._platform("user_cache_dir")

    @cached_property
    def log(self) -> Path:
        return self._platform("user_log_dir")

    @cached_property
    def run(self) -> Path:
        return self._platform("user_runtime_dir")

    def create(self) -> None:
        """Make what a writer needs: profile, transcripts, data and cache, each 0700, with missing parents.

        What exists keeps its mode; `profile check` speaks about it.

        Raises:
            ProfileInvalid: something that is not a folder is in the way.
            ProfileUnwritable: read-only, no permission, no space.
        """
        for folder in (self.profile, self.transcripts, self.data, self.cache):
            make_private(folder)

    def create_run(self) -> None:
        """Make the run-time folder, and refuse one that somebody else could have prepared.

        Raises:
            ProfileUnwritable: a link, a foreign owner, or writable by others.
        """
        base = self.run.parent.parent
        make_private(base)
        status = base.stat()
        if status.st_uid not in (0, os.geteuid()) or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
            raise ProfileUnwritable(
                str(base), "other users may rename what is in it; set XDG_RUNTIME_DIR to a folder only you can write"
            )
        for folder in (self.run.parent, self.run):
            make_private(folder, own=True)
            status = os.lstat(folder)
            if status.st_mode & 0o022:
                raise ProfileUnwritable(
                    str(folder), f"other users may write to it; look what is in it, then `chmod 700 {folder}`"
                )
            if status.st_mode & 0o077:
                os.chmod(folder, 0o700)

    def _platform(self, place: str) -> Path:
        import platformdirs  # 60 ms of start-up that `profile path` and `--version` do not need

        with warnings.catch_warnings():
            # It warns when XDG_RUNTIME_DIR is unset; its fallback is checked by it and again by `create_run`.
            warnings.simplefilter("ignore", UserWarning)
            try:
                base = getattr(platformdirs.PlatformDirs(_APP, appauthor=False), place)
            except OSError as error:
                raise ProfileUnwritable(
                    "the run-time folder", f"{error}; set XDG_RUNTIME_DIR to a folder only you can write"
                ) from error
        if not os.path.isabs(base):
            raise _homeless(base)
        return Path(base) / self.key


def is_name(name: str) -> bool:
    """Whether `name` is safe as a file name and as a command-line value."""
    return _NAME.fullmatch(name) is not None


def checked_name(name: str, what: str) -> str:
    """`name` if it `is_name`, else `UsageError`."""
    if not is_name(name):
        raise UsageError(f"{name!r} is no {what} name: up to 64 of a-z, 0-9, '-' and '_', the first a letter or digit")
    return name


def make_private(folder: Path, *, own: bool = False) -> None:
    """Make `folder` and its missing parents, each 0700, and see that it can be written. Idempotent.

    With `own` a link, or a folder of another user, is refused.

    Raises:
        ProfileInvalid: something that is not a folder is in the way.
        ProfileUnwritable: the disk or the permissions refuse.
    """
    missing: list[Path] = []
    at = folder
    try:
        while not os.path.lexists(at):
            missing.append(at)
            at = at.parent
        for path in reversed(missing):
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:  # another process was faster; whether it is a folder is looked at below
                continue
        status = folder.lstat() if own else folder.stat()
    except (NotADirectoryError, FileNotFoundError) as error:
        raise ProfileInvalid(str(folder), _in_the_way(folder)) from error
    except (OSError, ValueError) as error:
        raise ProfileUnwritable(str(folder), f"{reason(error)}; {_CHOOSE}") from error
    if stat.S_ISLNK(status.st_mode):
        raise ProfileUnwritable(str(folder), "it is a link, which another user may have made; remove it")
    if own and status.st_uid != os.geteuid():
        raise ProfileUnwritable(
            str(folder), "it belongs to another user; remove it or set XDG_RUNTIME_DIR to a folder of your own"
        )
    if not stat.S_ISDIR(status.st_mode):
        raise ProfileInvalid(str(folder), _in_the_way(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        why = "the file system is read-only" if read_only else "permission denied"
        raise ProfileUnwritable(str(folder), f"{why}; {_CHOOSE}")


def reason(error: BaseException) -> str:
    """The plain clause of an operating-system error, without its number and without the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def _in_the_way(folder: Path) -> str:
    at = folder
    while at != at.parent and (os.path.isdir(at) or not os.path.lexists(at)):
        at = at.parent
    return f"{at} is not a folder; move it away, or choose another profile with {VARIABLE}"


def _homeless(path: str) -> ProfileInvalid:
    return ProfileInvalid(
        path,
        f"no home folder is known: HOME is not set; set HOME, or set {VARIABLE} to a folder of your choice",
    )
