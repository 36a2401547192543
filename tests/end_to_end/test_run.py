"""`enginehouse run` without a terminal: what goes in, what comes out, how it ends."""

import os
import signal

import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S, Person
from model_server import call, fault, hold, reply

WRITE_NOTE = call("write_file", {"path": "note.txt", "content": "hello\n"})


def test_piped_text_follows_the_prompt(meet: Introduction) -> None:
    person = meet(reply("Read."))
    assert person.runs("run", "Review this:", typed=b"line one\nline two\n").code == 0
    said = meet.asked()[0].last_user_text
    assert said == "Review this:\n\nline one\nline two"


def test_piped_text_alone_is_a_prompt(meet: Introduction) -> None:
    person = meet(reply("Yes."))
    assert person.runs("run", typed=b"are you there?\n").out == "Yes.\n"


def test_a_pipe_gets_the_answer_only_and_everything_else_goes_to_stderr(meet: Introduction) -> None:
    person = meet([reply("I write it.", calls=[WRITE_NOTE]), reply("It is **written**.")])
    ended = person.runs("run", "--mode", "accept-edits", "write a note")
    assert (ended.code, ended.out) == (0, "It is **written**.\n")
    assert "I write it." in ended.err
    assert "write note.txt" in ended.err
    assert "+hello" in ended.err
    assert "\x1b" not in ended.out + ended.err
    assert (person.project / "note.txt").read_text() == "hello\n"


def test_json_lines_of_durable_events_are_the_bytes_of_the_record(meet: Introduction, run: tuple[str, ...]) -> None:
    person = meet([reply("I write “it”.\u2028", calls=[WRITE_NOTE]), reply("Done.")])
    ended = person.runs(*run, "--json", "--mode", "accept-edits", "write a note")
    assert ended.code == 0
    recorded = person.runs("sessions", "events", person.session_id())
    assert recorded.out_bytes == ended.durable
    assert len(ended.bodies("message.delta")) > 1
    assert [event["seq"] for event in recorded.events] == list(range(1, len(recorded.events) + 1))
    after = person.runs("sessions", "events", person.session_id(), "--after", "3")
    assert after.out_bytes == b"".join(ended.durable.splitlines(keepends=True)[3:])


def test_what_needs_a_person_is_denied_where_nobody_is_and_the_exit_code_says_so(
    meet: Introduction, run: tuple[str, ...]
) -> None:
    person = meet([reply(calls=[WRITE_NOTE]), reply("I was not allowed to.")])
    ended = person.runs(*run, "write a note")
    assert (ended.code, ended.out) == (4, "I was not allowed to.\n")
    assert "nobody is there to ask" in ended.err
    assert not (person.project / "note.txt").exists()
    assert "nobody is there to ask" in meet.asked()[1].tool_results[0].text


@pytest.mark.parametrize("status,code,exit_code", [(400, "odd", 1), (401, "invalid_api_key", 2)])
def test_a_failed_turn_has_no_answer_and_its_exit_code_says_whose_fault_it_was(
    meet: Introduction, status: int, code: str, exit_code: int
) -> None:
    person = meet(fault(status, code=code))
    ended = person.runs("run", "hello")
    assert (ended.code, ended.out) == (exit_code, "")
    assert "the turn failed" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arguments,says",
    [
        ((), "nothing to say"),
        (("  ",), "nothing to say"),
        (("--mode", "brave", "x"), "must be one of plan, default, accept-edits, yolo"),
        (("--max-steps", "0", "x"), "at least 1"),
        (("-C", "/does/not/exist", "x"), "not a directory"),
        (("--engine", "abacus", "x"), "no engine 'abacus'"),
        (("--session", "s_nothing", "x"), "no session 's_nothing'"),
        (("--session=--version", "x"), "no session '--version'"),
        (("--session=../../etc", "x"), "no session"),
        (("-c", "x"), "can be continued"),
        (("-c", "--session", "s_0", "x"), "not allowed with"),
        (("fix", "the", "test"), "unrecognized arguments"),
    ],
)
def test_a_wrong_call_is_exit_code_2_and_makes_no_session(
    person: Person, arguments: tuple[str, ...], says: str
) -> None:
    ended = person.runs("run", *arguments)
    assert ended.code == 2, ended.err
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert not list(person.profile.glob("transcripts/s_*"))


def test_a_wrong_mode_in_the_environment_is_named(person: Person) -> None:
    ended = person.runs("run", "x", also={"ENGINEHOUSE_MODE": "brave"})
    assert (ended.code, "ENGINEHOUSE_MODE" in ended.err) == (2, True)


def test_without_a_model_the_only_one_the_server_lists_is_used(meet: Introduction) -> None:
    person = meet(reply("Hi."), models=("only-one",))
    assert person.runs("run", "hello").code == 0
    assert meet.asked()[0].model == "only-one"


def test_without_a_model_and_with_several_the_list_is_named(meet: Introduction) -> None:
    person = meet(reply("Hi."), models=("small", "large"))
    ended = person.runs("run", "hello")
    assert ended.code == 2
    assert "small, large" in ended.err
    assert person.runs("run", "-m", "large", "hello").code == 0


def test_flags_win_over_the_environment_and_the_environment_over_the_settings(meet: Introduction) -> None:
    person = meet(reply("Hi."), models=("a", "b", "c"))
    person.profile.mkdir(mode=0o700)
    (person.profile / "settings.toml").write_text('model = "a"\neffort = "low"\n')
    (person.profile / "settings.toml").chmod(0o600)
    for also, flags, model in (
        ({}, (), "a"),
        ({"ENGINEHOUSE_MODEL": "b"}, (), "b"),
        ({"ENGINEHOUSE_MODEL": "b"}, ("-m", "c"), "c"),
    ):
        assert person.runs("run", *flags, "hello", also=also).code == 0
        assert meet.asked()[-1].model == model


