"""Images a person names: shown to the model, said in words to people, refused with a reason."""

import base64
import hashlib
from typing import Any

import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import Person
from model_server import call, reply

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAADUlEQVR42mP8z8AAAAMBAQAY3Y2wAAAAAElFTkSuQmCC")
LARGE = PNG + bytes(12_000_000)


def shown(request: Any) -> list[bytes]:
    """The images of a request, in order."""
    contents = [message["content"] for message in request.body["messages"] if isinstance(message["content"], list)]
    parts = [part["image_url"]["url"] for content in contents for part in content if part["type"] == "image_url"]
    return [base64.b64decode(url.removeprefix("data:image/png;base64,")) for url in parts]


def blobs(person: Person) -> list[str]:
    return sorted(blob.name for blob in person.profile.glob("transcripts/*/blobs/*"))


def test_images_reach_the_model_whole_and_people_in_words(meet: Introduction, run: tuple[str, ...]) -> None:
    person = meet([reply("A dot, and a large one."), reply("Still there.")])
    (person.project / "dot.png").write_bytes(PNG)
    (person.project / "large.png").write_bytes(LARGE)
    ended = person.runs(*run, "--image", "dot.png", "--image", "large.png", "what is this?")
    assert (ended.code, ended.out) == (0, "A dot, and a large one.\n")
    assert shown(meet.asked()[0]) == [PNG, LARGE]
    assert blobs(person) == sorted(hashlib.sha256(data).hexdigest() for data in (PNG, LARGE))
    read = person.runs("sessions", "show", person.session_id())
    assert f"[image: dot.png, 2×1, {len(PNG)} bytes]" in read.out
    assert "[image: large.png, 2×1, 12.0 MB]" in read.out
    assert person.runs(*run, "-c", "and now?").code == 0
    assert shown(meet.asked()[1]) == [PNG, LARGE]
    for step in (1, 2):
        prompt = person.runs("sessions", "prompt", person.session_id(), "--step", str(step))
        assert (prompt.code, "exactly what was sent" in prompt.err) == (0, True)
        assert prompt.out_bytes.rstrip(b"\n") == meet.asked()[step - 1].raw


def test_a_prompt_whose_image_is_lost_is_not_said_to_be_what_was_sent(meet: Introduction) -> None:
    person = meet(reply("A dot."))
    (person.project / "dot.png").write_bytes(PNG)
    assert person.runs("run", "--image", "dot.png", "what is this?").code == 0
    (blob,) = person.profile.glob("transcripts/*/blobs/*")
    blob.unlink()
    prompt = person.runs("sessions", "prompt", person.session_id(), "--step", "1")
    assert (prompt.code, "not what was sent" in prompt.err) == (1, True)


def test_the_agent_looks_at_an_image_of_the_project(meet: Introduction) -> None:
    person = meet([reply(calls=[call("read_file", {"path": "dot.png"})]), reply("A dot.")])
    (person.project / "dot.png").write_bytes(PNG)
    ended = person.runs("run", "look at dot.png")
    assert (ended.code, ended.out) == (0, "A dot.\n")
    assert shown(meet.asked()[1]) == [PNG]
    assert f"[image: dot.png, 2×1, {len(PNG)} bytes]" in ended.err


def test_a_message_that_is_only_sent_takes_its_images_along(meet: Introduction) -> None:
    person = meet([reply("Hello."), reply("A dot.")])
    (person.project / "dot.png").write_bytes(PNG)
    assert person.runs("run", "hello").code == 0
    sent = person.runs("sessions", "send", person.session_id(), "what is this?", "--wait", "--image", "dot.png")
    assert (sent.code, sent.out) == (0, "A dot.\n")
    assert shown(meet.asked()[1]) == [PNG]


@pytest.mark.parametrize(
    "name, data, why",
    [
        ("none.png", None, "cannot be read"),
        ("text.png", b"hello", "is no image"),
        ("huge.png", PNG + bytes(20_000_000), "more than 20000000 bytes"),
    ],
)
def test_what_is_no_image_is_refused_before_anything_starts(
    meet: Introduction, name: str, data: bytes | None, why: str
) -> None:
    person = meet(reply("Never said."))
    if data is not None:
        (person.project / name).write_bytes(data)
    ended = person.runs("run", "--image", name, "what is this?")
    assert (ended.code, ended.out) == (2, "")
    assert why in ended.err
    assert not list(person.profile.glob("transcripts/*"))


def test_an_engine_that_takes_no_images_is_named_and_no_turn_begins(meet: Introduction, run: tuple[str, ...]) -> None:
    person = meet(reply("Never said."))
    (person.project / "dot.png").write_bytes(PNG)
    ended = person.runs(*run, "--engine", "rehearsal", "--image", "dot.png", "what is this?")
    assert (ended.code, ended.out) == (2, "")
    assert "the engine 'rehearsal' takes no images" in ended.err
    events = person.runs("sessions", "events", person.session_id()).events
    assert [event["body"]["type"] for event in events] == ["session.created"]
