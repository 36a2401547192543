"""What a person waits for before anything happens."""

import subprocess
import sys

import pytest

from end_to_end.person import Person

HEAVY = ("anyio", "msgspec", "pydantic", "rich", "ctypes", "asyncio", "typing", "logging", "subprocess", "shutil")


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["--version"], ["run", "--help"], ["hub", "serve", "--help"], ["sessions", "check", "--help"]],
)
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    looked = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "enginehouse", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = {line.rpartition("|")[2].strip() for line in looked.stderr.splitlines()}
    bare = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import argparse, runpy"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    given = {line.rpartition("|")[2].strip() for line in bare.stderr.splitlines()}
    assert "enginehouse" in loaded
    assert sorted((loaded - given) & set(HEAVY)) == []
    assert not [name for name in loaded if name.startswith(("enginehouse_core", "enginehouse_protocol"))]


def test_a_command_that_talks_to_the_hub_loads_neither_core_nor_engines(person: Person) -> None:
    """It waits for a process that has them loaded."""
    looked = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "enginehouse", "run", "--engine", "rehearsal", "hello"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=person.project,
        env=person.environment,
    )
    loaded = {line.rpartition("|")[2].strip() for line in looked.stderr.splitlines() if "import time:" in line}
    assert "enginehouse_hosts.client" in loaded
    unwanted = ("enginehouse_core.hub", "enginehouse_engines", "enginehouse.wiring", "pydantic", "openai", "aiohttp")
    assert sorted(loaded & set(unwanted)) == []


def test_the_version_is_the_packages_own(person: Person) -> None:
    from importlib.metadata import version

    assert person.runs("--version").out == f"enginehouse {version('enginehouse')}\n"


def test_bare_enginehouse_prints_short_help(person: Person) -> None:
    ended = person.runs()
    assert ended.code == 0
    for command in ("run", "sessions", "hub", "engines", "profile", "permissions", "doctor", "demo"):
        assert f"\n    {command}" in ended.out
    assert len(ended.out.splitlines()) < 40
    assert not any(person.home.glob("profile"))
