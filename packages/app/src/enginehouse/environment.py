"""What the person's environment says: where the model is, what is secret, what a new session starts with.

Rule: the hub never reads these variables; they are resolved here, once, where the person sits. Precedence: flags, then
`ENGINEHOUSE_*`, then `settings.toml`. A key goes only to an address that was given together with it, and a stored one
is read only when its provider is the one to be used. A provider that was named goes before `OPENAI_BASE_URL`; where
that names the address of a provider file, the file's `options` count, and nothing else of it.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from enginehouse_core.profile.defaults import defaults
from enginehouse_core.profile.folders import Folders
from enginehouse_core.workspace.environment import looks_like_credential
from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import UsageError
from enginehouse_protocol.hub import Launch
from enginehouse_protocol.ids import EngineName
from enginehouse_protocol.settings import Mode, SessionSettings

if TYPE_CHECKING:
    from enginehouse_core.credentials.store import CredentialStore, StoreKind
    from enginehouse_core.profile.provider import ProviderFile

DEFAULT_ENGINE = EngineName("openai_compatible")
ENVIRONMENT_PROVIDER = "environment"
KEY, BASE_URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"
_VARIABLES = {
    DEFAULT_ENGINE: (KEY, BASE_URL),
    EngineName("claude"): ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
}
"""Where an engine's own programs look for their key and their address, so people have set them already."""
PROVIDER = "ENGINEHOUSE_PROVIDER"
NO_MODEL = (
    f"there is no model to talk to: add a provider with `enginehouse providers add`, or set {KEY}, or {BASE_URL} to an "
    "OpenAI-compatible server (one on this machine needs no key); `enginehouse demo` needs none of them"
)
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^\s@]+)@")
_SHORTEST_SECRET = 8


class SeveralProviders(UsageError):
    """Nobody said which of them is meant."""

    def __init__(self, what: str, names: tuple[str, ...]) -> None:
        super().__init__(
            f"the profile has several providers for {what}: {', '.join(names)}; say which with --provider or "
            f"{PROVIDER}, or call one of them default.toml"
        )
        self.names = names


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line said; None: nothing."""

    engine: str | None = None
    provider: str | None = None
    model: str | None = None
    effort: str | None = None
    mode: Mode | None = None

    @property
    def settings(self) -> SessionSettings:
        return SessionSettings(model=self.model, effort=self.effort, mode=self.mode)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Everything a new session starts from."""

    engine: EngineName
    settings: SessionSettings
    launch: Launch


def start_of(flags: Flags, folders: Folders, environment: Mapping[str, str]) -> Start:
    """Blocks.

    Raises:
        UsageError: a mode that is none, several providers and no word which, or one that is not there or not this
            engine's; its key is not where its file says.
        ProfileInvalid: a file of the profile cannot be understood.
    """
    found = defaults(folders, environment)
    provider = flags.provider or environment.get(PROVIDER) or None
    wanted = flags.engine or (_engine_of(provider, folders) if provider else None) or found.engine
    if provider is None and found.provider is not None:
        usual = _engine_of(found.provider, folders)
        wanted = wanted or usual
        if wanted == usual and not (wanted == DEFAULT_ENGINE and environment.get(BASE_URL)):
            provider = found.provider
    engine = EngineName(wanted or DEFAULT_ENGINE)
    return Start(
        engine=engine,
        settings=found.session.updated(flags.settings),
        launch=launch_of(engine, folders, environment, provider=provider),
    )


def launch_of(
    engine: EngineName, folders: Folders, environment: Mapping[str, str], *, provider: str | None = None
) -> Launch:
    """`provider`: the name of a provider of the profile; None: the one there is. Raises like `start_of`. Blocks."""
    chosen, key = _provider_of(engine, folders, environment, provider)
    secrets = secrets_in(environment)
    if key is not None:
        secrets[key[0]] = key[1]
    shown = {
        name: value
        for name, value in environment.items()
        if name not in secrets and well_formed(name + value) == name + value
    }
    return Launch(environment=shown, secrets=secrets, key=key[0] if key else None, provider=chosen)


