"""The key of one provider: from the variable its file names, else from the store its file names.

Rule: a key goes to the address it was given for and to no other. A store is asked only for a provider that is wanted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from enginehouse_core.credentials.store import CredentialStore, CredentialsUnusable, StoreKind, origin
from enginehouse_core.profile.provider import ProviderFile

Stores = Callable[[StoreKind], CredentialStore]


@dataclass(frozen=True, kw_only=True)
class ProviderKey:
    name: str
    """What a record shows in its place."""
    value: str = field(repr=False)


def key_of(name: str, file: ProviderFile, environment: Mapping[str, str], stores: Stores) -> ProviderKey | None:
    """None: this provider is spoken to without a key, or its variable is not set. Blocks.

    Raises:
        CredentialsUnusable: the store its file names cannot be asked, holds no key for it, or one for another address.
    """
    if file.api_key_env is not None and (value := environment.get(file.api_key_env)):
        return ProviderKey(name=file.api_key_env, value=value)
    if file.api_key_store is None:
        return None
    store = stores(file.api_key_store)
    again = f"store it again with `enginehouse providers add {name} --update`"
    try:
        found = store.read(name)
    except CredentialsUnusable as error:
        instead = f"set {file.api_key_env}" if file.api_key_env else "name a variable that holds it, with --key-env"
        raise CredentialsUnusable(
            f"the key of provider {name!r} cannot be had: {error}; {again}, or {instead}"
        ) from error
    if found is None:
        raise CredentialsUnusable(f"{store.title} holds no key of provider {name!r}; {again}")
    if found.address != (wanted := origin(file.base_url)):
        raise CredentialsUnusable(
            f"the key of provider {name!r} was stored for {found.address or 'another address'}, and its file now says "
            f"{wanted or 'nothing'}; if that is right, {again}"
        )
    return ProviderKey(name=f"{name}.key", value=found.value)
