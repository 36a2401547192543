"""The common ground of what people write: how a file becomes a checked object, and how its mistakes are told.

Rule: a wrong value is an error that names its key; an unknown key is kept and is only a warning of `profile
check`, for it may come from a newer Enginehouse.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from enginehouse_core.profile.files import read_toml
from enginehouse_protocol.errors import ProfileInvalid


class Section(BaseModel):
    """A table in a file."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class Document(Section):
    """A whole file."""

    version: Literal[1] = 1

    @model_validator(mode="before")
    @classmethod
    def _not_from_the_future(cls, data: Any) -> Any:
        match data:
            case {"version": int(version)} if version > 1:
                raise ValueError(f"version: {version} was written by a newer Enginehouse; update this one")
            case _:
                return data


D = TypeVar("D", bound=Document)


def read_document(path: Path, kind: type[D]) -> D | None:
    """The checked content of a file; None when there is none. `ProfileInvalid` names the first wrong key."""
    data = read_toml(path)
    return None if data is None else checked(path, data, kind)


def checked(path: Path, data: dict[str, Any], kind: type[D]) -> D:
    """`data`, which came from `path`, as a document of that kind. Raises `ProfileInvalid`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ProfileInvalid(str(path), "; ".join(_told(each) for each in error.errors()[:5])) from error


def unknown_keys(section: Section, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Each key the models do not know, as a dotted path, with the known key that was probably meant."""
    known = list(type(section).model_fields)
    for key in section.model_extra or {}:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        yield prefix + key, close[0] if close else None
    for name in known:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from unknown_keys(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            for number, item in enumerate(cast(list[object], value)):
                if isinstance(item, Section):
                    yield from unknown_keys(item, f"{prefix}{name}[{number}].")


def _told(error: ErrorDetails) -> str:
    where = ""
    for part in error["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    what = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        what = "is missing"
    return f"{where}: {what[0].lower()}{what[1:]}" if where else what
