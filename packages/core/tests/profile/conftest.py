"""A profile of its own for every test, on a path with spaces and more than ASCII."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from enginehouse_core.profile.folders import Folders


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    for place in ("DATA_HOME", "CACHE_HOME", "STATE_HOME", "RUNTIME_DIR"):
        monkeypatch.setenv(f"XDG_{place}", str(tmp_path / place))
    monkeypatch.setenv("ENGINEHOUSE_PROFILE", str(tmp_path / "my pröfile 🏠"))
    return Folders.of()


@pytest.fixture
def as_owner() -> Callable[[str, Path], str]:
    """Runs Python code as somebody whom permission bits bind, which they do not bind root. Returns its output."""
    before: list[str] = []
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("permission bits do not bind root, and there is no setpriv to become less than root")
        rights = "-dac_override,-dac_read_search"
        before = [setpriv, f"--bounding-set={rights}", f"--inh-caps={rights}"]

    def run(code: str, path: Path) -> str:
        prelude = "import sys; from pathlib import Path; path = Path(sys.argv[1])\n"
        argv = [*before, sys.executable, "-c", prelude + code, str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
