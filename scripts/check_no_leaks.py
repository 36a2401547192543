"""Finds what must not be committed: paths of the machine it was made on, package registries, secrets.

Rule: machine paths are not listed here, they are found out where the check runs. A line that must keep one
says `leak-check: allow` and why, or its file stands in `SAMPLES`.

    python scripts/check_no_leaks.py [FILE…]      without FILE: every file git knows or would add
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WAIVER = "leak-check: allow"
SAMPLES = frozenset(
    (
        "packages/app/tests/test_leaving.py",
        "packages/core/tests/test_masking.py",
        "packages/core/tests/workspace/test_environment.py",
        "packages/engines/tests/openai_compatible/test_engine.py",
        "packages/hosts/tests/terminal/test_address.py",
        "packages/hosts/tests/terminal/test_conversation.py",
        "profile-schema/fixtures/invalid/provider/key_by_its_looks.toml",
        "profile-schema/fixtures/invalid/provider/password_in_the_address.toml",
        "tests/end_to_end/test_hub_process.py",
        "tests/end_to_end/test_secrets.py",
    )
)
"""Files, relative to the root, whose content is sample data that only looks like a leak."""
LARGEST_BYTES = 4 * 1024 * 1024
EVERYBODYS = {Path("/"), Path(tempfile.gettempdir()).resolve(), Path("/home"), Path("/Users")}
PLACES = {ROOT, ROOT.parent, Path.home()} - EVERYBODYS

REGISTRY = re.compile(
    r"\b(?:pypi|pythonhosted|npmjs|yarnpkg|crates|rubygems|conda|anaconda)\.(?:org|com|io|cloud)\b",
    re.IGNORECASE,
)
SECRETS = {
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    "an API key": re.compile(r"\bsk-(?:ant-|proj-|svcacct-)?(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{32,}"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})\b"),
    "a GitLab token": re.compile(r"\bglpat-[\w-]{20,}"),
    "an AWS key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a Slack token": re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}"),
    "a password in an address": re.compile(r"\bhttps?://[^\s/:@\"'`<>{}$]+:[^\s/:@\"'`<>{}$]+@[\w.-]+"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fail on machine paths, package registries, secrets.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    files = parser.parse_args(arguments).files or list(known_files())
    leaks = [leak for file in files for leak in leaks_in(file)]
    for leak in leaks:
        print(leak, file=sys.stderr)
    if leaks:
        print(f"{len(leaks)} leaks; see the head of scripts/check_no_leaks.py", file=sys.stderr)
    return 1 if leaks else 0


def known_files() -> Iterator[Path]:
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60).stdout
    for name in listed.split(b"\0"):
        if name:
            yield ROOT / name.decode(errors="surrogateescape")


def leaks_in(file: Path) -> Iterator[str]:
    """Yield `file:line: what it is`. Never the secret itself: this is printed into logs."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size > LARGEST_BYTES:
        return
    content = file.read_bytes()
    shown = file.resolve().relative_to(ROOT) if file.resolve().is_relative_to(ROOT) else file
    if b"\0" in content or str(shown) in SAMPLES:
        return
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        if WAIVER in line:
            continue
        if REGISTRY.search(line):
            yield f"{shown}:{number}: a package registry's host"
        for place in machine_paths(line):
            yield f"{shown}:{number}: a path of this machine: {place}"
        for what, pattern in SECRETS.items():
            if pattern.search(line):
                yield f"{shown}:{number}: {what}"


def machine_paths(line: str) -> Iterator[str]:
    """Yield paths of this checkout, of its neighbours, of this home; made-up ones are samples, no leaks."""
    for folder in PLACES:
        for found in re.finditer(rf"(?<![\w.~$}}-]){re.escape(str(folder))}/[\w.+-]+", line):
            if Path(found[0]).exists():
                yield found[0]


if __name__ == "__main__":
    sys.exit(main())
