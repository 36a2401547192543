"""What a run starts from: environment, then settings; and what nobody said stays unsaid."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from enginehouse_core.profile.defaults import EXPIRES_AFTER_S, Defaults, defaults
from enginehouse_core.profile.folders import Folders
from enginehouse_core.profile.provider import provider_names, read_provider
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import ProfileInvalid, UsageError
from enginehouse_protocol.settings import SessionSettings

SETTINGS = """\
engine = "codex"
model = "small"
mode = "accept-edits"
permissions.expires_after_s = 60
turns.max_steps = 7
"""


def test_without_a_profile_nothing_is_said_and_nothing_is_made(folders: Folders) -> None:
    assert defaults(folders, {}) == Defaults()
    assert Defaults().session == SessionSettings(model=None, effort=None, mode=None)
    assert (Defaults().expires_after_s, Defaults().max_steps) == (EXPIRES_AFTER_S, None)
    assert provider_names(folders) == []
    assert read_provider(folders, "local") is None
    assert not folders.profile.exists()


def test_the_environment_goes_before_the_settings_key_by_key(folders: Folders) -> None:
    folders.create()
    folders.settings.write_text(SETTINGS)
    assert defaults(folders, {}) == Defaults(
        engine="codex",
        session=SessionSettings(model="small", mode="accept_edits"),
        expires_after_s=60,
        max_steps=7,
    )
    said = {"ENGINEHOUSE_ENGINE": "", "ENGINEHOUSE_MODEL": "large", "ENGINEHOUSE_EFFORT": "high"}
    assert defaults(folders, said) == Defaults(
        engine="codex",
        session=SessionSettings(model="large", effort="high", mode="accept_edits"),
        expires_after_s=60,
        max_steps=7,
    )
    assert defaults(folders, {"ENGINEHOUSE_ENGINE": "rehearsal"}).engine == "rehearsal"


@pytest.mark.parametrize("text", ["accept-edits", "accept_edits"])
def test_a_mode_may_be_written_both_ways(folders: Folders, text: str) -> None:
    assert defaults(folders, {"ENGINEHOUSE_MODE": text}).session.mode == "accept_edits"


def test_a_mode_that_does_not_exist_names_the_variable_and_those_that_do(folders: Folders) -> None:
    with pytest.raises(UsageError, match="ENGINEHOUSE_MODE must be one of plan, default, accept-edits, yolo"):
        defaults(folders, {"ENGINEHOUSE_MODE": "acceptEdits"})


def test_the_mode_default_is_not_the_same_as_no_mode(folders: Folders) -> None:
    assert defaults(folders, {"ENGINEHOUSE_MODE": "default"}).session.mode == "default"
    assert defaults(folders, {}).session.mode is None


def test_settings_with_a_mistake_are_not_half_used(folders: Folders) -> None:
    folders.create()
    folders.settings.write_text(SETTINGS.replace("7", "'seven'"))
    with pytest.raises(ProfileInvalid, match=r"settings\.toml: turns\.max_steps: input should be a valid integer"):
        defaults(folders, {})


def test_settings_that_cannot_be_read_are_not_taken_for_none(
    folders: Folders, as_owner: Callable[[str, Path], str]
) -> None:
    folders.create()
    folders.settings.write_text(SETTINGS)
    folders.profile.chmod(0o000)
    code = """
from enginehouse_core.profile.defaults import defaults
from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.errors import ProfileInvalid
try:
    defaults(Folders(path), {})
except ProfileInvalid as error:
    print(error.problem)
"""
    try:
        assert as_owner(code, folders.profile) == "cannot be read: permission denied"
    finally:
        folders.profile.chmod(0o700)


def test_a_provider_is_what_its_file_says(folders: Folders) -> None:
    folders.create()
    folders.providers.mkdir()
    folders.provider("local-1").write_text(
        'engine = "openai_compatible"\nbase_url = "http://localhost:1/v1"\napi_key_env = "LOCAL_KEY"\n'
        "[options]\ntemperature = 0\n"
    )
    (folders.providers / "Not A Name.toml").touch()
    (folders.providers / "notes.txt").touch()
    assert provider_names(folders) == ["local-1"]
    found = read_provider(folders, "local-1")
    assert found is not None
    assert (found.engine, found.api_key_env) == ("openai_compatible", "LOCAL_KEY")
    assert found.as_provider("local-1") == Provider(
        name="local-1", base_url="http://localhost:1/v1", options={"temperature": 0}
    )


def test_pydantic_is_loaded_only_for_a_file_that_exists(folders: Folders) -> None:
    code = (
        "import sys; from enginehouse_core.profile.defaults import defaults;"
        "from enginehouse_core.profile.folders import Folders; defaults(Folders.of(), {});"
        "print('pydantic' in sys.modules)"
    )

    def run() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        ).stdout

    assert run() == "False\n"
    folders.create()
    folders.settings.touch()
    assert run() == "True\n"
