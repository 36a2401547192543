"""`enginehouse providers`: where the models are, and their keys.

Rule: everything that can be wrong with a call is found before a key is asked for; the key is stored, and read back,
before the provider is written; and it is in no argument, no message and no file but the one that was chosen for it.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio

from enginehouse.environment import DEFAULT_ENGINE, stores_of
from enginehouse.output import at_a_terminal, put_listing, remark
from enginehouse_core.credentials.store import CredentialsUnusable, StoredKey, StoreKind, checked_key, origin
from enginehouse_core.profile.document import checked
from enginehouse_core.profile.folders import Folders, checked_name
from enginehouse_core.profile.provider import (
    ProviderFile,
    provider_named,
    provider_names,
    read_provider,
    remove_provider,
    write_provider,
)
from enginehouse_engines.openai_compatible.known_providers import KNOWN, KnownProvider
from enginehouse_protocol.errors import ProfileInvalid, UsageError
from enginehouse_protocol.permissions import JsonObject

_STORES: dict[str, StoreKind] = {"keyring": "keyring", "unencrypted-file": "unencrypted_file"}
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_MOST_KEY = 65_536
_SHOWN_MODELS = 3


# --- adding -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _KeyPlan:
    """Where the key will be. Both None: nowhere, it needs none, or what is there stays."""

    variable: str | None = None
    value: str | None = None


def add_provider(arguments: argparse.Namespace) -> int:
    environment = dict(os.environ)
    folders = Folders.of(environment)
    name = checked_name(arguments.name, "provider")
    before = read_provider(folders, name)
    if before is not None and not arguments.update:
        raise UsageError(f"there is a provider {name!r} already; say --update to change it")
    known = _known(arguments, before)
    said = _said(arguments, known, before)
    wanted = _as_it_will_be(folders, name, said, before)
    plan = _key_plan(arguments, name, known, wanted, before)
    stored_in: StoreKind | None = None
    if plan.value is not None:
        stored_in = _STORES[arguments.store or "keyring"]
        _store(folders, name, wanted, stored_in, plan.value)
    if plan.variable is not None or plan.value is not None or arguments.no_key:
        said |= {"api_key_env": plan.variable, "api_key_store": stored_in}
    try:
        write_provider(folders, name, said, update=arguments.update)
    except Exception:
        if stored_in is not None and before is None:
            stores_of(folders, environment)(stored_in).delete(name)
        raise
    _tell(folders, name, provider_named(folders, name))
    return 0


def _known(arguments: argparse.Namespace, before: ProviderFile | None) -> KnownProvider | None:
    if arguments.known is not None:
        if arguments.known not in KNOWN:
            raise UsageError(f"no known provider {arguments.known!r}; there are: {', '.join(KNOWN)}")
        return KNOWN[arguments.known]
    by_name = before is None and arguments.base_url is None and (arguments.engine or DEFAULT_ENGINE) == DEFAULT_ENGINE
    return KNOWN.get(arguments.name) if by_name else None


def _said(arguments: argparse.Namespace, known: KnownProvider | None, before: ProviderFile | None) -> dict[str, Any]:
    """What goes into the file, the key left out."""
    said: dict[str, Any] = {}
    if arguments.engine is not None or before is None:
        said["engine"] = arguments.engine or DEFAULT_ENGINE
    if (base_url := arguments.base_url or (known.base_url if known else None)) is not None:
        said["base_url"] = base_url.rstrip("/")
    elif before is None and said["engine"] == DEFAULT_ENGINE:
        raise UsageError(f"where is it? say --base-url, or one of these names: {', '.join(KNOWN)}")
    if arguments.model is not None:
        said["model"] = arguments.model
    options = dict(_option(text) for text in arguments.options)
    if known is not None and known.local:
        options.setdefault("server", known.name)  # an address of this machine does not tell
    if options:
        said["options"] = options
    return said


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"an option is KEY=VALUE, not {name!r} alone")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _as_it_will_be(folders: Folders, name: str, said: dict[str, Any], before: ProviderFile | None) -> ProviderFile:
    """Raises: UsageError: it would be no provider, or its engine does not understand its options."""
    data = {} if before is None else before.model_dump(exclude_none=True)
    data["options"] = {**data.get("options", {}), **said.get("options", {})}
    try:
        wanted = checked(
            folders.provider(name), {**data, **{k: v for k, v in said.items() if k != "options"}}, ProviderFile
        )
    except ProfileInvalid as error:
        raise UsageError(error.problem) from error
    if wanted.engine == DEFAULT_ENGINE:
        from enginehouse_engines.openai_compatible.options import options_of

        options_of(wanted.as_provider(name))
    return wanted


def _key_plan(
    arguments: argparse.Namespace,
    name: str,
    known: KnownProvider | None,
    wanted: ProviderFile,
    before: ProviderFile | None,
) -> _KeyPlan:
    """Raises: UsageError: nobody said where the key is, and nobody can be asked."""
    if arguments.no_key:
        return _KeyPlan()
    if arguments.key_env is not None:
        return _KeyPlan(variable=arguments.key_env)
    if arguments.key_stdin:
        return _KeyPlan(value=_key_from_stdin())
    says_nothing = arguments.store is None
    if known is not None and known.local and says_nothing:
        return _KeyPlan()
    if before is not None and says_nothing and origin(before.base_url) == origin(wanted.base_url):
        return _KeyPlan()
    variable = known.key_variable if known else None
    if at_a_terminal():
        return _asked(name, known, variable if says_nothing else None)
    if variable is not None and os.environ.get(variable) and says_nothing:
        return _KeyPlan(variable=variable)
    raise UsageError(
        "where is the key? --key-stdin reads it from a pipe, --key-env names the variable that holds it, "
        "--no-key says that none is needed"
    )


def _asked(name: str, known: KnownProvider | None, variable: str | None) -> _KeyPlan:
    import getpass

    if known is not None and known.keys_page:
        remark(f"A key for {known.title}: {known.keys_page}")
    instead = f"nothing: the key is in {variable}" if variable else "nothing: it needs none"
    given = getpass.getpass(f"Key of {name} (it is not shown; {instead}): ", stream=sys.stderr)
    if not given.strip():
        return _KeyPlan(variable=variable)
    return _KeyPlan(value=checked_key(given))


def _key_from_stdin() -> str:
    if sys.stdin is None:
        raise UsageError("there is no stdin to read the key from")
    return checked_key(sys.stdin.buffer.read(_MOST_KEY).decode("utf-8", "replace"))


def _store(folders: Folders, name: str, wanted: ProviderFile, kind: StoreKind, value: str) -> None:
    store = stores_of(folders, os.environ)(kind)
    address = origin(wanted.base_url)
    try:
        store.write(name, StoredKey(address=address, value=value))
    except CredentialsUnusable as error:
        if kind != "keyring":
            raise
        raise CredentialsUnusable(
            f"{error}; nothing was stored. Choose: --key-env VAR keeps the key in a variable of yours, "
            "--store unencrypted-file writes it, not encrypted, into a file of the profile that only you can read"
        ) from error
    remark(f"The key of {name} is in {store.title}, and was read back from there.")
    parts = urlsplit(wanted.base_url or "https://")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        remark(f"Mind that {address} is spoken to without encryption: whoever is on the way can read the key.")


def _tell(folders: Folders, name: str, file: ProviderFile) -> None:
    remark(f"Provider {name}: {folders.provider(name)}")
    if file.api_key_env is not None and not os.environ.get(file.api_key_env):
        remark(f"Its key is expected in {file.api_key_env}, which is not set here.")
    remark(f'Try `enginehouse providers test {name}`, or `enginehouse run --provider {name} "…"`.')


# --- listing ----------------------------------------------------------------------------------------------------------


def list_providers(arguments: argparse.Namespace) -> int:
    if arguments.known:
        return _list_known(as_json=arguments.json)
    if arguments.local:
        return _list_local(as_json=arguments.json)
    folders = Folders.of(os.environ)
    rows: list[tuple[str, ...]] = []
    objects: list[JsonObject] = []
    for name in provider_names(folders):
        try:
            file = read_provider(folders, name)
        except ProfileInvalid as error:
            rows.append((name, "", "", "", error.problem))
            objects.append({"name": name, "problem": error.problem})
            continue
        if file is not None:
            rows.append((name, file.engine, file.base_url or "", file.model or "", _key_shown(file)))
            objects.append({"name": name, **file.model_dump(mode="json"), "key": _key_shown(file)})
    none = "no providers yet; `enginehouse providers add NAME` adds one, `providers list --known` shows names"
    put_listing(("name", "engine", "address", "model", "key"), rows, objects, as_json=arguments.json, none=none)
    return 0


def _key_shown(file: ProviderFile) -> str:
    """Where its key is; the keyring is not asked, it might ask the person."""
    places: list[str] = []
    if file.api_key_env is not None:
        places.append(f"{file.api_key_env} ({'set' if os.environ.get(file.api_key_env) else 'not set'})")
    if file.api_key_store is not None:
        places.append("keyring" if file.api_key_store == "keyring" else "unencrypted file")
    return ", else ".join(places) or "none"


def _list_known(*, as_json: bool) -> int:
    put_listing(
        ("name", "title", "address", "key"),
        [(known.name, known.title, known.base_url, known.key_variable or "none") for known in KNOWN.values()],
        [
            {
                "name": known.name,
                "title": known.title,
                "base_url": known.base_url,
                "api_key_env": known.key_variable,
                "local": known.local,
                "efforts": list(known.efforts),
            }
            for known in KNOWN.values()
        ],
        as_json=as_json,
        none="",
    )
    return 0


def _list_local(*, as_json: bool) -> int:
    from enginehouse_engines.openai_compatible.discovery import local_servers

    found = anyio.run(local_servers)
    rows = [(server.known.name, server.base_url, _models(server.models)) for server in found]
    put_listing(
        ("probably", "address", "models"),
        rows,
        [{"server": each.known.name, "base_url": each.base_url, "models": list(each.models)} for each in found],
        as_json=as_json,
        none="no server of models answers on the usual ports of this machine",
    )
    return 0


def _models(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN_MODELS} more" if len(names) > _SHOWN_MODELS else ""
    return (", ".join(names[:_SHOWN_MODELS]) or "none loaded") + more


# --- removing ---------------------------------------------------------------------------------------------------------


def remove(arguments: argparse.Namespace) -> int:
    """The key first: a key whose provider is gone would be found by nobody."""
    folders = Folders.of(os.environ)
    name = checked_name(arguments.name, "provider")
    try:
        file = provider_named(folders, name)
    except ProfileInvalid:
        file = None  # a file that cannot be understood must be removable too
    if file is not None and file.api_key_store is not None and not arguments.keep_key:
        store = stores_of(folders, os.environ)(file.api_key_store)
        try:
            gone = store.delete(name)
        except CredentialsUnusable as error:
            raise CredentialsUnusable(
                f"the key of {name} cannot be removed: {error}; nothing was removed (--keep-key leaves the key there)"
            ) from error
        remark(f"The key of {name} is gone from {store.title}." if gone else f"{store.title} held no key of {name}.")
    remove_provider(folders, name)
    remark(f"Provider {name} is removed.")
    return 0
