"""`providers/<name>.toml`: where a model is and how it is spoken to.

Rule: a key is never in the file, only the name of the variable that holds it, or in which store it is; a file with a
key in it is refused.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, field_validator, model_validator

from enginehouse_core.key_shapes import looks_like_key
from enginehouse_core.profile.document import Document, checked, read_document
from enginehouse_core.profile.files import update_toml
from enginehouse_core.profile.folders import Folders, checked_name, is_name, reason
from enginehouse_protocol.engine import Provider
from enginehouse_protocol.errors import ProfileInvalid, ProfileUnwritable, UsageError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_SECRET_NAMES = frozenset(
    ("access_token", "apikey", "auth_token", "authorization", "client_secret", "password", "secret", "token")
)
_INSTEAD = (
    "store the key with `enginehouse providers add`, or put it into an environment variable and name that one here: "
    'api_key_env = "OPENAI_API_KEY"'
)


class ProviderFile(Document):
    """One provider of models."""

    engine: str = Field(min_length=1, description="The engine that speaks to it, such as openai_compatible.")
    base_url: str | None = Field(default=None, description="Where its interface begins, such as https://host/v1.")
    api_key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="The environment variable that holds the key; the key itself is never in this file.",
    )
    api_key_store: Literal["keyring", "unencrypted_file"] | None = Field(
        default=None,
        description="Where `enginehouse providers add` stored the key; a variable that is set goes before it.",
    )
    model: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="The model used when nobody asks for another."
    )
    options: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Handed to the engine as it is; the engine publishes what it understands.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_keys(cls, data: Any) -> Any:
        if (where := _secret_in(data, "")) is not None:
            raise ValueError(f"{where}: keys do not belong in this file; {_INSTEAD}")
        return data

    @field_validator("base_url")
    @classmethod
    def _is_web_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an address that begins with http:// or https://")
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"holds a user name or password; {_INSTEAD}")
        return value

    def as_provider(self, name: str) -> Provider:
        return Provider(name=name, base_url=self.base_url, model=self.model, options=dict(self.options))


def read_provider(folders: Folders, name: str) -> ProviderFile | None:
    """One provider; None when the profile has none of that name. Blocks.

    Raises:
        UsageError: `name` is no provider name.
        ProfileInvalid: the file cannot be understood.
    """
    return read_document(folders.provider(name), ProviderFile)


def provider_names(folders: Folders) -> list[str]:
    """The providers of a profile, sorted; files whose name is no provider name are left out. Blocks."""
    try:
        found = [path.stem for path in folders.providers.iterdir() if path.suffix == ".toml"]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ProfileInvalid(str(folders.providers), f"cannot be read: {reason(error)}") from error
    return sorted(name for name in found if is_name(name))


def provider_named(folders: Folders, name: str) -> ProviderFile:
    """The provider a person asked for. Blocks.

    Raises:
        UsageError: there is none; those there are are named.
        ProfileInvalid: its file cannot be understood.
    """
    found = read_provider(folders, name)
    if found is None:
        there = ", ".join(provider_names(folders)) or "none"
        raise UsageError(
            f"the profile has no provider {name!r}; it has: {there}; `enginehouse providers add {name}` adds it"
        )
    return found


def write_provider(folders: Folders, name: str, said: dict[str, Any], *, update: bool = False) -> ProviderFile:
    """Put a provider into the profile. With `update` what is there is kept where nothing else is said; None takes a
    key of the file away. Blocks.

    Raises:
        UsageError: `name` is no provider name, or is taken and this is no update.
        ProfileInvalid: the file, or what it would become, is not a provider; nothing was written.
        ProfileLocked, ProfileUnwritable
    """
    path = folders.provider(checked_name(name, "provider"))

    def change(document: "TOMLDocument") -> ProviderFile:
        content = cast(dict[str, Any], document)
        if content and not update:
            raise UsageError(f"there is a provider {name!r} already; say --update to change it")
        for key, value in said.items():
            if value is None:
                content.pop(key, None)
            elif isinstance(value, dict) and isinstance(content.get(key), dict):
                content[key].update(cast(dict[str, Any], value))
            else:
                content[key] = value
        return checked(path, document.unwrap(), ProviderFile)

    return update_toml(path, change)


def remove_provider(folders: Folders, name: str) -> None:
    """Take a provider's file away. Blocks. Raises `UsageError` when there is none, `ProfileUnwritable`."""
    path = folders.provider(name)
    try:
        path.unlink()
    except FileNotFoundError as error:
        raise UsageError(f"the profile has no provider {name!r}") from error
    except OSError as error:
        raise ProfileUnwritable(str(path), reason(error)) from error


def _secret_in(value: Any, where: str) -> str | None:
    """The path of the first thing that is, or looks like, a key."""
    match value:
        case dict():
            for key, item in cast(dict[str, Any], value).items():
                at = f"{where}.{key}" if where else key
                plain = key.lower().replace("-", "_")
                if isinstance(item, str) and (plain in _SECRET_NAMES or plain.endswith("api_key")):
                    return at
                if (found := _secret_in(item, at)) is not None:
                    return found
        case list():
            for number, item in enumerate(cast(list[Any], value)):
                if (found := _secret_in(item, f"{where}[{number}]")) is not None:
                    return found
        case str():
            return where if looks_like_key(value) else None
        case _:
            pass
    return None
