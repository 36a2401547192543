"""Writing to two streams that may be one screen, and asking in between."""

import os

import anyio
import anyio.lowlevel
import pytest
from terminal.desk import Desk

from enginehouse_hosts.terminal.streams import AnswerGone, OutputUnwritable, Piece, Streams

pytestmark = pytest.mark.anyio


async def test_a_pipe_gets_each_stream_as_it_is(piped: Desk) -> None:
    await piped.streams.write([Piece("answer", "half "), Piece("talk", "title\n"), Piece("answer", "whole\n")])
    assert (piped.out(), piped.err()) == ("half whole\n", "title\n")


async def test_on_one_screen_talk_never_begins_in_the_middle_of_a_line(terminal: Desk) -> None:
    await terminal.streams.write([Piece("answer", "half ")])
    await terminal.streams.write([Piece("answer", "a line")])
    await terminal.streams.write([Piece("talk", "title\n"), Piece("answer", "next")])
    assert terminal.out() == "half a line\ntitle\nnext"


async def test_what_is_written_while_somebody_is_asked_leaves_the_question_below(terminal: Desk) -> None:
    answers: list[str | None] = []

    async def ask() -> None:
        answers.append(await terminal.streams.ask("sure? > "))

    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(5):
            tasks.start_soon(ask)
            await terminal.until("sure? > ")
            await terminal.streams.say("meanwhile")
            await terminal.until("sure? > \nmeanwhile\nsure? > ")
            terminal.types("yes\n")
    assert answers == ["yes"]


async def test_what_was_typed_before_the_question_is_no_answer(terminal: Desk) -> None:
    terminal.types("y\n")
    with anyio.move_on_after(0.2) as scope:
        await terminal.streams.ask("delete everything? > ")
    assert scope.cancelled_caught


async def test_a_long_answer_comes_in_one_piece(terminal: Desk) -> None:
    async with anyio.create_task_group() as tasks:

        async def person() -> None:
            await terminal.until("> ")
            terminal.types("ünï" * 300 + "\n")

        with anyio.fail_after(5):
            tasks.start_soon(person)
            assert await terminal.streams.ask("> ") == "ünï" * 300


async def test_a_terminal_that_was_closed_is_the_end_of_input_and_writing_to_it_is_no_error() -> None:
    ours, theirs = os.openpty()
    streams = Streams({}, stdin=theirs, stdout=theirs, stderr=theirs)
    async with anyio.create_task_group() as tasks:

        async def closes() -> None:
            await anyio.wait_readable(ours)
            os.close(ours)

        tasks.start_soon(closes)
        with anyio.fail_after(5):
            assert await streams.ask("> ") is None
            await streams.write([Piece("answer", "nobody reads this\n"), Piece("talk", "nor this\n")])
    os.close(theirs)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
async def test_a_full_disk_is_an_error_of_ours() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OutputUnwritable, match="No space left"):
            await Streams({}, stdout=full).write_bytes(b"x")
    finally:
        os.close(full)


async def test_a_reader_that_left_is_told_once_and_stderr_is_no_reason_to_stop(piped: Desk) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    gone = Streams({}, stdin=piped.streams.stdin, stdout=writer, stderr=writer)
    with pytest.raises(AnswerGone):
        await gone.write_bytes(b"x")
    gone.stdout = piped.streams.stdout
    await gone.say("nobody hears this")
    os.close(writer)


async def test_a_reader_that_does_not_read_does_not_stop_the_loop() -> None:
    desk = Desk(terminal=False)
    ticks = 0
    with anyio.move_on_after(0.3):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.streams.write_bytes, b"x" * 1_000_000)
            while True:
                await anyio.lowlevel.checkpoint()
                ticks += 1
    assert ticks > 100
    desk.close()  # which lets the writing thread go
