"""Where a path lies and how risky it is to read, write or remove what is there. Lexical: it never touches the disk.

Rule: what cannot be placed is outside. Links are not followed here; the fence and the sandbox hold when a link lies.
"""

import posixpath
import unicodedata
from dataclasses import dataclass
from fnmatch import fnmatchcase

from enginehouse_protocol.permissions import Risk

PROTECTED_NAMES = (".git", ".enginehouse")

_DEVICES_TO_WRITE = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/full"})
_DEVICES_TO_READ = frozenset({"/dev/null", "/dev/zero", "/dev/stdin", "/dev/urandom", "/dev/random", "/dev/tty"})
_NETWORK_DEVICES = ("/dev/tcp/", "/dev/udp/")
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr")
_SYSTEM_ELSEWHERE = ("/var/lib", "/var/run", "/run", "/var/spool", "/System", "/Library", "/private/etc")
_READABLE = ("/bin", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/sbin", "/sys", "/usr")
_SECRETS = (
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/sudoers*",
    "/etc/security/opasswd*",
    "/etc/ssh/*key*",
    "/etc/ssl/private*",
    "/etc/*.keytab",
    "/proc/*/environ*",
    "/proc/*/mem*",
    "/proc/*/fd*",
    "/proc/*/root*",
    "/proc/*/cwd*",
    "/proc/*/task*",
    "/proc/kcore*",
    "/proc/kmsg*",
    "/proc/sysrq*",
)
_STARTUP = (
    *(
        ".bash*",
        ".profile",
        ".zsh*",
        ".zprofile",
        ".zlog*",
        ".zshenv",
        ".kshrc",
        ".mkshrc",
        ".cshrc",
        ".tcshrc",
        ".login",
    ),
    *(".config", ".ssh", ".gnupg", ".inputrc", ".vimrc", ".vim", ".emacs*", ".gitconfig", ".git-credentials"),
    *(".netrc", ".npmrc", ".pypirc", ".pam_environment", ".x*rc", ".xprofile", ".xsession*", ".local", ".cargo"),
    *(".aws", ".azure", ".kube", ".docker", ".gdbinit", ".lldbinit", ".pythonrc*", ".tmux.conf", ".screenrc", ".env*"),
    *("bin", "library"),
)


@dataclass(frozen=True)
class Finding:
    """A risk and why, in words for a person."""

    risk: Risk
    reason: str


def folded(name: str) -> str:
    """One file name as the most forgiving file system would compare it: case, width, ignorable characters, dots."""
    plain = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFC", plain.casefold()).rstrip(". ")


def protected_name(name: str) -> str | None:
    """The never-writable name that `name` is, may be an alias of, or may match as a shell pattern."""
    plain = folded(name)
    if plain.startswith("git~"):  # the short name some file systems make for `.git`
        return ".git"
    for protected in PROTECTED_NAMES:
        if plain == protected or (plain.startswith(".") and fnmatchcase(protected, plain)):
            return protected
    return None


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _components(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


@dataclass(frozen=True)
class Places:
    """The folders of one session. All absolute; `roots[0]` is the working directory, `scratch` is writable too."""

    roots: tuple[str, ...]
    home: str = ""
    profile: str = ""
    scratch: str = ""

    @property
    def writable(self) -> tuple[str, ...]:
        return (*self.roots, self.scratch) if self.scratch else self.roots

    def resolve(self, path: str, cwd: str | None = None) -> str:
        """Absolute and without `.` and `..`. `~` is only understood where the caller put the home folder in place."""
        joined = posixpath.normpath(posixpath.join(cwd or (self.roots[0] if self.roots else "/"), path))
        return "/" + joined.lstrip("/")

    def display(self, path: str) -> str:
        """As rules name it: relative to the first root it lies below, else absolute."""
        full = self.resolve(path)
        for root in self.roots:
            if _below(full, root):
                return posixpath.relpath(full, root)
        return full

    def inside(self, path: str) -> bool:
        return any(_below(path, root) for root in self.writable)

    def protected(self, path: str) -> str | None:
        """Why an absolute path may never be written, or None."""
        if self.profile and _below(folded_path(path), folded_path(self.profile)):
            return "the profile is never the agent's to write"
        for part in _components(path):
            if name := protected_name(part):
                return f"anything in {name} is never the agent's to write"
        return None

    def reading(self, path: str, *, deep: bool = False) -> Finding:
        """`deep`: everything below it is read too."""
        if path.startswith(_NETWORK_DEVICES):
            return Finding("dangerous", f"{path} is a network connection")
        if self.profile and _below(folded_path(path), folded_path(self.profile)):
            return Finding("dangerous", f"{path} is in the profile")
        if self.inside(path):
            return Finding("safe", "reads inside the roots")
        if _below(path, "/dev") and path != "/dev":
            if path in _DEVICES_TO_READ or path.startswith("/dev/fd/"):
                return Finding("safe", "a harmless device")
            return Finding("dangerous", f"{path} is a device")
        for secret in _SECRETS:
            if _matches_secret(path, secret):
                return Finding("dangerous", f"{path} may hold secrets")
            if deep and _below(secret.split("*")[0], path):
                return Finding("dangerous", f"{path} holds secrets further down")
        if any(_below(path, folder) for folder in _READABLE) and not _below(path, self.home or "//"):
            return Finding("safe", "a plain system file")
        if path == "/" and not deep:
            return Finding("safe", "the top folder's names")
        return Finding("dangerous", f"{path} is outside the roots")

    def writing(self, path: str) -> Finding:
        if path in _DEVICES_TO_WRITE or path.startswith("/dev/fd/"):
            return Finding("safe", "a harmless device")
        if path.startswith(_NETWORK_DEVICES):
            return Finding("dangerous", f"{path} is a network connection")
        if reason := self.protected(path):
            return Finding("critical", f"writes {path}: {reason}")
        if _below(path, "/dev") and not self.inside(path):
            return Finding("critical", f"{path} is a device")
        if self._startup(path):
            return Finding("critical", f"{path} decides what runs or who gets in later")
        if self.inside(path):
            return Finding("write", "changes files inside the roots")
        if any(_below(path, folder) for folder in (*_SYSTEM, *_SYSTEM_ELSEWHERE)):
            return Finding("critical", f"{path} belongs to the system")
        return Finding("dangerous", f"writes {path}, outside the roots")

    def removing(self, path: str, *, deep: bool) -> Finding:
        """`deep`: with everything below it."""
        written = self.writing(path)
        if written.risk == "critical":
            return written
        if not deep:
            return Finding("dangerous", f"removes {path}")
        if not self.inside(path):
            return Finding("critical", f"removes {path} and everything below it, outside the roots")
        for root in self.writable:
            if _below(root, path):
                return Finding("critical", f"removes {path}, a root of the session")
            if posixpath.dirname(path) == root and posixpath.basename(path).strip("*?.[]!") == "":
                return Finding("critical", f"removes everything in {root}")
        if any(mark in path for mark in "*?[") and path.count("/") == 1:
            return Finding("critical", "removes everything at the top")
        return Finding("dangerous", f"removes {path} and everything below it")

    def wide(self, path: str) -> bool:
        """Whether a change of everything below `path` would reach past the roots."""
        return not self.inside(path)

    def _startup(self, path: str) -> bool:
        if not self.home or not _below(path, self.home) or path == self.home:
            return False
        if any(_below(path, root) and root != self.home and _below(root, self.home) for root in self.writable):
            return False
        first = folded(_components(path)[len(_components(self.home))])
        return any(
            fnmatchcase(first, name) or (first.startswith(".") and fnmatchcase(name, first)) for name in _STARTUP
        )


def folded_path(path: str) -> str:
    return "/" + "/".join(folded(part) for part in _components(path))


def _matches_secret(path: str, secret: str) -> bool:
    """A path, or a shell pattern standing for paths, against a pattern of secrets. Errs on the side of a match."""
    if fnmatchcase(path, secret):
        return True
    if not any(mark in path for mark in "*?["):
        return False
    ours, theirs = _components(path), _components(secret)
    return all(
        fnmatchcase(their.rstrip("*"), our) or fnmatchcase(our, their) or their in ("*", our)
        for our, their in zip(ours, theirs, strict=False)
    )
