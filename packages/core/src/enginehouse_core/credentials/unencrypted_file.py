"""Keys in a file of the profile, for those who have no keyring and chose this.

Rule: it is called what it is, in its name and wherever it is spoken of: not encrypted. A file that others may read is
not read.
"""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from enginehouse_core.credentials.store import CredentialsUnusable, StoredKey, StoreKind
from enginehouse_core.profile.files import read_toml, update_toml
from enginehouse_core.profile.folders import Folders, reason

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

NAME = "unencrypted_keys.toml"


class UnencryptedFile:
    kind: StoreKind = "unencrypted_file"

    def __init__(self, folders: Folders) -> None:
        self.path: Path = folders.profile / NAME

    @property
    def title(self) -> str:
        return f"the unencrypted file {self.path}"

    def read(self, provider: str) -> StoredKey | None:
        self._only_mine()
        found: Any = (read_toml(self.path) or {}).get(provider)
        if found is None:
            return None
        match found:
            case {"address": str(address), "key": str(key)}:
                return StoredKey(address=address, value=key)
            case _:
                raise CredentialsUnusable(f"{self.path}: [{provider}] needs an address and a key")

    def write(self, provider: str, key: StoredKey) -> None:
        self._only_mine()

        def change(document: "TOMLDocument") -> None:
            if not document.body:
                import tomlkit

                document.add(tomlkit.comment("Keys of providers. Not encrypted: whoever reads this file has them."))
            cast(Any, document)[provider] = {"address": key.address, "key": key.value}

        update_toml(self.path, change)
        if self.read(provider) != key:
            raise CredentialsUnusable(f"{self.path} does not give back what was written")

    def delete(self, provider: str) -> bool:
        self._only_mine()
        if not self.path.exists():
            return False

        def change(document: "TOMLDocument") -> bool:
            return cast(Any, document).pop(provider, None) is not None

        return update_toml(self.path, change)

    def _only_mine(self) -> None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CredentialsUnusable(f"{self.path} cannot be read: {reason(error)}") from error
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise CredentialsUnusable(
                f"{self.path} is open to other users (mode {stat.S_IMODE(status.st_mode):03o}); "
                f"`chmod 600 {self.path}` closes it, and whoever may have read it has the keys"
            )
