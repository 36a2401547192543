"""A private D-Bus session with a real gnome-keyring in it.

Rule: nothing of the person's own session is touched: its folders are temporary and its bus is its own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

_SESSION = """\
printf %s "$KEYRING_PASSWORD" | gnome-keyring-daemon --unlock --components=secrets >/dev/null 2>&1
unset KEYRING_PASSWORD
exec "$@"
"""


@dataclass(frozen=True)
class Desktop:
    """Runs programs with a keyring beside them, or with one that nobody has unlocked."""

    home: Path

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "ENGINEHOUSE_PROFILE": str(self.home / "profile"),
        }

    def run(
        self,
        *argv: str,
        unlocked: bool = True,
        given: str = "",
        more: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        inner = ["sh", "-c", _SESSION, "sh", *argv] if unlocked else list(argv)
        environment = self.environment() | ({"KEYRING_PASSWORD": "a test's own"} if unlocked else {}) | dict(more or {})
        return subprocess.run(
            ["dbus-run-session", "--", *inner],
            env=environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def python(self, code: str, *, unlocked: bool = True) -> "subprocess.CompletedProcess[str]":
        return self.run(sys.executable, "-P", "-c", code, unlocked=unlocked)


def desktop_in(folder: Path) -> Desktop:
    """Skips the test, loudly, where there is no keyring to be had."""
    missing = [name for name in ("dbus-run-session", "gnome-keyring-daemon") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no real keyring here: {', '.join(missing)} not installed (Debian: gnome-keyring, dbus)")
    (folder / "run").mkdir(mode=0o700)
    return Desktop(folder)
