"""What the person's environment says: where the model is, what is secret, what a new session starts with.

Rule: the hub never reads these variables; they are resolved here, once, where the person sits. Precedence: flags, then
`ENGINEHOUSE_*`, then `settings.toml`. A key goes only to an address that was given together with it. Where
`OPENAI_BASE_URL` names the address of a provider file, that file's `options` count, and nothing else of it.
"""

import os
import re
from collections.abc import Mapping
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
    from enginehouse_core.profile.provider import ProviderFile

DEFAULT_ENGINE = EngineName("openai_compatible")
ENVIRONMENT_PROVIDER = "environment"
KEY, BASE_URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^\s@]+)@")
_SHORTEST_SECRET = 8


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line said; None: nothing."""

    engine: str | None = None
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
        UsageError: a mode that is none, or several providers and no word which.
        ProfileInvalid: a file of the profile cannot be understood.
    """
    found = defaults(folders, environment)
    engine = EngineName(flags.engine or found.engine or DEFAULT_ENGINE)
    return Start(
        engine=engine,
        settings=found.session.updated(flags.settings),
        launch=launch_of(engine, folders, environment),
    )


def launch_of(engine: EngineName, folders: Folders, environment: Mapping[str, str]) -> Launch:
    """Raises like `start_of`. Blocks."""
    provider, key = _provider_of(engine, folders, environment)
    secrets = secrets_in(environment)
    if key is not None and (value := environment.get(key)):
        secrets[key] = value
    else:
        key = None
    shown = {
        name: value
        for name, value in environment.items()
        if name not in secrets and well_formed(name + value) == name + value
    }
    return Launch(environment=shown, secrets=secrets, key=key, provider=provider)


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


def _provider_of(
    engine: EngineName, folders: Folders, environment: Mapping[str, str]
) -> tuple[Provider | None, str | None]:
    """Where the model is, and the name of the variable that holds its key."""
    files = _provider_files(engine, folders)
    if engine == DEFAULT_ENGINE and (base_url := environment.get(BASE_URL)):
        same = {name: file for name, file in files.items() if _is_same(file.base_url, base_url)}
        _, file = _the_one(same, f"{engine} at the address in {BASE_URL}")
        return Provider(name=ENVIRONMENT_PROVIDER, base_url=base_url, options=dict(file.options) if file else {}), KEY
    name, file = _the_one(files, engine)
    if file is not None:
        return file.as_provider(name), file.api_key_env
    if engine == DEFAULT_ENGINE and environment.get(KEY):
        return Provider(name=ENVIRONMENT_PROVIDER), KEY
    return None, None


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
        raise UsageError(
            f"the profile has several providers for {what}: {', '.join(files)}; call one of them default.toml"
        )
    return next(iter(files.items()), ("", None))


def _is_same(address: str | None, other: str) -> bool:
    return address is not None and address.rstrip("/") == other.rstrip("/")
