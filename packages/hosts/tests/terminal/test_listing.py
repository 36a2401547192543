"""Listings for people and for programs."""

import json

from enginehouse_hosts.terminal.listing import json_listing, listing

TITLES = ("id", "title")
ROWS = [("s_1", "short"), ("s_22", "with\nnew line and \x1b[31mcolour")]


def test_a_pipe_gets_aligned_text_that_is_never_cut() -> None:
    rows = [*ROWS, ("s_3", "x" * 500)]
    lines = listing(TITLES, rows, width=None).splitlines()
    assert lines[:2] == ["ID    TITLE", "s_1   short"]
    assert "\x1b" not in lines[2]
    assert lines[3] == "s_3   " + "x" * 500


def test_a_terminal_gets_a_table_whose_cells_are_text_not_markup() -> None:
    table = listing(TITLES, [("s_1", "[red]not red[/red]")], width=80)
    assert "[red]not red[/red]" in table
    assert "\x1b[" in table


def test_nothing_is_nothing() -> None:
    assert listing(TITLES, [], width=80) == ""


def test_json_is_one_object_a_line() -> None:
    assert [json.loads(line) for line in json_listing([{"id": "a\nb"}, {"id": "ü"}]).splitlines()] == [
        {"id": "a\nb"},
        {"id": "ü"},
    ]
