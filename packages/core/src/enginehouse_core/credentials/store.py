"""What a place for keys promises, and the one error it has.

Rule: a key is kept together with the address it was given for, and is handed out for no other. Every method blocks; a
key is in no message, no repr and no argument of a process.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol
from urllib.parse import urlsplit

from enginehouse_protocol.errors import UsageError

StoreKind = Literal["keyring", "unencrypted_file"]
SHORTEST_KEY = 8
"""What is shorter cannot be masked where it is repeated."""
_LONGEST_KEY = 16_384
_DEFAULT_PORTS = {"http": 80, "https": 443}


class CredentialsUnusable(UsageError):
    """There is no place for a key, or it cannot be reached now. The message says why and what to do."""

    code = "credentials.unusable"


@dataclass(frozen=True, kw_only=True)
class StoredKey:
    address: str
    """The origin it was given for; empty for an engine's own address."""
    value: str = field(repr=False)


class CredentialStore(Protocol):
    @property
    def kind(self) -> StoreKind: ...

    @property
    def title(self) -> str:
        """For people: what it is, and whether it is encrypted."""
        ...

    def read(self, provider: str) -> StoredKey | None:
        """None: it holds none. Raises `CredentialsUnusable`."""
        ...

    def write(self, provider: str, key: StoredKey) -> None:
        """Store a key and read it back: when this returns, it is there.

        Raises:
            CredentialsUnusable: it is not there.
        """
        ...

    def delete(self, provider: str) -> bool:
        """False: there was none. Raises `CredentialsUnusable`."""
        ...


def origin(base_url: str | None) -> str:
    """Whom a key for this address is shown to: scheme, host and port."""
    if base_url is None:
        return ""
    try:
        parts = urlsplit(base_url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError as error:
        raise UsageError(f"the address is none: {error}") from error
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def checked_key(text: str) -> str:
    """The key in what a person gave.

    Raises:
        UsageError: it cannot be one. It is not repeated.
    """
    key = text.strip()
    if not key:
        raise UsageError("the key is empty; nothing was stored")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError("the key has characters no key can have (spaces, line breaks, accents); nothing was stored")
    if not SHORTEST_KEY <= len(key) <= _LONGEST_KEY:
        raise UsageError(
            f"the key has {len(key)} characters; {SHORTEST_KEY} to {_LONGEST_KEY} can be kept out of records"
        )
    return key
