"""What the person's environment comes to."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from enginehouse.commands.run import looser_than_wanted
from enginehouse.environment import Flags, launch_of, secrets_in, start_of
from enginehouse_core.profile.folders import Folders
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import UsageError
from enginehouse_protocol.ids import EngineName
from enginehouse_protocol.settings import SessionSettings

OPENAI = EngineName("openai_compatible")
ADDRESS = "http://127.0.0.1:1/v1"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "profile")


def provider_file(folders: Folders, name: str, text: str) -> None:
    folders.providers.mkdir(parents=True, exist_ok=True)
    folders.provider(name).write_text(text)


def test_without_any_word_the_default_engine_starts_with_nothing_set(folders: Folders) -> None:
    start = start_of(Flags(), folders, {"PATH": "/bin"})
    assert start.engine == OPENAI
    assert start.settings == SessionSettings()
    assert (start.launch.provider, start.launch.key, start.launch.secrets) == (None, None, {})


def test_flags_then_environment_then_settings(folders: Folders) -> None:
    folders.profile.mkdir()
    folders.settings.write_text('engine = "e0"\nmodel = "m0"\neffort = "f0"\nmode = "plan"\n')
    environment = {"ENGINEHOUSE_MODEL": "m1", "ENGINEHOUSE_EFFORT": "f1", "ENGINEHOUSE_ENGINE": "e1"}
    start = start_of(Flags(model="m2"), folders, environment)
    assert start.engine == "e1"
    assert start.settings == SessionSettings(model="m2", effort="f1", mode="plan")


def test_the_two_variables_are_a_provider_and_the_key_is_a_secret(folders: Folders) -> None:
    launch = launch_of(OPENAI, folders, {"OPENAI_API_KEY": "short", "OPENAI_BASE_URL": ADDRESS, "PATH": "/bin"})
    assert launch.provider == Provider(name="environment", base_url=ADDRESS)
    assert (launch.key, launch.secrets) == ("OPENAI_API_KEY", {"OPENAI_API_KEY": "short"})
    assert "OPENAI_API_KEY" not in launch.environment
    assert "short" not in repr(launch)


def test_a_key_goes_only_to_the_address_it_was_given_with(folders: Folders) -> None:
    provider_file(
        folders, "house", f'engine = "openai_compatible"\nbase_url = "{ADDRESS}"\napi_key_env = "HOUSE_KEY"\n'
    )
    environment = {"OPENAI_API_KEY": "sk-of-somebody-else", "HOUSE_KEY": "house-key-123"}
    launch = launch_of(OPENAI, folders, environment)
    assert launch.provider == Provider(name="house", base_url=ADDRESS)
    assert launch.key == "HOUSE_KEY"
    assert set(launch.secrets) == {"OPENAI_API_KEY", "HOUSE_KEY"}
    assert launch_of(OPENAI, folders, {"OPENAI_API_KEY": "sk-of-somebody-else"}).key is None


def test_the_options_of_the_file_for_the_address_in_the_environment_count_and_nothing_else_of_it(
    folders: Folders,
) -> None:
    provider_file(
        folders,
        "house",
        f'engine = "openai_compatible"\nbase_url = "{ADDRESS}/"\nmodel = "m"\napi_key_env = "HOUSE_KEY"\n'
        "[options]\nidle_timeout_s = 900\n",
    )
    provider_file(folders, "other", 'engine = "openai_compatible"\nbase_url = "http://other.test/v1"\n')
    environment = {"OPENAI_API_KEY": "sk-of-the-environment", "OPENAI_BASE_URL": ADDRESS, "HOUSE_KEY": "house-key-1"}
    launch = launch_of(OPENAI, folders, environment)
    assert launch.provider == Provider(name="environment", base_url=ADDRESS, options={"idle_timeout_s": 900})
    assert launch.key == "OPENAI_API_KEY"
    elsewhere = launch_of(OPENAI, folders, environment | {"OPENAI_BASE_URL": "http://127.0.0.1:2/v1"})
    assert elsewhere.provider == Provider(name="environment", base_url="http://127.0.0.1:2/v1")


def test_of_several_providers_the_one_called_default_is_used_else_the_person_is_asked_to_say(folders: Folders) -> None:
    for name in ("one", "two"):
        provider_file(folders, name, f'engine = "openai_compatible"\nbase_url = "{ADDRESS}"\n')
    provider_file(folders, "other", 'engine = "something_else"\n')
    with pytest.raises(UsageError, match="one, two"):
        launch_of(OPENAI, folders, {})
    provider_file(folders, "default", f'engine = "openai_compatible"\nbase_url = "{ADDRESS}"\nmodel = "m"\n')
    assert launch_of(OPENAI, folders, {}).provider == Provider(name="default", base_url=ADDRESS, model="m")


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "PGPASSWORD",
        "DB_PASSWD",
        "SERVICE_CREDENTIALS",
        "apikey",
    ],
)
def test_what_looks_like_a_credential_is_masked_and_no_command_gets_it(folders: Folders, name: str) -> None:
    launch = launch_of(OPENAI, folders, {name: "planted-value-1", "PATH": "/bin"})
    assert launch.secrets == {name: "planted-value-1"}
    assert launch.environment == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "environment",
    [
        {"TOKENIZERS": "short"},
        {"EDITOR": "a-long-enough-value"},
        {"GOOGLE_APPLICATION_CREDENTIALS": "/etc/passwd"},
    ],
)
def test_what_is_too_short_or_a_file_or_no_credential_is_not_masked(environment: Mapping[str, str]) -> None:
    assert secrets_in(environment) == {}


def test_a_variable_that_is_not_unicode_is_left_out(folders: Folders) -> None:
    launch = launch_of(OPENAI, folders, {"LC_ALL": "x\udcff", "PATH": "/bin", "A_TOKEN": "abcdefgh\udcff"})
    assert launch.environment == {"PATH": "/bin"}
    assert launch.secrets == {}


def test_a_mode_of_the_environment_that_is_stricter_than_the_session_is_said() -> None:
    wanted = {"ENGINEHOUSE_MODE": "plan"}
    assert "--mode plan changes it" in looser_than_wanted("yolo", Flags(), wanted)
    assert looser_than_wanted("plan", Flags(), wanted) == ""
    assert looser_than_wanted("yolo", Flags(mode="yolo"), wanted) == ""
    assert looser_than_wanted("default", Flags(), {"ENGINEHOUSE_MODE": "yolo"}) == ""


def test_the_password_in_an_address_is_a_secret_of_its_own() -> None:
    environment = {"DATABASE_URL": "postgres://app:pg-pass%2Bword@db/app", "DOCS_URL": "https://example.org/a:b@c"}
    found = secrets_in(environment)
    assert {"pg-pass%2Bword", "pg-pass+word"} <= set(found.values())
    assert "example.org" not in " ".join(found.values())


def test_each_engine_has_the_variables_its_own_programs_use_and_no_other_s(folders: Folders) -> None:
    environment = {
        "OPENAI_API_KEY": "sk-openai-0123456789",
        "OPENAI_BASE_URL": "https://models.example.com/v1",
        "ANTHROPIC_API_KEY": "sk-ant-0123456789abc",
        "ANTHROPIC_BASE_URL": "https://claude.example.com",
    }
    claude = launch_of(EngineName("claude"), folders, environment)
    assert (claude.key, claude.provider and claude.provider.base_url) == (
        "ANTHROPIC_API_KEY",
        "https://claude.example.com",
    )
    own = launch_of(EngineName("openai_compatible"), folders, environment)
    assert (own.key, own.provider and own.provider.base_url) == ("OPENAI_API_KEY", "https://models.example.com/v1")
    neither = launch_of(EngineName("rehearsal"), folders, environment)
    assert (neither.key, neither.provider) == (None, None)
