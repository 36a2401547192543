"""Whatever happened to a transcript file, every intact record in it is found and everything else is reported."""

import random

import pytest
from transcript.sample import OTHER, SESSION, events, transcript

from enginehouse_core.transcript.scan import Damage, Scan, scan
from enginehouse_protocol.codec import encode_event

WHOLE = transcript(3)
EVENTS = events(3)
LINES = WHOLE.splitlines(keepends=True) if b"\x85" in WHOLE else [line + b"\n" for line in WHOLE.split(b"\n")[:-1]]
STARTS = [sum(len(line) for line in LINES[:number]) for number in range(len(LINES) + 1)]
SEED = 20261130


def seqs(found: Scan) -> list[int]:
    return [record.event.seq for record in found.records]


def accounted(found: Scan) -> set[int]:
    """Every byte position that is a record, a header, a newline or reported damage."""
    places: set[int] = set()
    for record in found.records:
        places.update(range(record.offset, record.offset + len(record.line)))
    for damage in found.damage:
        places.update(range(damage.offset, damage.offset + damage.size_bytes))
    return places


def test_an_undamaged_file_is_read_whole_and_without_a_word() -> None:
    found = scan(WHOLE, SESSION)
    assert [record.event for record in found.records] == EVENTS
    assert found.damage == ()
    assert found.whole_bytes == found.size_bytes == len(WHOLE)


def expect_cut(cut: int) -> None:
    """What must be found when the file ends at `cut`."""
    found = scan(WHOLE[:cut], SESSION)
    # A record is whole as soon as its last brace is there; the newline is not part of it.
    whole = [event for number, event in enumerate(EVENTS, start=1) if STARTS[number + 1] - 1 <= cut]
    assert [record.event for record in found.records] == whole
    tail = [damage for damage in found.damage if damage.kind == "torn_tail"]
    beginning = found.whole_bytes
    assert beginning + sum(damage.size_bytes for damage in tail) == cut
    assert all(damage.offset == beginning for damage in tail)


@pytest.mark.parametrize("record", [-3, -2, -1])
def test_a_file_cut_at_any_byte_of_its_last_records_keeps_all_before(record: int) -> None:
    for cut in range(STARTS[record - 1], STARTS[record] + 1):
        expect_cut(cut)


def test_a_file_cut_at_any_of_2000_random_bytes_keeps_all_before() -> None:
    draw = random.Random(SEED)
    for _ in range(2_000):
        expect_cut(draw.randrange(len(LINES[0]), len(WHOLE) + 1))


def test_a_file_cut_inside_its_header_has_no_records_and_is_all_tail() -> None:
    for cut in range(1, len(LINES[0]) - 1):
        found = scan(WHOLE[:cut], SESSION)
        assert found.records == ()
        assert found.whole_bytes == 0
        assert {damage.kind for damage in found.damage} == {"header", "torn_tail"}


@pytest.mark.parametrize("junk", [b"", b"\0" * 40, b"garbage ", b'{"a":1', b"}", b'{"session_id":"'])
def test_records_spliced_into_one_line_are_all_recovered(junk: bytes) -> None:
    for boundary in range(1, len(LINES) - 1):
        end = STARTS[boundary + 1]
        damaged = WHOLE[: end - 1] + junk + WHOLE[end:]
        found = scan(damaged, SESSION)
        assert [record.event for record in found.records] == EVENTS
        assert [(damage.offset, damage.size_bytes) for damage in found.damage] == (
            [(end - 1, len(junk))] if junk else []
        )


def test_a_cut_record_with_the_next_one_on_its_line_costs_only_the_cut_one() -> None:
    draw = random.Random(SEED)
    for boundary in range(1, len(LINES) - 1):
        start, end = STARTS[boundary], STARTS[boundary + 1]
        cut = draw.randrange(start + 1, end - 1)
        found = scan(WHOLE[:cut] + WHOLE[end:], SESSION)
        assert seqs(found) == [event.seq for event in EVENTS if event.seq != boundary]
        gap = Damage(kind="missing_record", offset=cut, size_bytes=0, detail=f"seq {boundary}")
        assert gap in found.damage
        assert Damage(kind="foreign_bytes", offset=start, size_bytes=cut - start) in found.damage


