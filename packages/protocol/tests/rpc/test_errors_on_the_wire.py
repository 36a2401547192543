"""Every error of the tree arrives as itself."""

import inspect
import typing
from typing import Any

import msgspec
import pytest

from enginehouse_protocol import errors
from enginehouse_protocol.errors import (
    EngineError,
    EnginehouseError,
    EngineUnavailable,
    MalformedData,
    PathRefused,
    SessionError,
    SessionNotFound,
    UsageError,
)
from enginehouse_protocol.rpc import WireError, from_wire, to_wire

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, EnginehouseError)]
SAMPLES = {str: 'a "text" ä', int: 7, float: 1.5}


def sample(kind: type[EnginehouseError], *, sparse: bool = False) -> EnginehouseError:
    """One with every attribute set, or (`sparse`) with None wherever that may be."""
    if kind.__init__ is Exception.__init__:
        return kind("what happened")
    hints = typing.get_type_hints(kind.__init__)
    given: dict[str, Any] = {}
    for name in list(inspect.signature(kind.__init__).parameters)[1:]:
        kinds = typing.get_args(hints[name]) or (hints[name],)
        given[name] = None if sparse and type(None) in kinds else SAMPLES[kinds[0]]
    return kind(**given)


def over_the_wire(error: EnginehouseError) -> EnginehouseError:
    return from_wire(msgspec.json.decode(msgspec.json.encode(to_wire(error)), type=WireError))


def test_there_is_a_tree_to_test() -> None:
    assert len(KINDS) > 25


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_comes_back_with_class_code_message_and_attributes(
    kind: type[EnginehouseError], sparse: bool
) -> None:
    error = sample(kind, sparse=sparse)
    back = over_the_wire(error)
    assert (type(back), back.code, str(back), vars(back)) == (kind, error.code, str(error), vars(error))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_attribute_has_a_name_that_is_taken(kind: type[EnginehouseError]) -> None:
    assert "kind" not in vars(sample(kind))


def test_a_code_of_the_provider_s_own_travels_beside_the_class() -> None:
    error = EngineUnavailable("busy", code="provider.overloaded", http_status=529)
    assert to_wire(error).data == {"code": "provider.overloaded", "kind": "engine.unavailable", "http_status": 529}
    assert type(over_the_wire(error)) is EngineUnavailable


@pytest.mark.parametrize(
    "wire,kind,code",
    [
        (WireError(code=-32000, message="m", data={"code": "session.sleeping"}), SessionError, "session.sleeping"),
        (WireError(code=-32000, message="m", data={"code": "weather.rain"}), EnginehouseError, "weather.rain"),
        (WireError(code=-32000, message="m", data={"code": "session.not_found"}), SessionError, "session.not_found"),
        (
            WireError(code=-32000, message="m", data={"code": "workspace.path_refused", "path": 3, "reason": "r"}),
            errors.WorkspaceError,
            "workspace.path_refused",
        ),
        (WireError(code=-32601, message="m"), UsageError, "usage"),
        (WireError(code=-32602, message="m", data=["odd"]), MalformedData, "malformed_data"),
        (WireError(code=-32603, message="m"), EnginehouseError, "internal"),
        (WireError(code=17, message="m", data="text"), EnginehouseError, "error"),
    ],
)
def test_what_this_version_does_not_know_becomes_the_nearest_error_it_knows(
    wire: WireError, kind: type[EnginehouseError], code: str
) -> None:
    error = from_wire(wire)
    assert (type(error), error.code, str(error)) == (kind, code, "m")


def test_a_name_that_is_no_text_does_not_stop_an_error() -> None:
    back = over_the_wire(PathRefused("caf\udce9", "outside"))
    assert isinstance(back, PathRefused)
    assert back.path == "caf\ufffd"


def test_what_a_class_does_not_declare_stays_here() -> None:
    error = EngineError("m")
    vars(error).update(process=object(), _secret="s", rows=[1])
    assert to_wire(error).data == {"code": "engine"}
    assert isinstance(over_the_wire(SessionNotFound("s_1")), SessionNotFound)
