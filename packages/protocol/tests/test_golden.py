"""Every tag of format version 1 as it is on disk. These files are never changed, only added to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from enginehouse_protocol.codec import decode_event, decode_recorded, encode_event
from enginehouse_protocol.content import Content
from enginehouse_protocol.errors import MalformedData
from enginehouse_protocol.events import (
    FORMAT_VERSION,
    TRANSIENT,
    AnyBody,
    Event,
    Passing,
    Unknown,
    tag_of,
)
from enginehouse_protocol.permissions import Decision

GOLDEN = Path(__file__).parent / "golden"
V1 = GOLDEN / "v1"
KINDS: tuple[type[msgspec.Struct], ...] = get_args(AnyBody)
NOT_A_TAG = ("unknown", "misshapen")
ONLY_ON_THE_WAY_IN = {("Image", "data", None)}
"""What a request may hold and a record never does."""


def tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def lines(name: str) -> list[bytes]:
    return (V1 / f"{name}.jsonl").read_bytes().split(b"\n")[:-1]


TAGS = sorted(tag(kind) for kind in KINDS)
EVERY_LINE = [
    pytest.param(line, id=f"{file.stem}:{number}")
    for file in sorted(V1.glob("*.jsonl"))
    if file.stem not in NOT_A_TAG
    for number, line in enumerate(lines(file.stem), 1)
]


def test_every_tag_has_a_golden_file_and_every_file_a_tag() -> None:
    assert sorted(file.stem for file in V1.glob("*.jsonl") if file.stem not in NOT_A_TAG) == TAGS


def test_there_are_goldens_of_every_format_version() -> None:
    assert sorted(folder.name for folder in GOLDEN.iterdir()) == [f"v{n}" for n in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("line", EVERY_LINE)
def test_a_golden_line_is_understood_and_comes_back_byte_for_byte(line: bytes) -> None:
    event = decode_event(line)
    assert not isinstance(event.body, Unknown)
    assert decode_recorded(line) == event
    assert encode_event(event) == line


@pytest.mark.parametrize("name", TAGS)
def test_lines_of_a_file_have_its_tag_and_its_place_in_the_record(name: str) -> None:
    for line in lines(name):
        event = decode_event(line)
        assert tag_of(event.body) == name
        assert isinstance(event, Passing if isinstance(event.body, TRANSIENT) else Event)
        assert ("seq" in json.loads(line)) is isinstance(event, Event)


@pytest.mark.parametrize("kind", KINDS, ids=tag)
def test_a_tag_is_golden_with_all_its_fields_and_with_the_fewest(kind: type[msgspec.Struct]) -> None:
    keys = [set(json.loads(line)["body"]) - {"type"} for line in lines(tag(kind))]
    fields = msgspec.structs.fields(kind)
    assert {field.encode_name for field in fields} in keys
    assert {field.encode_name for field in fields if field.required} in keys


def test_every_field_and_every_closed_word_of_every_part_is_golden() -> None:
    seen: set[tuple[str, str, object]] = set()
    for name in TAGS:
        for line in lines(name):
            seen |= set(_facts(decode_event(line).body))
    wanted = {
        (kind.__name__, field.name, word)
        for kind in (*KINDS, *_parts())
        for field in msgspec.structs.fields(kind)
        for word in (_words(field.type) or (None,))
    }
    assert wanted - seen == ONLY_ON_THE_WAY_IN


def test_an_unknown_tag_is_kept_whole_and_comes_back_byte_for_byte() -> None:
    events = [decode_event(line) for line in lines("unknown")]
    assert [type(event).__name__ for event in events] == ["Event", "Event", "Passing"]
    for event, line in zip(events, lines("unknown"), strict=True):
        assert isinstance(event.body, Unknown)
        assert event.body.reason == "unknown_tag"
        assert {"type": event.body.tag} | event.body.data == json.loads(line)["body"]
        assert decode_recorded(line) == event
        assert encode_event(event) == line


@pytest.mark.parametrize("line", lines("misshapen"))
def test_a_known_tag_with_a_wrong_shape_is_refused_on_the_wire_and_kept_in_a_file(line: bytes) -> None:
    name = str(json.loads(line)["body"]["type"])
    with pytest.raises(MalformedData, match=name):
        decode_event(line)
    kept = decode_recorded(line)
    assert isinstance(kept.body, Unknown)
    assert (kept.body.tag, kept.body.reason) == (name, "wrong_shape")
    assert encode_event(kept) == line


def _parts() -> Iterator[type[msgspec.Struct]]:
    """Every struct that is a part of some body."""
    found: set[type[msgspec.Struct]] = {*get_args(Content), *get_args(Decision)}
    waiting: list[Any] = [*KINDS]
    while waiting:
        for field in msgspec.structs.fields(waiting.pop()):
            for part in _structs(field.type):
                if part not in found:
                    found.add(part)
                    waiting.append(part)
    yield from found


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in get_args(kind):
        yield from _structs(part)


def _words(kind: Any) -> tuple[object, ...]:
    """The closed set a field is of, or nothing."""
    for part in (kind, *get_args(kind)):
        if get_origin(part) is Literal:
            return get_args(part)
    return ()


def _facts(value: object) -> Iterator[tuple[str, str, object]]:
    """Which fields were given, and with which words where the words are a closed set."""
    match value:
        case msgspec.Struct():
            for field in msgspec.structs.fields(value):
                given = getattr(value, field.name)
                if field.required or given != field.default:
                    yield type(value).__name__, field.name, given if _words(field.type) else None
                elif _words(field.type):
                    yield type(value).__name__, field.name, given
                yield from _facts(given)
        case tuple():
            for item in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _facts(item)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            pass
