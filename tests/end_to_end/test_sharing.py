"""Several processes on one profile: through the hub they all go on; beside somebody without one, only who reads."""

import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S
from model_server import hold, reply


def test_everything_works_beside_a_run_through_the_hub(meet: Introduction) -> None:
    held = reply(deltas=["Half ", hold("middle"), "whole."])
    person = meet(lambda request: held if request.last_user_text == "second" else reply("Hi."))
    assert person.runs("run", "first").code == 0
    session_id = person.session_id()
    with person.starts("run", "-c", "second") as process:
        meet.server.reached("middle", PATIENCE_S)
        assert "running" in person.runs("sessions", "list").out
        assert person.runs("run", "third").out == "Hi.\n"
        other = person.session_id()
        assert person.runs("sessions", "rename", session_id, "A title").code == 0
        assert person.runs("sessions", "close", other).code == 0
        assert person.runs("sessions", "delete", other, "--yes").code == 0
        assert person.runs("sessions", "check").code == 0
        meet.server.release("middle")
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b"Half whole.\n")
    assert [(info["id"], info["title"]) for info in person.runs("sessions", "list", "--json").events] == [
        (session_id, "A title")
    ]


def test_reading_works_beside_a_run_without_a_hub_and_writing_names_its_holder(meet: Introduction) -> None:
    person = meet([reply("One."), reply(deltas=["Half ", hold("middle"), "whole."])])
    assert person.runs("run", "--no-hub", "first").code == 0
    session_id = person.session_id()
    with person.starts("run", "--no-hub", "-c", "second") as process:
        meet.server.reached("middle", PATIENCE_S)
        for arguments, says in (
            (("sessions", "list"), "running"),
            (("sessions", "show", session_id), "> second"),
            (("sessions", "events", session_id), "message.queued"),
            (("sessions", "check"), "sound"),
            (("permissions", "list"), ""),
            (("permissions", "explain", "ls"), "dangerous"),
            (("profile", "path"), str(person.profile)),
            (("profile", "check"), ""),
        ):
            read = person.runs(*arguments)
            assert (read.code, says in read.out) == (0, True), (arguments, read)
        for arguments in (
            ("run", "third"),
            ("run", "--no-hub", "third"),
            ("sessions", "rename", session_id, "A title"),
            ("sessions", "close", session_id),
            ("sessions", "delete", session_id, "--yes"),
            ("sessions", "check", "--repair"),
        ):
            refused = person.runs(*arguments)
            assert (refused.code, refused.out) == (2, ""), (arguments, refused)
            assert "`enginehouse run` (pid " in refused.err
            assert len(refused.err.splitlines()) == 1
        meet.server.release("middle")
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b"Half whole.\n")
    assert person.runs("sessions", "rename", session_id, "A title").code == 0
    assert "A title" in person.runs("sessions", "list").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("sessions", "list"),
        ("sessions", "check"),
        ("permissions", "list"),
        ("permissions", "explain", "git status"),
        ("profile", "path"),
        ("profile", "check"),
    ],
)
def test_reading_a_missing_profile_makes_nothing(meet: Introduction, arguments: tuple[str, ...]) -> None:
    person = meet(reply("unused"))
    before = sorted(person.home.rglob("*"))
    assert person.runs(*arguments).code == 0
    assert sorted(person.home.rglob("*")) == before
