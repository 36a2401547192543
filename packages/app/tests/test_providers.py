"""`enginehouse providers`, and where a run gets its model and its key from."""

import io
import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from credentials.desktop import Desktop, desktop_in

from enginehouse.cli import parse
from enginehouse.environment import Flags, any_launch_of, launch_of, start_of
from enginehouse_core.credentials.store import CredentialsUnusable, StoredKey
from enginehouse_core.credentials.unencrypted_file import NAME, UnencryptedFile
from enginehouse_core.profile.folders import Folders
from enginehouse_core.profile.provider import read_provider
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import EngineError, UsageError
from enginehouse_protocol.ids import EngineName

KEY = "planted-key-0123456789"
OPENAI = EngineName("openai_compatible")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    for name in list(os.environ):
        if name.endswith("_API_KEY") or name.startswith(("OPENAI_", "ENGINEHOUSE_", "DBUS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("ENGINEHOUSE_PROFILE", str(tmp_path / "profile"))
    return Folders.of()


@pytest.fixture
def run(folders: Folders, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    def run(*words: str, given: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        monkeypatch.setattr(sys, "argv", ["enginehouse", *words])
        command, parsed = parse(["providers", *words])
        code = command(parsed)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def test_a_known_name_is_enough_and_its_variable_holds_the_key(
    run: Run, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    code, _, told = run("add", "deepseek")
    assert code == 0
    file = read_provider(folders, "deepseek")
    assert file is not None
    assert (file.base_url, file.api_key_env, file.api_key_store) == (
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        None,
    )
    assert KEY not in folders.provider("deepseek").read_text() + told
    launch = launch_of(OPENAI, folders, dict(os.environ), provider="deepseek")
    assert launch.key is not None
    assert (launch.key, launch.secrets[launch.key]) == ("DEEPSEEK_API_KEY", KEY)


def test_a_server_of_ones_own_machine_needs_no_key_and_says_which_it_is(run: Run, folders: Folders) -> None:
    run("add", "ollama", "--model", "qwen3-coder")
    launch = launch_of(OPENAI, folders, {}, provider="ollama")
    assert launch.provider == Provider(
        name="ollama", base_url="http://127.0.0.1:11434/v1", model="qwen3-coder", options={"server": "ollama"}
    )
    assert launch.key is None


def test_without_a_keyring_a_key_is_refused_by_default_and_the_choices_are_named(run: Run, folders: Folders) -> None:
    with pytest.raises(CredentialsUnusable, match=r"nothing was stored.*--key-env.*--store unencrypted-file") as caught:
        run("add", "openrouter", "--key-stdin", given=f"{KEY}\n")
    assert KEY not in str(caught.value)
    assert read_provider(folders, "openrouter") is None
    assert not (folders.profile / NAME).exists()


def test_the_unencrypted_file_is_used_by_choice_only_and_called_what_it_is(run: Run, folders: Folders) -> None:
    _, _, told = run("add", "openrouter", "--key-stdin", "--store", "unencrypted-file", given=f"{KEY}\n")
    assert "unencrypted file" in told
    assert stat.S_IMODE((folders.profile / NAME).stat().st_mode) == 0o600
    launch = launch_of(OPENAI, folders, {}, provider="openrouter")
    assert (launch.key, launch.secrets) == ("openrouter.key", {"openrouter.key": KEY})
    assert KEY not in folders.provider("openrouter").read_text() + told + repr(launch)
    assert "unencrypted file" in run("list")[1]


def test_removing_a_provider_removes_its_key(run: Run, folders: Folders) -> None:
    for name in ("one", "two"):
        address = f"https://{name}.example.com/v1"
        run("add", name, "--base-url", address, "--key-stdin", "--store", "unencrypted-file", given=KEY)
    assert run("remove", "one")[0] == 0
    store = UnencryptedFile(folders)
    assert (store.read("one"), store.read("two")) == (
        None,
        StoredKey(address="https://two.example.com:443", value=KEY),
    )
    assert read_provider(folders, "one") is None
    run("remove", "two", "--keep-key")
    assert store.read("two") is not None


@pytest.mark.parametrize(
    "words,given,told",
    [
        (["add", "house"], "", "where is it"),
        (["add", "house", "--known", "nobody"], "", "there are: openai, openrouter"),
        (["add", "house", "--base-url", "https://h.example/v1"], "", "--key-stdin"),
        (["add", "house", "--base-url", "h.example/v1", "--no-key"], "", "base_url: must be an address"),
        (["add", "house", "--base-url", "https://h.example/v1", "--key-stdin"], "short", "5 characters"),
        (["add", "house", "--base-url", "https://h.example/v1", "--no-key", "--option", "x"], "", "KEY=VALUE"),
        (["add", "Not A Name", "--no-key"], "", "no provider name"),
        (["remove", "house"], "", "no provider 'house'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
    run: Run, folders: Folders, words: Sequence[str], given: str, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        run(*words, given=given)
    assert not folders.profile.exists()


def test_options_the_engine_does_not_know_are_refused(run: Run, folders: Folders) -> None:
    with pytest.raises(EngineError, match="frob"):
        run("add", "house", "--base-url", "https://h.example/v1", "--no-key", "--option", "frob=1")
    assert not folders.profile.exists()


def test_an_update_changes_what_is_said_and_keeps_the_rest(run: Run, folders: Folders) -> None:
    add = ["add", "house", "--base-url", "https://h.example/v1"]
    run(*add, "--key-env", "HOUSE_KEY", "--option", "max_retries=1", "--option", "ask_usage=false")
    with pytest.raises(UsageError, match="--update"):
        run(*add, "--no-key")
    run("add", "house", "--update", "--model", "m", "--option", "max_retries=2")
    file = read_provider(folders, "house")
    assert file is not None
    assert (file.base_url, file.api_key_env, file.model) == ("https://h.example/v1", "HOUSE_KEY", "m")
    assert file.options == {"max_retries": 2, "ask_usage": False}


def test_a_new_address_wants_the_key_to_be_given_again(run: Run, folders: Folders) -> None:
    run("add", "house", "--base-url", "https://h.example/v1", "--key-stdin", "--store", "unencrypted-file", given=KEY)
    with pytest.raises(UsageError, match="where is the key"):
        run("add", "house", "--update", "--base-url", "https://other.example/v1")
    run("add", "house", "--update", "--base-url", "https://h.example/v2")
    assert launch_of(OPENAI, folders, {}, provider="house").secrets == {"house.key": KEY}


def test_the_list_tells_where_each_key_is_and_goes_on_after_a_broken_file(run: Run, folders: Folders) -> None:
    run("add", "work", "--base-url", "https://w.example/v1", "--key-env", "WORK_KEY", "--model", "m")
    folders.provider("broken").write_text('base_url = "x"\n')
    lines = [json.loads(line) for line in run("list", "--json")[1].splitlines()]
    assert [line["name"] for line in lines] == ["broken", "work"]
    assert "is missing" in lines[0]["problem"]
    assert lines[1]["key"] == "WORK_KEY (not set)"
    assert "deepseek" in run("list", "--known")[1]


def test_a_named_provider_goes_before_the_variables_and_brings_its_engine(run: Run, folders: Folders) -> None:
    run("add", "house", "--base-url", "https://h.example/v1", "--key-env", "HOUSE_KEY")
    run("add", "play", "--engine", "rehearsal", "--no-key")
    environment = {"OPENAI_BASE_URL": "https://api.example/v1", "OPENAI_API_KEY": "sk-of-another", "HOUSE_KEY": KEY}
    start = start_of(Flags(provider="house"), folders, environment)
    assert start.launch.provider == Provider(name="house", base_url="https://h.example/v1")
    assert start.launch.key == "HOUSE_KEY"
    assert start_of(Flags(provider="play"), folders, {}).engine == "rehearsal"
    by_variable = start_of(Flags(), folders, environment | {"ENGINEHOUSE_PROVIDER": "house"})
    assert by_variable.launch.provider == start.launch.provider
    with pytest.raises(UsageError, match="for the engine rehearsal"):
        start_of(Flags(provider="play", engine="openai_compatible"), folders, {})
    with pytest.raises(UsageError, match="it has: house, play"):
        start_of(Flags(provider="nobody"), folders, {})


def test_the_provider_of_the_settings_counts_where_nothing_nearer_says_another(run: Run, folders: Folders) -> None:
    run("add", "house", "--base-url", "https://h.example/v1", "--no-key")
    run("add", "other", "--base-url", "https://o.example/v1", "--no-key")
    run("add", "play", "--engine", "rehearsal", "--no-key")
    folders.settings.write_text('provider = "house"\n')

    def chosen(flags: Flags, environment: dict[str, str]) -> str | None:
        provider = start_of(flags, folders, environment).launch.provider
        return provider and provider.name

    assert chosen(Flags(), {}) == "house"
    assert chosen(Flags(provider="other"), {}) == "other"
    assert chosen(Flags(), {"ENGINEHOUSE_PROVIDER": "other"}) == "other"
    assert chosen(Flags(), {"OPENAI_BASE_URL": "https://e.example/v1"}) == "environment"
    assert chosen(Flags(engine="rehearsal"), {}) == "play"
    folders.settings.write_text('provider = "play"\n')
    assert start_of(Flags(), folders, {}).engine == "rehearsal"


def test_engines_are_asked_with_one_of_several_providers_rather_than_not_at_all(run: Run, folders: Folders) -> None:
    for name in ("one", "two"):
        run("add", name, "--base-url", f"https://{name}.example/v1", "--no-key")
    chosen = any_launch_of(OPENAI, folders, {}).provider
    assert chosen is not None
    assert chosen.name == "one"
    chosen = any_launch_of(OPENAI, folders, {"ENGINEHOUSE_PROVIDER": "two"}).provider
    assert chosen is not None
    assert chosen.name == "two"
    assert any_launch_of(EngineName("rehearsal"), folders, {"ENGINEHOUSE_PROVIDER": "two"}).provider is None


def test_the_only_provider_is_used_without_a_word_and_only_its_key_is_read(run: Run, folders: Folders) -> None:
    run("add", "house", "--base-url", "https://h.example/v1", "--key-stdin", "--store", "unencrypted-file", given=KEY)
    (folders.profile / NAME).chmod(0o644)  # reading it would raise
    assert launch_of(OPENAI, folders, {"OPENAI_BASE_URL": "https://api.example/v1"}).key is None
    with pytest.raises(CredentialsUnusable, match="chmod 600"):
        launch_of(OPENAI, folders, {})


@pytest.fixture
def desktop(tmp_path: Path) -> Desktop:
    return desktop_in(tmp_path)


def enginehouse(desktop: Desktop, *words: str, given: str = "") -> tuple[int, str]:
    done = desktop.run(sys.executable, "-P", "-m", "enginehouse", *words, given=given)
    assert KEY not in done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_real_keyring_keeps_the_key_from_add_to_remove(desktop: Desktop) -> None:
    code, told = enginehouse(desktop, "providers", "add", "openrouter", "--key-stdin", given=f"{KEY}\n")
    assert code == 0, told
    assert "Secret Service" in told
    written = b"".join(path.read_bytes() for path in desktop.home.rglob("*") if path.is_file())
    assert KEY.encode() not in written
    read = (
        "import os\nfrom enginehouse.environment import launch_of\n"
        "from enginehouse_core.profile.folders import Folders\n"
        "from enginehouse_protocol.ids import EngineName\n"
        "launch = launch_of(EngineName('openai_compatible'), Folders.of(), dict(os.environ), provider='openrouter')\n"
        f"print(launch.key, launch.secrets == {{'openrouter.key': {KEY!r}}})"
    )
    done = desktop.run(sys.executable, "-P", "-c", read)
    assert done.stdout.strip() == "openrouter.key True", done.stderr
    code, told = enginehouse(desktop, "providers", "remove", "openrouter")
    assert code == 0, told
    assert "gone from Secret Service" in told
    assert "no providers yet" in enginehouse(desktop, "providers", "list")[1]
