"""The unencrypted file, and whom a key is given to."""

import os
import stat
from pathlib import Path

import pytest

from enginehouse_core.credentials.provider_key import ProviderKey, key_of
from enginehouse_core.credentials.store import (
    CredentialStore,
    CredentialsUnusable,
    StoredKey,
    StoreKind,
    checked_key,
    origin,
)
from enginehouse_core.credentials.system_keyring import SystemKeyring
from enginehouse_core.credentials.unencrypted_file import UnencryptedFile
from enginehouse_core.profile.folders import Folders
from enginehouse_core.profile.provider import (
    ProviderFile,
    provider_named,
    provider_names,
    read_provider,
    remove_provider,
    write_provider,
)
from enginehouse_protocol.errors import ProfileInvalid, UsageError

KEY = StoredKey(address="https://models.example.com:443", value="planted-key-0123456789")
HOUSE = ProviderFile(
    engine="openai_compatible", base_url="https://models.example.com/v1", api_key_store="unencrypted_file"
)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "profile")


@pytest.fixture
def store(folders: Folders) -> UnencryptedFile:
    return UnencryptedFile(folders)


def test_a_key_is_kept_for_its_owner_alone_in_a_file_that_says_what_it_is(store: UnencryptedFile) -> None:
    store.write("house", KEY)
    assert (store.read("house"), store.read("other")) == (KEY, None)
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o600
    assert "Not encrypted" in store.path.read_text().splitlines()[0]
    assert "unencrypted" in store.title
    assert "unencrypted" in store.path.name


def test_removing_one_key_keeps_the_others(store: UnencryptedFile) -> None:
    store.write("house", KEY)
    store.write("other", KEY)
    assert (store.delete("house"), store.delete("house")) == (True, False)
    assert (store.read("house"), store.read("other")) == (None, KEY)


def test_a_file_that_others_can_read_is_not_read_and_not_added_to(store: UnencryptedFile) -> None:
    store.write("house", KEY)
    store.path.chmod(0o640)
    for use in (lambda: store.read("house"), lambda: store.write("house", KEY), lambda: store.delete("house")):
        with pytest.raises(CredentialsUnusable, match="chmod 600"):
            use()


def in_file(folders: Folders) -> "dict[StoreKind, CredentialStore]":
    return {"unencrypted_file": UnencryptedFile(folders), "keyring": SystemKeyring(folders.key, {"PATH": "/bin"})}


def test_a_variable_that_is_set_goes_before_the_store(folders: Folders, store: UnencryptedFile) -> None:
    store.write("house", KEY)
    both = HOUSE.model_copy(update={"api_key_env": "HOUSE_KEY"})
    stores = in_file(folders).__getitem__
    found = key_of("house", both, {"HOUSE_KEY": "from-the-shell"}, stores)
    assert found == ProviderKey(name="HOUSE_KEY", value="from-the-shell")
    assert key_of("house", both, {}, stores) == ProviderKey(name="house.key", value=KEY.value)
    assert KEY.value not in repr(key_of("house", both, {}, stores))


def test_a_stored_key_goes_to_no_other_address_than_the_one_it_was_given_for(
    folders: Folders, store: UnencryptedFile
) -> None:
    store.write("house", KEY)
    moved = HOUSE.model_copy(update={"base_url": "https://elsewhere.example.com/v1"})
    with pytest.raises(CredentialsUnusable, match=r"was stored for https://models\.example\.com:443") as caught:
        key_of("house", moved, {}, in_file(folders).__getitem__)
    assert KEY.value not in str(caught.value)
    same = HOUSE.model_copy(update={"base_url": "https://models.example.com:443/api/v2/"})
    assert key_of("house", same, {}, in_file(folders).__getitem__) is not None


def test_a_key_that_is_not_there_is_said_with_what_to_do(folders: Folders) -> None:
    with pytest.raises(CredentialsUnusable, match="holds no key of provider 'house'; store it again"):
        key_of("house", HOUSE, {}, in_file(folders).__getitem__)
    ring = HOUSE.model_copy(update={"api_key_store": "keyring"})
    with pytest.raises(CredentialsUnusable, match=r"there is none .* --key-env"):
        key_of("house", ring, {}, in_file(folders).__getitem__)
    assert key_of("house", HOUSE.model_copy(update={"api_key_store": None}), {}, in_file(folders).__getitem__) is None


@pytest.mark.parametrize("text", ["", "  \n", "short", "with space inside", "schlüssel-schlüssel", "two\nlines-of-it"])
def test_what_cannot_be_a_key_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_key(text)
    assert not text.strip() or text.strip() not in str(caught.value)


def test_a_key_loses_the_line_break_of_its_pipe() -> None:
    assert checked_key("planted-key-0123456789\n") == "planted-key-0123456789"


@pytest.mark.parametrize(
    "address,expected",
    [
        (None, ""),
        ("https://a.example/v1", "https://a.example:443"),
        ("http://[::1]:8080/v1", "http://[::1]:8080"),
        ("http://127.0.0.1/v1", "http://127.0.0.1:80"),
    ],
)
def test_an_origin_is_scheme_host_and_port(address: str | None, expected: str) -> None:
    assert origin(address) == expected


def test_a_provider_is_written_changed_and_removed(folders: Folders) -> None:
    said = {"engine": "openai_compatible", "base_url": "https://models.example.com/v1", "options": {"a": 1, "b": 2}}
    write_provider(folders, "house", said)
    assert provider_names(folders) == ["house"]
    with pytest.raises(UsageError, match="already"):
        write_provider(folders, "house", said)
    changed = write_provider(folders, "house", {"model": "m", "base_url": None, "options": {"b": 3}}, update=True)
    assert changed == read_provider(folders, "house")
    assert changed == ProviderFile(engine="openai_compatible", model="m", options={"a": 1, "b": 3})
    remove_provider(folders, "house")
    assert provider_names(folders) == []
    with pytest.raises(UsageError, match="no provider 'house'"):
        remove_provider(folders, "house")


def test_what_is_no_provider_is_not_written(folders: Folders) -> None:
    with pytest.raises(ProfileInvalid, match="base_url"):
        write_provider(folders, "house", {"engine": "openai_compatible", "base_url": "models.example.com"})
    assert not folders.provider("house").exists()


def test_a_provider_that_is_not_there_is_told_with_those_that_are(folders: Folders) -> None:
    write_provider(folders, "house", {"engine": "openai_compatible"})
    with pytest.raises(UsageError, match="no provider 'hous'; it has: house"):
        provider_named(folders, "hous")
