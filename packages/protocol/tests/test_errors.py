"""The error tree is the one drawn, and every error has a code of its own."""

import re

import pytest

from enginehouse_protocol import errors
from enginehouse_protocol.errors import (
    EngineError,
    EnginehouseError,
    EngineUnavailable,
    FileUnusable,
    PathRefused,
    ProfileInvalid,
    ProfileLocked,
    ProfileUnwritable,
    SessionMoved,
    SessionNotFound,
)


def real_tree(kind: type[EnginehouseError]) -> dict[str, str]:
    """Name of each error below `kind` → name of its parent."""
    return {
        name: parent
        for child in kind.__subclasses__()
        if child.__module__ == kind.__module__  # another package may add a leaf of its own
        for name, parent in {child.__name__: kind.__name__, **real_tree(child)}.items()
    }


def drawn_tree() -> dict[str, str]:
    """The same, read from the drawing in the module's docstring."""
    above: list[str] = []
    tree: dict[str, str] = {}
    for line in str(errors.__doc__).splitlines():
        if not (found := re.match(r"    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?:\s|$)", line)):
            continue
        depth = len(found[1]) // 4
        del above[depth:]
        if above:
            tree[found[2]] = above[-1]
        above.append(found[2])
    return tree


def every(kind: type[EnginehouseError]) -> list[type[EnginehouseError]]:
    """Of this package: another one may add a leaf of its own, with its parent's code."""
    children = [child for child in kind.__subclasses__() if child.__module__ == kind.__module__]
    return [kind, *(below for child in children for below in every(child))]


def test_the_drawing_is_the_tree() -> None:
    assert drawn_tree() == real_tree(EnginehouseError)
    assert len(drawn_tree()) > 20


def test_every_code_is_unique_and_below_its_parents() -> None:
    codes = {kind: kind.code for kind in every(EnginehouseError)}
    assert len(set(codes.values())) == len(codes)
    for kind, code in codes.items():
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", code)
        parent = kind.__mro__[1]
        if issubclass(parent, EnginehouseError) and parent is not EnginehouseError:
            assert code.startswith(f"{parent.code}.")


def test_a_leaf_states_its_own_code() -> None:
    assert [kind for kind in every(EnginehouseError) if "code" not in vars(kind)] == []


def test_an_engine_error_carries_what_the_provider_said() -> None:
    error = EngineError("busy", code="provider.overloaded", http_status=529, retry_after_s=3.5)
    assert (error.code, str(error), error.http_status, error.retry_after_s) == ("provider.overloaded", "busy", 529, 3.5)
    assert (EngineError("x").code, EngineUnavailable("y").code) == ("engine", "engine.unavailable")


@pytest.mark.parametrize(
    "error,facts",
    [
        (ProfileInvalid("settings.toml", "no such key"), ["settings.toml", "no such key"]),
        (ProfileLocked("/p", "process 12"), ["/p", "process 12", "ENGINEHOUSE_PROFILE"]),
        (ProfileUnwritable("/p/x", "read-only"), ["/p/x", "read-only"]),
        (SessionNotFound("s_1"), ["s_1", "enginehouse sessions list"]),
        (SessionMoved("s_1", "/old", "/new"), ["s_1", "/old", "/new", "--session"]),
        (PathRefused("../x", "outside"), ["../x", "outside"]),
        (FileUnusable("x", "a folder"), ["x", "a folder"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_says_what_happened_and_to_what(error: EnginehouseError, facts: list[str]) -> None:
    assert [fact for fact in facts if fact not in str(error)] == []