@pytest.mark.parametrize(
    "line, kind",
    [
        (b"\0" * 512 + b"\n", "nul_bytes"),
        (b"what is this?\n", "foreign_bytes"),
        (b"\xff\xfe\xfd\n", "foreign_bytes"),
        (b"[" * 50_000 + b"\n", "foreign_bytes"),
        (b'{"a": 1}\n', "foreign_bytes"),
        (encode_event(events(1, OTHER)[0]) + b"\n", "foreign_record"),
        (encode_event(EVENTS[0]) + b"\n", "out_of_place"),
    ],
)
def test_a_foreign_line_anywhere_is_stepped_over_and_reported_with_its_place(line: bytes, kind: str) -> None:
    for boundary in range(2, len(LINES)):
        at = STARTS[boundary]
        found = scan(WHOLE[:at] + line + WHOLE[at:], SESSION)
        assert [record.event for record in found.records] == EVENTS
        reported = [(damage.kind, damage.offset, damage.size_bytes) for damage in found.damage]
        assert reported == [(kind, at, len(line) - 1)]


def test_a_record_that_strayed_cannot_hide_those_after_it() -> None:
    stray = encode_event(EVENTS[-1]) + b"\n"
    found = scan(WHOLE[: STARTS[3]] + stray + WHOLE[STARTS[3] :], SESSION)
    assert [record.event for record in found.records] == EVENTS
    assert [damage.kind for damage in found.damage] == ["out_of_place"]


def test_every_byte_is_a_record_or_reported() -> None:
    draw = random.Random(SEED)
    for _ in range(300):
        data = bytearray(WHOLE)
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(LINES[0]), len(data))
            match draw.randrange(3):
                case 0:
                    data[at : at + draw.randrange(1, 60)] = b""
                case 1:
                    data[at:at] = draw.randbytes(draw.randrange(1, 60))
                case _:
                    data[at] = draw.randrange(256)
        found = scan(bytes(data), SESSION)
        assert seqs(found) == sorted(set(seqs(found)))
        silent = set(range(len(LINES[0]), len(data))) - accounted(found)
        assert all(data[place] == 0x0A for place in silent)


def test_a_known_tag_with_a_wrong_shape_is_kept_and_reported() -> None:
    line = b'{"session_id":"%s","seq":2,"at_ms":1,"turn_id":null,"body":{"type":"tool.result","status":7}}\n'
    found = scan(WHOLE[: STARTS[2]] + line % SESSION.encode(), SESSION)
    assert seqs(found) == [1, 2]
    assert [(damage.kind, damage.detail) for damage in found.damage] == [("wrong_shape", "tool.result")]


def test_an_unknown_tag_is_no_damage() -> None:
    line = b'{"session_id":"%s","seq":2,"at_ms":1,"turn_id":null,"body":{"type":"moon.landed","by":"us"}}\n'
    found = scan(WHOLE[: STARTS[2]] + line % SESSION.encode(), SESSION)
    assert seqs(found) == [1, 2]
    assert found.damage == ()


def test_free_json_that_begins_like_a_record_does_not_hide_the_record_around_it() -> None:
    inside = b'{"session_id":"%s","x":1},' % SESSION.encode()
    nested = b'"input":{"a":[' + inside * 20 + b"1]}"
    line = LINES[6].replace(b'"input":{"command":"ls","n":[1]}', nested)
    assert nested in line
    found = scan(b"".join([*LINES[:6], b"junk", line[:-1], *LINES[7:]]), SESSION)
    assert seqs(found) == [event.seq for event in EVENTS]
    torn = scan(b"".join([*LINES[:6], line[:-30], *LINES[7:]]), SESSION)
    assert seqs(torn) == [event.seq for event in EVENTS if event.seq != 6]


@pytest.mark.parametrize(
    "header",
    [
        b'{"format":"enginehouse.transcript","version":2,"session":{"id":"s"}}\n',
        b'{"format":"enginehouse.transcript","version":9,"session_id":7,"created_at_ms":"today"}\n',
    ],
)
def test_a_newer_header_that_is_not_understood_is_still_a_newer_header(header: bytes) -> None:
    found = scan(header + b"".join(LINES[1:]), SESSION)
    assert found.newer_format
    assert [record.event for record in found.records] == EVENTS
    assert found.damage == ()