def test_continue_takes_the_newest_session_of_this_directory_and_keeps_its_mode(meet: Introduction) -> None:
    person = meet([reply("One."), reply(calls=[WRITE_NOTE]), reply("Two.")])
    elsewhere = person.home / "elsewhere"
    elsewhere.mkdir()
    assert person.runs("run", "--mode", "accept-edits", "first").code == 0
    here = person.session_id()
    assert person.runs("run", "-C", str(elsewhere), "other").code == 0
    ended = person.runs("run", "-c", "second", also={"ENGINEHOUSE_MODE": "plan"})
    assert (ended.code, ended.out) == (0, "Two.\n")
    assert (person.project / "note.txt").exists()
    assert person.session_id() == here
    assert meet.asked()[-1].user_texts == ["first", "second"]


def test_a_session_is_found_by_the_beginning_of_its_id_from_anywhere(meet: Introduction) -> None:
    person = meet([reply("One."), reply("Two.")])
    assert person.runs("run", "first").code == 0
    ended = person.runs("run", "--session", person.session_id()[:20], "second", cwd=person.home)
    assert (ended.code, ended.out) == (0, "Two.\n")


def test_a_session_keeps_its_engine(meet: Introduction) -> None:
    person = meet(reply("One."))
    assert person.runs("run", "first").code == 0
    ended = person.runs("run", "-c", "--engine", "rehearsal", "second")
    assert (ended.code, "keeps its engine" in ended.err) == (2, True)


def test_a_moved_project_goes_on_only_where_a_person_says_it_is(meet: Introduction) -> None:
    person = meet([reply("One."), reply("Two.")])
    assert person.runs("run", "first").code == 0
    session_id = person.session_id()
    moved = person.home / "renamed"
    person.project.rename(moved)

    listed = person.runs("sessions", "list", "-C", str(moved), cwd=moved)
    assert (session_id in listed.out, "moved here?" in listed.out) == (True, True)
    guess = person.runs("run", "-c", "second", cwd=moved)
    assert guess.code == 2
    assert f"--session {session_id} -C {moved}" in guess.err
    by_id = person.runs("run", "--session", session_id, "second", cwd=moved)
    assert (by_id.code, str(person.project) in by_id.err) == (2, True)

    confirmed = person.runs("run", "--session", session_id, "-C", str(moved), "second", cwd=moved)
    assert (confirmed.code, confirmed.out) == (0, "Two.\n")
    assert person.runs("sessions", "list", "-C", str(moved), cwd=moved).out.count(session_id) == 1


def test_max_steps_ends_the_turn_and_says_so(meet: Introduction) -> None:
    look = call("list_dir", {"path": "."})
    person = meet([reply(calls=[look]), reply(calls=[look]), reply("Never said.")])
    ended = person.runs("run", "--max-steps", "2", "look around")
    assert (ended.code, ended.out) == (1, "")
    assert "--max-steps" in ended.err
    assert len(meet.asked()) == 2


def test_a_prompt_that_is_not_unicode_is_repaired_and_that_is_said(meet: Introduction) -> None:
    person = meet(reply("Hm."))
    ended = person.runs("run", b"caf\xe9", typed=b"\xff\x00tail")
    assert ended.code == 0, ended.err
    assert "not valid UTF-8" in ended.err
    assert meet.asked()[0].last_user_text == "caf\ufffd\n\n\ufffd\x00tail"


def test_a_secret_of_the_environment_is_in_no_file(meet: Introduction, run: tuple[str, ...]) -> None:
    planted = "plnt-9f8e7d6c5b4a"
    person = meet([reply(calls=[call("bash", {"command": f"echo {planted}; env"})]), reply(f"It was {planted}.")])
    ended = person.runs(*run, "--mode", "yolo", f"say {planted}", also={"DEPLOY_TOKEN": planted})
    assert ended.code == 0
    assert planted not in ended.err
    files = [path for path in person.home.rglob("*") if path.is_file()]
    assert any(path.name == "transcript.jsonl" for path in files)
    for path in files:
        assert planted.encode() not in path.read_bytes(), path
        assert b"sk-end-to-end-0123456789" not in path.read_bytes(), path


def test_ctrl_c_interrupts_and_is_recorded_as_interrupted(meet: Introduction, run: tuple[str, ...]) -> None:
    person = meet([reply(deltas=["Half ", hold("middle"), "whole"]), reply("Back.")])
    with person.starts(*run, "talk") as process:
        meet.server.reached("middle", PATIENCE_S)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, b"")
    assert b"interrupted" in err
    assert person.runs("sessions", "show", person.session_id()).out.count("interrupted") == 1
    assert person.runs(*run, "-c", "again").out == "Back.\n"


def test_sigterm_leaves_with_its_own_exit_code_and_the_session_goes_on(
    meet: Introduction, run: tuple[str, ...]
) -> None:
    person = meet([reply(deltas=["Half ", hold("middle")]), reply("Back.")])
    with person.starts(*run, "talk") as process:
        meet.server.reached("middle", PATIENCE_S)
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert person.runs(*run, "-c", "again").out == "Back.\n"


def test_a_reader_that_leaves_ends_the_command_quietly(meet: Introduction, run: tuple[str, ...]) -> None:
    person = meet(reply("a word " * 20_000))
    reader, writer = os.pipe()
    os.close(reader)
    with person.starts(*run, "--json", "talk", stdout=writer) as process:
        os.close(writer)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (141, b"")
