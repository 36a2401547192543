"""Secrets do not get through: in no spelling, in no piece, in no shape; and what holds none is not touched."""

import base64
import json
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from enginehouse_core.key_shapes import LIMIT, looks_like_key
from enginehouse_core.masking import Masker

KEY = "sk-proj-Zm9vYmFy+/bXktc2VjcmV0LTEyMzQ1Njc4OTAtYWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXo"
PASSWORD = 'p@ss "wörd"\n&\\/<é>'
MASK = "«secret:KEY»"


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def streamed(masker: Masker, parts: list[str]) -> str:
    stream = masker.stream()
    return "".join([*(stream.feed(part) for part in parts), stream.flush()])


Spelling = Callable[[str], str]

SPELLINGS: dict[str, Spelling] = {
    "raw": str,
    "json": lambda value: json.dumps(value)[1:-1],
    "json, not ascii only": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "json in json": lambda value: json.dumps(json.dumps(value)[1:-1])[1:-1],
    "url": lambda value: quote(value, safe=""),
    "url path": quote,
    "url, lower case": lambda value: "".join(
        part if number == 0 else part[:2].lower() + part[2:]
        for number, part in enumerate(quote(value, safe="").replace("%", "\0%").split("%"))
    ).replace("\0", "%"),
    "form": quote_plus,
    "hex": lambda value: value.encode().hex(),
    "HEX": lambda value: value.encode().hex().upper(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("value", [KEY, PASSWORD])
def test_a_secret_is_masked_in_every_common_spelling(spelling: str, value: str) -> None:
    written = SPELLINGS[spelling](value)
    masker = Masker({"KEY": value})
    assert masker.text(f"before {written} after") == f"before {MASK} after"
    assert masker.bytes_(f"before {written} after".encode()) == f"before {MASK} after".encode()
    assert masker.contains(msgspec.json.encode({"body": {"text": f"before {written} after"}}))


@pytest.mark.parametrize("before", ["", "u", "us", "user:", "user:x"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("value", [KEY, PASSWORD])
def test_base64_is_recognised_wherever_in_the_encoded_text_the_secret_stands(
    before: str, encode: Callable[[bytes], bytes], value: str
) -> None:
    masker = Masker({"KEY": value})
    masked = masker.text(encode(f"{before}{value}, and more".encode()).decode())
    assert MASK in masked
    # What is left of the secret is at most a part of the byte at each edge.
    left = masked.split(MASK)
    assert len(left[0]) <= -(-len(before) * 8 // 6)
    assert len(left[1]) <= len(base64.b64encode(b", and more")) + 2


@pytest.mark.parametrize("width", [60, 64, 76])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encoded_text_that_is_wrapped_into_lines_is_recognised_whole_and_in_pieces(width: int, end: str) -> None:
    masker = Masker({"KEY": KEY})
    for encoded in (base64.b64encode(f"export KEY={KEY}\n".encode()).decode(), KEY.encode().hex()):
        wrapped = end.join(encoded[at : at + width] for at in range(0, len(encoded), width))
        assert end in wrapped
        masked = masker.text(f"$ base64 .env\n{wrapped}\n$ ")
        assert masked.count(MASK) == 1
        assert len(masked) < 70
        assert streamed(masker, list(f"$ base64 .env\n{wrapped}\n$ ")) == masked
        assert masker.contains(msgspec.json.encode({"text": wrapped}))


def test_a_secret_of_several_lines_and_white_space_around_one_do_not_hide_it() -> None:
    lines = ("-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSj", "-----END PRIVATE KEY-----")
    pem = "".join(f"{line}\n" for line in lines)
    assert Masker({"KEY": pem}).text(f"cat key\n{pem}$ ") == f"cat key\n{MASK}\n$ "
    assert Masker({"KEY": f" {KEY}\n"}).text(KEY) == MASK


def test_short_values_are_left_alone() -> None:
    masker = Masker({"SHORT": "1234567", "EMPTY": ""})
    assert not masker
    assert masker.text("1234567") == "1234567"


def test_without_a_find_the_very_same_objects_come_back() -> None:
    value = {"text": "nothing here", "list": [1, None, {"deep": ("a", b"b")}]}
    text, data = "nothing here", b"nothing here"
    for masker in (Masker({}), Masker({"KEY": KEY})):
        assert masker.text(text) is text
        assert masker.bytes_(data) is data
        assert masker.value(value) is value
        assert not masker.contains(b'{"text": "nothing here"}')


def test_values_are_masked_in_keys_and_at_any_depth_and_the_rest_is_shared() -> None:
    masker = Masker({"KEY": KEY, "OTHER": "other-secret"})
    untouched = ["as", "it", "was"]
    value = {"a": untouched, KEY: [(f"x{KEY}", 1)], "raw": f"<{KEY}>".encode(), "other-secret": None, MASK: "taken"}
    masked = masker.value(value)
    assert masked == {
        "a": untouched,
        MASK: [(f"x{MASK}", 1)],
        "raw": f"<{MASK}>".encode(),
        "«secret:OTHER»": None,
        f"{MASK}~": "taken",
    }
    assert masked["a"] is untouched


def test_secrets_that_overlap_leave_nothing_of_either_and_the_leftmost_gives_the_name() -> None:
    masker = Masker({"LONG": "xx-abcdefgh-yy", "INNER": "abcdefgh", "NEXT": "gh-yy-987654"})
    assert masker.text("[xx-abcdefgh-yy]") == "[«secret:LONG»]"
    assert masker.text("[abcdefgh]") == "[«secret:INNER»]"
    assert masker.text("[xx-abcdefgh-yy-987654]") == "[«secret:LONG»]"
    assert masker.text("abcdefghabcdefgh") == "«secret:INNER»«secret:INNER»"


def test_a_mask_names_its_secret_safely_and_uniquely() -> None:
    masker = Masker({"A B": "value-one", "A»B": "value-two", "is-value-three-so": "value-three"})
    assert set(masker.masks.values()) == {"«secret:3»", "«secret:A_B»", "«secret:A_B-2»"}
    for name, mask in masker.masks.items():
        assert masker.has_mask(f"echo {mask} > file") == name
    assert masker.has_mask("echo «secret:UNKNOWN»") is None
    assert masker.has_mask("echo A_B") is None


def test_a_masker_that_learned_another_secret_knows_both() -> None:
    first = Masker({"KEY": KEY})
    both = first.with_secrets({"OTHER": "other-secret"})
    assert both.text(f"{KEY} other-secret") == f"{MASK} «secret:OTHER»"
    assert first.text("other-secret") == "other-secret"


def test_a_stream_gives_ordinary_text_away_at_once_and_holds_back_only_the_beginning_of_a_secret() -> None:
    stream = Masker({"KEY": "!secret-value!"}).stream()
    assert stream.feed("hello ") == "hello "
    assert stream.feed("world !sec") == "world "
    assert stream.feed("ond") == "!second"
    assert stream.feed(" !secret-val") == " "
    assert stream.feed("ue! and") == "«secret:KEY» and"
    assert stream.feed(" !secret") == " "
    assert stream.flush() == "!secret"


def test_a_stream_of_a_repeating_secret_holds_back_no_more_than_one_secret() -> None:
    masker = Masker({"A": "aaaaaaaaaa"})
    stream = masker.stream()
    out = [stream.feed("aaaaaaa") for _ in range(1000)]
    assert stream.held_back < masker.longest
    assert "".join([*out, stream.feed("b"), stream.flush()]) == "«secret:A»b" == masker.text("a" * 7000 + "b")


narrow = st.text(alphabet="ab\n\r1", min_size=8, max_size=14).map(str.strip).filter(lambda value: len(value) >= 8)
wide = st.text(min_size=8, max_size=40).map(str.strip).filter(lambda value: len(value) >= 8)
ENCODINGS: list[Spelling] = [
    str,
    json.dumps,
    lambda value: base64.b64encode(value.encode()).decode(),
    lambda value: base64.b64encode(b"x" + value.encode()).decode(),
    lambda value: value.encode().hex(),
    lambda value: "\n".join(value.encode().hex()),
    lambda value: "\r\n".join(base64.b64encode(value.encode()).decode()),
]
encodings = st.sampled_from(ENCODINGS)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[dict[str, str], str, list[int]]:
    """Secrets, a text full of them and of parts of them, and where to cut it."""
    valid = st.one_of(narrow, wide).filter(lambda value: not any("\ud800" <= c <= "\udfff" for c in value))
    secrets = draw(st.dictionaries(st.sampled_from("ABCD"), valid, min_size=1, max_size=4))
    parts: list[str] = []
    for _ in range(draw(st.integers(1, 6))):
        spelled = draw(encodings)(draw(st.sampled_from(sorted(secrets.values()))))
        if draw(st.booleans()):
            spelled = spelled[draw(st.integers(0, 3)) : len(spelled) - draw(st.integers(0, 3))]
        parts += [draw(st.text(alphabet="ab\n\r1 ", max_size=4)), spelled]
    return secrets, "".join(parts), draw(st.lists(st.integers(0, 500), max_size=12))


@given(conversations())
@example(({"A": "abababab"}, "abababababababab", [3, 8, 9, 15]))
@example(({"A": "aaaaaaaa", "B": "aaaaaaaab"}, "aaaaaaaaab", [8, 9]))
def test_masking_in_pieces_is_masking_the_whole(conversation: tuple[dict[str, str], str, list[int]]) -> None:
    secrets, text, cuts = conversation
    masker = Masker(secrets)
    assert streamed(masker, pieces(text, cuts)) == masker.text(text)
    assert streamed(masker, list(text)) == masker.text(text)


@given(conversations())
def test_no_spelling_of_a_secret_is_left(conversation: tuple[dict[str, str], str, list[int]]) -> None:
    secrets, text, _ = conversation
    masker = Masker(secrets)
    masked = masker.text(text)
    for value in secrets.values():
        # A secret made of pieces of masks or of what stands between them can come about by itself.
        assume(not set(value) & set("«»:") and "secret" not in value)
        for left in masked.replace("»", "«").split("«")[::2]:
            assert value not in left
            assert value.encode().hex() not in left
            assert base64.b64encode(value.encode()).decode().rstrip("=") not in left
    assert masker.bytes_(text.encode()).decode() == masked


@given(conversations())
def test_a_line_said_to_hold_no_secret_holds_none(conversation: tuple[dict[str, str], str, list[int]]) -> None:
    secrets, text, _ = conversation
    masker = Masker(secrets)
    body = {"text": text, f"\\{text}n\\": [text[1:], f"\\n{text}"]}
    for encoded in (msgspec.json.encode(body), json.dumps(body).encode()):
        assert masker.contains(encoded) or masker.value(body) is body


def test_a_backslash_before_encoded_text_that_begins_with_n_is_no_line_break() -> None:
    masker = Masker({"KEY": "generated-key-0123"})
    core = base64.b64encode(b"xxgenerated-key-0123").decode()[3:]
    assert core.startswith("n")
    body = {"text": f"C:\\{core}"}
    assert masker.value(body) != body
    assert masker.contains(msgspec.json.encode(body))


@pytest.mark.parametrize(
    "text, kind",
    [
        ("key: sk-proj-abcdefghij0123456789", "api_key"),
        ("ghp_" + "a1" * 18, "github_token"),
        ("github_pat_" + "a1" * 20, "github_token"),
        ("glpat-abcdefghij0123456789", "gitlab_token"),
        ("AKIAIOSFODNN7EXAMPLE", "aws_key_id"),
        ("xoxb-123456789012-abcdef", "slack_token"),
        ("xoxp-123456789012-abcdef", "slack_token"),
        ("AIza" + "Sy" * 17 + "a", "google_api_key"),
        ("-----BEGIN RSA PRIVATE KEY-----", "private_key"),
        ("-----BEGIN PRIVATE KEY-----", "private_key"),
    ],
)
def test_a_well_known_key_is_flagged_with_its_place(text: str, kind: str) -> None:
    (shape,) = looks_like_key(f"a {text}\n")
    assert shape.kind == kind
    assert text.startswith(f"a {text}"[shape.start : shape.end][:4]) or "key:" in text


@pytest.mark.parametrize(
    "text",
    [
        "a risk-assessment-of-the-whole-thing-2024",
        "sk-learn-is-not-a-key-but-a-long-word",
        "-----BEGIN CERTIFICATE-----",
        "AKIA",
        "the prefix is ghp_ and then 36 characters",
        "«secret:KEY»",
    ],
)
def test_ordinary_text_is_not_flagged(text: str) -> None:
    assert looks_like_key(text) == []


def test_flagging_stops_at_a_limit() -> None:
    assert len(looks_like_key("sk-0123456789abcdefghij " * 100)) == LIMIT
    assert looks_like_key("sk-" * 100_000) == []
