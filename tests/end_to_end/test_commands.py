"""The commands that list, tidy up and look after things."""

import json

import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S, Person
from model_server import call, reply


def test_sessions_are_listed_newest_first_plain_in_a_pipe_and_as_json(meet: Introduction) -> None:
    person = meet(reply("Hi."))
    for prompt in ("the older one", "the newer one"):
        assert person.runs("run", prompt).code == 0
    plain = person.runs("sessions", "list").out
    assert plain.splitlines()[0].split() == ["ID", "CHANGED", "STATE", "ENGINE", "TITLE", "DIRECTORY"]
    assert plain.index("the newer one") < plain.index("the older one")
    listed = [json.loads(line) for line in person.runs("sessions", "list", "--json").out.splitlines()]
    assert [info["title"] for info in listed] == ["the newer one", "the older one"]
    assert all(info["id"] in plain for info in listed)
    with person.sits_at("sessions", "list") as terminal:
        table = terminal.ends().err
    assert "\x1b[" in table
    assert listed[0]["id"] in table


def test_a_conversation_can_be_read_renamed_closed_and_deleted(meet: Introduction) -> None:
    person = meet([reply("Looking.", calls=[call("list_dir", {"path": "."})]), reply("There is **nothing**.")])
    assert person.runs("run", "look around").code == 0
    session_id = person.session_id()
    shown = person.runs("sessions", "show", session_id[:20])
    assert (shown.code, shown.err) == (0, "")
    for part in ("> look around", "Looking.", "● ", "There is **nothing**."):
        assert part in shown.out
    assert json.loads(person.runs("sessions", "show", session_id, "--json").out)["id"] == session_id

    assert person.runs("sessions", "rename", session_id, "Une idée").code == 0
    assert person.runs("sessions", "show", session_id).out.startswith("Une idée\n")
    assert person.runs("sessions", "rename", session_id, "two\nlines").code == 2

    assert person.runs("sessions", "close", session_id).code == 0
    refused = person.runs("run", "--session", session_id, "more")
    assert (refused.code, "closed" in refused.err) == (2, True)

    unasked = person.runs("sessions", "delete", session_id)
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    with person.sits_at("sessions", "delete", session_id) as terminal:
        terminal.until("[y/N] ")
        terminal.types("n\n")
        assert terminal.ends().code == 2
    assert person.session_id() == session_id
    assert person.runs("sessions", "delete", session_id, "--yes").code == 0
    gone = person.runs("sessions", "show", session_id)
    assert (gone.code, "no session" in gone.err) == (2, True)


def test_check_finds_damage_and_repair_sets_it_aside(meet: Introduction) -> None:
    person = meet(reply("Hi."))
    assert person.runs("run", "hello").code == 0
    session_id = person.session_id()
    transcript = person.profile / "transcripts" / session_id / "transcript.jsonl"
    with transcript.open("ab") as file:
        file.write(b'{"session_id":"' + session_id.encode() + b'","seq":99,"at_')
    found = person.runs("sessions", "check", session_id)
    assert (found.code, "torn tail" in found.out) == (1, True)
    assert person.runs("hub", "stop").code == 0
    assert person.runs("sessions", "check", "--repair").code == 0
    repaired = transcript.read_bytes()
    assert person.runs("sessions", "check", session_id, "--repair").code == 0
    assert transcript.read_bytes() == repaired
    assert person.runs("sessions", "check").out.startswith(f"{session_id}: sound")


