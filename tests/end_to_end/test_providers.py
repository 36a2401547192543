"""Providers of the profile on the command line: added, used, tested, removed; and what a model was sent."""

import hashlib
import json
import shutil

from end_to_end.conftest import Introduction
from end_to_end.person import Person
from model_server import call, fault, reply

KEY = "planted-key-0123456789"


def without_variables(person: Person) -> str:
    """Nothing but the profile says where the model is. Returns the address."""
    person.environment.pop("OPENAI_API_KEY")
    return person.environment.pop("OPENAI_BASE_URL")


def add(person: Person, name: str, address: str, *more: str, typed: bytes = b"") -> None:
    added = person.runs("providers", "add", name, "--base-url", address, *more, typed=typed)
    assert added.code == 0, added.err


def test_a_provider_is_added_and_its_stored_key_reaches_its_address_and_no_record(meet: Introduction) -> None:
    person = meet(reply("Hello."))
    address = without_variables(person)
    add(person, "house", address, "--key-stdin", "--store", "unencrypted-file", typed=f"{KEY}\n".encode())
    ended = person.runs("run", "--provider", "house", f"do you know {KEY}?")
    assert (ended.code, ended.out) == (0, "Hello.\n")
    assert meet.asked()[0].headers["authorization"] == f"Bearer {KEY}"
    session = person.session_id()
    recorded = person.runs("sessions", "events", session)
    assert recorded.events[0]["body"]["provider"] == "house"
    assert "do you know «secret:house.key»?" in recorded.out, recorded.out
    holding = [path.name for path in person.home.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holding == ["unencrypted_keys.toml"]


def test_a_session_that_goes_on_keeps_its_provider_and_goes_to_no_other_by_itself(meet: Introduction) -> None:
    person = meet([reply("One."), reply("Two."), reply("Three.")])
    address = without_variables(person)
    add(person, "house", address, "--no-key")
    add(person, "other", "http://127.0.0.1:9/v1", "--no-key")
    assert person.runs("run", "--provider", "house", "one").code == 0
    elsewhere = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "ENGINEHOUSE_PROVIDER": "other"}
    assert person.runs("run", "-c", "two", also=elsewhere).out == "Two.\n"
    assert person.runs("providers", "remove", "house").code == 0
    gone = person.runs("run", "-c", "three", also=elsewhere)
    assert gone.code == 2
    assert "began with provider 'house'" in gone.err
    add(person, "house2", address, "--no-key")
    assert person.runs("run", "-c", "--provider", "house2", "three").out == "Three.\n"


def test_several_providers_and_no_word_which_is_a_question(meet: Introduction) -> None:
    person = meet(reply("Hello."))
    address = without_variables(person)
    for name in ("one", "two"):
        add(person, name, address, "--no-key")
    asked = person.runs("run", "hello")
    assert asked.code == 2
    assert "--provider" in asked.err
    assert "one, two" in asked.err
    assert person.runs("run", "--no-hub", "hello", also={"ENGINEHOUSE_PROVIDER": "two"}).code == 0


def test_a_key_is_asked_for_without_showing_it(meet: Introduction) -> None:
    person = meet(reply("Hello."))
    address = without_variables(person)
    words = ("providers", "add", "house", "--base-url", address, "--store", "unencrypted-file")
    with person.sits_at(*words) as terminal:
        terminal.until("Key of house")
        terminal.until("): ")
        terminal.types(f"{KEY}\n")
        assert terminal.ends().code == 0
    assert KEY not in terminal.shown
    assert KEY in (person.profile / "unencrypted_keys.toml").read_text()


def test_a_server_is_tested_and_the_exit_code_says_whether_an_agent_can_work_with_it(meet: Introduction) -> None:
    person = meet(fault(500, "out of memory"))
    address = without_variables(person)
    add(person, "house", address, "--no-key", "--model", "scripted")
    tested = person.runs("providers", "test", "house")
    assert tested.code == 1
    assert "out of memory" in tested.out
    assert "An agent cannot work with this server." in tested.out
    as_json = person.runs("providers", "test", "--base-url", address, "--model", "scripted", "--json")
    assert json.loads(as_json.out)["model"] == "scripted"
    assert person.runs("providers", "test", "nobody").code == 2


def test_the_prompt_of_every_step_is_rebuilt_to_the_bytes_that_were_sent(meet: Introduction) -> None:
    looks = [call("list_dir", {"path": "."})]
    person = meet([reply("I look.", calls=looks), reply("Fine."), reply("Still — ž — fine.")])
    assert person.runs("run", "--no-hub", "look around").code == 0
    assert person.runs("run", "--no-hub", "-c", "--model", "scripted", "--effort", "low", "and now?").code == 0
    session = person.session_id()
    sent = [request.raw for request in meet.asked()]
    assert len(sent) == 3
    listed = person.runs("sessions", "prompt", session, "--json").events
    assert [each["number"] for each in listed] == [1, 2, 3]
    assert [each["request_sha256"] for each in listed] == [hashlib.sha256(body).hexdigest() for body in sent]
    for number, body in enumerate(sent, start=1):
        shown = person.runs("sessions", "prompt", session, "--step", str(number))
        assert (shown.code, shown.out_bytes) == (0, body)
        assert "exactly what was sent" in shown.err
    beyond = person.runs("sessions", "prompt", session, "--step", "4")
    assert beyond.code == 2
    assert "has 3 model calls" in beyond.err


def test_a_prompt_of_another_renderer_or_of_a_changed_record_is_not_passed_off_as_the_one_that_was_sent(
    meet: Introduction,
) -> None:
    person = meet(reply("Fine."))
    assert person.runs("run", "--no-hub", "hello there").code == 0
    session = person.session_id()
    record = person.profile / "transcripts" / session / "transcript.jsonl"
    original = record.read_bytes()
    record.write_bytes(original.replace(b'"renderer":1', b'"renderer":0').replace(b"hello there", b"hello where"))
    older = person.runs("sessions", "prompt", session, "--step", "1")
    assert older.code == 1
    assert "rendered by version 0" in older.err
    record.write_bytes(original.replace(b"hello there", b"hello where"))
    changed = person.runs("sessions", "prompt", session, "--step", "1")
    assert changed.code == 1
    assert "not what was sent" in changed.err
    shutil.rmtree(record.parent)
    assert person.runs("sessions", "prompt", session, "--step", "1").code == 2