def secrets_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Every variable that looks like a credential, and the password in one that holds an address, long enough to be
    masked. The path of a file that exists is none: it would be masked in every message that names it."""
    secrets: dict[str, str] = {}
    for name, value in environment.items():
        if well_formed(value) != value:
            continue
        if len(value) >= _SHORTEST_SECRET and looks_like_credential(name, value):
            if not (value.startswith("/") and os.path.exists(value)):
                secrets[name] = value
        for number, found in enumerate(_PASSWORD_IN_ADDRESS.findall(value)):
            for password in dict.fromkeys((found, unquote(found))):
                if len(password) >= _SHORTEST_SECRET:
                    secrets[f"{name}.password{number or ''}{'' if password == found else '.plain'}"] = password
    return secrets


def any_launch_of(engine: EngineName, folders: Folders, environment: Mapping[str, str]) -> Launch:
    """To ask the engine what it can, with nothing to be said to a model: where several providers would do, one of them.
    Raises like `start_of`. Blocks."""
    named = environment.get(PROVIDER) or None
    if named is not None and _engine_of(named, folders) == engine:
        return launch_of(engine, folders, environment, provider=named)
    try:
        return launch_of(engine, folders, environment)
    except SeveralProviders as several:
        return launch_of(engine, folders, environment, provider=several.names[0])


def stores_of(
    folders: Folders, environment: Mapping[str, str], *, waiting: Callable[[str], None] | None = None
) -> "Callable[[StoreKind], CredentialStore]":
    """The places for keys of this profile. `waiting`: what tells the person that the keyring waits for its password;
    without it they are told on stderr where there is a terminal, and else a locked keyring is not waited for."""
    from enginehouse.output import at_a_terminal, remark
    from enginehouse_core.credentials.system_keyring import SystemKeyring
    from enginehouse_core.credentials.unencrypted_file import UnencryptedFile

    def told(title: str) -> None:
        remark(f"waiting for the {title} to be unlocked; it asks in a window of its own")

    if waiting is None and at_a_terminal():
        waiting = told

    def store(kind: "StoreKind") -> "CredentialStore":
        if kind == "keyring":
            return SystemKeyring(folders.key, environment, waiting=waiting)
        return UnencryptedFile(folders)

    return store


_Key = tuple[str, str]
"""Its name in the record, and the key."""


def _engine_of(provider: str, folders: Folders) -> str:
    from enginehouse_core.profile.provider import provider_named

    return provider_named(folders, provider).engine


def _provider_of(
    engine: EngineName, folders: Folders, environment: Mapping[str, str], named: str | None
) -> tuple[Provider | None, _Key | None]:
    """Where the model is, and the key for it."""
    if named is not None:
        from enginehouse_core.profile.provider import provider_named

        file = provider_named(folders, named)
        if file.engine != engine:
            raise UsageError(f"provider {named!r} is for the engine {file.engine}, not for {engine}")
        return file.as_provider(named), _key_of(named, file, folders, environment)
    key, address = _VARIABLES.get(engine, ("", ""))
    own = (key, environment.get(key, ""))
    files = _provider_files(engine, folders)
    if base_url := environment.get(address):
        same = {name: file for name, file in files.items() if _is_same(file.base_url, base_url)}
        _, file = _the_one(same, f"{engine} at the address in {address}")
        options = dict(file.options) if file else {}
        return Provider(name=ENVIRONMENT_PROVIDER, base_url=base_url, options=options), own if own[1] else None
    name, file = _the_one(files, engine)
    if file is not None:
        return file.as_provider(name), _key_of(name, file, folders, environment)
    if own[1]:
        return Provider(name=ENVIRONMENT_PROVIDER), own
    return None, None


def _key_of(name: str, file: "ProviderFile", folders: Folders, environment: Mapping[str, str]) -> _Key | None:
    from enginehouse_core.credentials.provider_key import key_of

    found = key_of(name, file, environment, stores_of(folders, environment))
    return None if found is None else (found.name, found.value)


def _provider_files(engine: EngineName, folders: Folders) -> dict[str, "ProviderFile"]:
    if not folders.providers.is_dir():
        return {}
    from enginehouse_core.profile.provider import (  # pydantic, for those who have such files
        provider_names,
        read_provider,
    )

    files = {name: read_provider(folders, name) for name in provider_names(folders)}
    return {name: file for name, file in files.items() if file is not None and file.engine == engine}


def _the_one(files: dict[str, "ProviderFile"], what: str) -> "tuple[str, ProviderFile | None]":
    if len(files) > 1:
        files = {name: file for name, file in files.items() if name == "default"} or files
    if len(files) > 1:
        raise SeveralProviders(what, tuple(files))
    return next(iter(files.items()), ("", None))


def _is_same(address: str | None, other: str) -> bool:
    return address is not None and address.rstrip("/") == other.rstrip("/")
