"""What may reach a terminal, and how much of it."""

import json

import pytest

from enginehouse_hosts.terminal.plain_text import exact, folded, json_exact, neutral, one_line, without_sequences


@pytest.mark.parametrize(
    "hostile,shown",
    [
        ("a\x1b[2Jb", "a␛[2Jb"),
        ("\x9b31mred", "\\x9b31mred"),
        ("bell\x07", "bell␇"),
        ("a\rb", "a␍b"),
        ("line\r\nline", "line\nline"),
        ("tab\tkept\n", "tab\tkept\n"),
        ("nul\0", "nul␀"),
        ("rm \u202eexe.txt", "rm \\u202eexe.txt"),
        ("a\u2028b", "a\nb"),
        ("ünïcödé 日本 🙂", "ünïcödé 日本 🙂"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("a\u2060b\ufeffc\xadd", "a\\u2060b\\ufeffc\\xadd"),
        ("filler\u3164", "filler\\u3164"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("👩\u200d💻 ❤\ufe0f", "👩\u200d💻 ❤\ufe0f"),
    ],
)
def test_control_characters_are_shown_not_obeyed(hostile: str, shown: str) -> None:
    assert neutral(hostile) == shown
    assert neutral(shown) == shown


@pytest.mark.parametrize(
    "hostile,shown",
    [
        ("a\x1b]0;title\x07b", "a␛]0;title␇b"),
        ("a\r\nb\rc", "a␍\nb␍c"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("rm\u00a0x \u3000", "rm\\xa0x \\u3000"),
        ("x\u200d\ufe0f\u2800", "x\\u200d\\ufe0f\\u2800"),
        ("\ud800", "\\ud800"),
        ("\tünïcödé 日本 🙂\n", "\tünïcödé 日本 🙂\n"),
    ],
)
def test_what_is_decided_about_is_shown_to_the_last_character(hostile: str, shown: str) -> None:
    assert exact(hostile) == shown


def test_no_character_is_unseen() -> None:
    everything = [
        chr(code) for code in (*range(0x3200), 0xFEFF, 0xFFA0, *range(0xE0000, 0xE01F0)) if code not in (9, 10)
    ]
    shown = [exact(letter) for letter in everything]
    assert all(text.isprintable() for text in shown)
    blank = {text for text in shown if not text.strip()}
    assert blank == {" "}


def test_json_that_is_shown_for_editing_hides_nothing_and_reads_back() -> None:
    value = {"command": "echo a\u202eb\x9b\x7f\U000e0041\n\x1b日本", "n": [1.5, None]}
    for indent in (0, 2):
        text = json_exact(value, indent=indent)
        assert all(letter.isprintable() for letter in text if letter != "\n")
        assert "日本" in text
        assert json.loads(text) == value


def test_a_sequence_cut_between_two_pieces_of_a_stream_is_harmless() -> None:
    assert "\x1b" not in neutral("\x1b") + neutral("[2J")


def test_the_colours_and_titles_of_a_tool_are_taken_out_whole() -> None:
    assert without_sequences("\x1b[1;31mred\x1b[0m \x1b]0;title\x07end\x1b]8;;x\x1b\\link") == "red endlink"
    assert without_sequences("10%\r20%\r\nok") == "10%\n20%\nok"


def test_one_line_is_one_line() -> None:
    assert one_line("first\nsecond") == "first…"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
    assert one_line("  as it is  ") == "as it is"


def test_short_output_is_whole_and_long_output_says_how_much_is_left_out() -> None:
    assert folded("a\nb\n") == ["a", "b"]
    assert folded("") == []
    lines = folded("\n".join(str(number) for number in range(100)), head=2, tail=2)
    assert lines == ["0", "1", "… 96 lines not shown …", "98", "99"]


@pytest.mark.parametrize("flood", ["x" * 5_000_000, "line\n" * 1_000_000, "\x1b[31mx\x1b[0m" * 500_000])
@pytest.mark.timeout(20)
def test_a_flood_is_folded_in_bounded_time(flood: str) -> None:
    lines = folded(flood)
    assert len(lines) < 40
    assert sum(map(len, lines)) < 20_000