def test_rules_are_stored_for_this_project_or_everywhere_and_removed(person: Person) -> None:
    assert person.runs("permissions", "allow", "execute(pytest *)").code == 0
    assert person.runs("permissions", "deny", "fetch", "--everywhere").code == 0
    assert "there already" in person.runs("permissions", "allow", "execute(pytest  *)").err
    listed = [json.loads(line) for line in person.runs("permissions", "list", "--json").out.splitlines()]
    assert [(rule["effect"], rule["rule"], rule["project"]) for rule in listed] == [
        ("allow", "execute(pytest *)", str(person.project)),
        ("deny", "fetch", None),
    ]
    elsewhere = person.runs("permissions", "list", "-C", str(person.home)).out
    assert ("fetch" in elsewhere, "pytest" in elsewhere) == (True, False)

    explained = person.runs("permissions", "explain", "pytest -q tests")
    assert "default       allow  the rule execute(pytest *)" in explained.out
    assert "plan          deny   the mode" in explained.out
    assert "default       ask" in person.runs("permissions", "explain", "-C", str(person.home), "pytest", "-q").out

    assert person.runs("permissions", "remove", "execute(pytest *)").code == 0
    assert person.runs("permissions", "remove", "execute(pytest *)").code == 2
    assert person.runs("permissions", "remove", "fetch", "--everywhere").code == 0
    assert person.runs("permissions", "list").out == ""


@pytest.mark.parametrize("rule", ["execute", "execute(sh *)", "frobnicate(x)", "edit(../**)", ""])
def test_a_rule_that_allows_too_much_or_is_none_is_refused_with_the_reason(person: Person, rule: str) -> None:
    refused = person.runs("permissions", "allow", rule)
    assert (refused.code, refused.out) == (2, "")
    assert "cannot be used" in refused.err
    assert not (person.profile / "permissions.toml").exists()


def test_explain_judges_the_words_as_one_command(person: Person) -> None:
    explained = person.runs("permissions", "explain", "git", "push", "--force")
    assert "$ git push --force\nrisk: critical" in explained.out
    assert "rm" in person.runs("permissions", "explain", "ls && rm -rf /").out
    assert person.runs("permissions", "explain").code == 2


def test_engines_say_whether_they_can_be_used(meet: Introduction) -> None:
    person = meet(reply("Hi."), models=("m1", "m2"))
    engines = {each["name"]: each for each in map(json.loads, person.runs("engines", "--json").out.splitlines())}
    assert engines["openai_compatible"]["usable"] is True
    assert [model["name"] for model in engines["openai_compatible"]["models"]] == ["m1", "m2"]
    assert engines["rehearsal"]["usable"] is True
    assert "m1, m2" in person.runs("engines").out


def test_doctor_names_what_is_wrong_and_its_exit_code_says_whether_anything_is(meet: Introduction) -> None:
    person = meet(reply("Hi."))
    well = person.runs("doctor")
    assert (well.code, well.err) == (0, "")
    for part in ("python", "profile", "keeper", "engine rehearsal", "can be reached"):
        assert part in well.out
    assert not person.profile.exists()
    ill = person.runs("doctor", also={"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    assert (ill.code, "cannot be reached" in ill.out) == (1, True)


def test_profile_check_names_the_file_and_the_key(person: Person) -> None:
    person.profile.mkdir(mode=0o700)
    settings = person.profile / "settings.toml"
    settings.write_text('modle = "x"\nmode = "brave"\n')
    settings.chmod(0o600)
    found = person.runs("profile", "check")
    assert found.code == 1
    assert str(settings) in found.out
    assert "mode" in found.out
    settings.write_text('modle = "x"\n')
    only_warned = person.runs("profile", "check")
    assert (only_warned.code, "did you mean" in only_warned.out) == (0, True)


def test_the_rehearsal_engine_answers_honestly_without_any_configuration(person: Person) -> None:
    ended = person.runs("run", "--engine", "rehearsal", "what can you do?")
    assert ended.code == 0
    assert "there is no model behind it" in ended.out


def test_a_full_disk_behind_stdout_is_said(person: Person) -> None:
    assert person.runs("permissions", "deny", "fetch").code == 0
    for command in (("permissions", "list"), ("run", "--engine", "rehearsal", "hello")):
        with open("/dev/full", "wb") as disk, person.starts(*command, stdout=disk.fileno()) as process:
            _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert b"No space left on device" in err
        assert b"Traceback" not in err


def test_run_without_any_model_says_what_to_set_and_keeps_nothing(person: Person) -> None:
    ended = person.runs("run", "hello")
    assert (ended.code, ended.out) == (2, "")
    assert "OPENAI_API_KEY" in ended.err
    assert "enginehouse demo" in ended.err
    assert not person.profile.exists()
