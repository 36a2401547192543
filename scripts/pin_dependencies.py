"""Pins every version the workspace can install, transitive ones, extras, groups and build backends included.

Rule: the pins are the lists `constraint-dependencies` and `build-constraint-dependencies` of the root
`pyproject.toml`, and nobody edits those by hand. `uv.lock` is not kept: it repeats where packages came from,
and that differs from machine to machine.

    uv run --group dev python scripts/pin_dependencies.py             add what is new, keep what is pinned
    uv run --group dev python scripts/pin_dependencies.py --upgrade   take the newest of everything
    uv run --group dev python scripts/pin_dependencies.py --check     exit 1 if a plain run would change a pin
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import tomlkit
from packaging.markers import Environment, default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
RUNTIME, BUILD = "constraint-dependencies", "build-constraint-dependencies"
OLDEST_PYTHON = "3.11"
PLAIN = ("--no-header", "--no-annotate")
EVERYTHING = ("--all-packages", "--all-extras", "--all-groups", "--no-hashes", "--no-emit-workspace")
EDITABLE = "editables"
"""What hatchling may ask for while it builds an editable wheel; no `requires` names it."""


@dataclass(frozen=True, kw_only=True)
class Pins:
    """Requirements of the form `name==version ; marker`, sorted by name."""

    runtime: tuple[str, ...]
    build: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Pin every dependency in the root pyproject.toml.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--upgrade", action="store_true", help="forget the pins first")
    choice.add_argument("--check", action="store_true", help="change nothing, fail on drift")
    options = parser.parse_args(arguments)
    current = pins_of(ROOT)
    try:
        wanted = resolve(keep_pins=not options.upgrade)
    except subprocess.CalledProcessError as failure:
        print(f"{' '.join(failure.cmd)} failed:\n{failure.stderr}", file=sys.stderr)
        return 1
    if options.check:
        return check(current, wanted)
    if wanted != current:
        write(ROOT / "pyproject.toml", wanted)
    print(f"pinned {len(wanted.runtime)} packages, and {len(wanted.build)} for builds")
    return 0


def pins_of(workspace: Path) -> Pins:
    """What `pyproject.toml` pins now. A list that is missing counts as empty."""
    settings = tomllib.loads((workspace / "pyproject.toml").read_text())["tool"]["uv"]
    return Pins(runtime=tuple(settings.get(RUNTIME, ())), build=tuple(settings.get(BUILD, ())))


def resolve(*, keep_pins: bool) -> Pins:
    """Resolve in a copy that holds only manifests, so nothing here changes and no old lock is consulted."""
    with tempfile.TemporaryDirectory(prefix="enginehouse-pins-") as folder:
        copy = Path(folder)
        for manifest in (ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))):
            target = copy / manifest.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(manifest, target)
        if not keep_pins:
            write(copy / "pyproject.toml", Pins(runtime=(), build=()))
        uv(copy, "lock")
        must_have_wheels(tomllib.loads((copy / "uv.lock").read_text()))
        runtime = uv(copy, "export", "--frozen", *EVERYTHING, *PLAIN)
        return Pins(runtime=in_order(runtime), build=build_pins(copy))


def build_pins(workspace: Path) -> tuple[str, ...]:
    backends = {EDITABLE}
    for manifest in workspace.glob("packages/*/pyproject.toml"):
        backends.update(tomllib.loads(manifest.read_text())["build-system"]["requires"])
    (workspace / "backends.in").write_text("\n".join(sorted(backends)) + "\n")
    (workspace / "backends.pins").write_text("\n".join(pins_of(workspace).build) + "\n")
    where = ("--universal", "--python-version", OLDEST_PYTHON, "--constraints", "backends.pins")
    return in_order(uv(workspace, "pip", "compile", *where, *PLAIN, "backends.in"))


def uv(workspace: Path, *arguments: str) -> str:
    command = ("uv", *arguments, "--quiet", "--no-progress")
    done = subprocess.run(command, cwd=workspace, check=True, capture_output=True, text=True, timeout=600)
    return done.stdout


def must_have_wheels(lock: dict[str, Any]) -> None:
    """A package that has to be built brings a build backend whose version nothing here would pin."""
    for package in cast("list[dict[str, Any]]", lock["package"]):
        if "registry" in package["source"] and not package.get("wheels"):
            sys.exit(f"{package['name']} has no wheel: choose a version with one")


def in_order(exported: str) -> tuple[str, ...]:
    lines = (line.strip() for line in exported.splitlines())
    return tuple(sorted(line for line in lines if line and not line.startswith("#")))


def write(manifest: Path, pins: Pins) -> None:
    document = tomlkit.parse(manifest.read_text())
    settings = cast("dict[str, Any]", document["tool"]["uv"])
    for key, lines in ((RUNTIME, pins.runtime), (BUILD, pins.build)):
        pinned = tomlkit.array()
        pinned.extend(lines)
        settings[key] = pinned.multiline(True)
    manifest.write_text(tomlkit.dumps(document))


def check(current: Pins, wanted: Pins) -> int:
    """Compare what would be installed, not how markers are spelled: another uv may spell them differently."""
    drift: dict[str, list[str]] = {}
    for where, environment in environments():
        for kind, before, after in (
            ("", current.runtime, wanted.runtime),
            ("for builds ", current.build, wanted.build),
        ):
            old, new = installed(before, environment), installed(after, environment)
            for line in sorted(old ^ new):
                what = "is not pinned" if line in new else "is pinned, but not wanted"
                drift.setdefault(f"{line} {kind}{what}", []).append(where)
    for fact, places in drift.items():
        print(f"{fact}: {places[0]}, and {len(places) - 1} more kinds of machine", file=sys.stderr)
    if drift:
        print("run: uv run --group dev python scripts/pin_dependencies.py", file=sys.stderr)
    return 1 if drift else 0


def environments() -> Iterable[tuple[str, Environment]]:
    """Every machine the project supports: Linux and macOS, each Python, both processors."""
    for minor, platform, machine in product(range(11, 15), ("linux", "darwin"), ("x86_64", "arm64")):
        environment = default_environment()
        environment["python_version"] = f"3.{minor}"
        environment["python_full_version"] = f"3.{minor}.0"
        environment["sys_platform"] = platform
        environment["platform_system"] = {"linux": "Linux", "darwin": "Darwin"}[platform]
        environment["platform_machine"] = machine
        yield f"Python 3.{minor} on {platform} {machine}", environment


def installed(pins: Iterable[str], environment: Environment) -> set[str]:
    found: set[str] = set()
    for requirement in map(Requirement, pins):
        if requirement.marker is None or requirement.marker.evaluate(cast("dict[str, str]", environment)):
            found.add(f"{requirement.name}{requirement.specifier}")
    return found


if __name__ == "__main__":
    sys.exit(main())
