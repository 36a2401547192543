"""The main job on somebody else's code: a published project with one seeded bug, its own tests, a model over HTTP.

Rule: the model decides by what its request holds. It knows the bug's right line, and nothing of where it is.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import Person
from model_server import Answer, ChatRequest, assert_prefix_chain, call, reply

RELEASE = "inflection==0.5.1"
SOURCE = "inflection/__init__.py"
RIGHT = r"""word = re.sub(r"([a-z\d])([A-Z])", r'\1_\2', word)"""
WRONG = r"""word = re.sub(r"([a-z])([A-Z])", r'\1_\2', word)"""
FAILS = "test_inflection.py::test_underscore[Area51Controller-area51_controller]"
TESTS = "python -m pytest -q -p no:cacheprovider"
RUN_TESTS = call("bash", {"command": f"{TESTS} test_inflection.py"})
DOWNLOAD_S = 90


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as its authors published it, unpacked."""
    folder = tmp_path_factory.mktemp("release")
    archive = _downloaded(folder)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def test_an_agent_mends_a_published_project_and_its_own_tests_say_so(meet: Introduction, release: Path) -> None:
    person = meet(_mender)
    shutil.copytree(release, person.project, dirs_exist_ok=True)
    source = person.project / SOURCE
    published = source.read_text()
    assert published.count(RIGHT) == 1
    source.write_text(published.replace(RIGHT, WRONG))
    assert _failing(person) == [FAILS]
    allowed = person.runs("permissions", "allow", f"execute({TESTS} *)")
    assert allowed.code == 0, allowed.err

    ended = person.runs("run", "--json", "--mode", "accept-edits", "test_inflection.py fails. Find out why, mend it.")

    assert ended.code == 0, ended.err
    assert source.read_text() == published
    assert _failing(person) == []
    session_id = person.session_id()
    assert person.runs("sessions", "events", session_id).out_bytes == ended.durable
    transcript = person.profile / "transcripts" / session_id / "transcript.jsonl"
    assert transcript.read_bytes().partition(b"\n")[2] == ended.durable  # the first line says the format

    uses = {body["call_id"]: body["name"] for body in ended.bodies("tool.use")}
    decided = [(uses[body["call_id"]], *_judged(body)) for body in ended.bodies("permission.decided")]
    assert sorted(decided[:2]) + decided[2:] == [  # the first two are parallel
        ("list_dir", "allow", "mode", "safe", None),
        ("read_file", "allow", "mode", "safe", None),
        ("bash", "allow", "rule", "dangerous", f"execute({TESTS} *)"),
        ("grep", "allow", "mode", "safe", None),
        ("read_file", "allow", "mode", "safe", None),
        ("edit_file", "allow", "mode", "write", None),
        ("bash", "allow", "rule", "dangerous", f"execute({TESTS} *)"),
    ]
    assert ended.bodies("permission.requested") == []
    results = [(uses[body["call_id"]], body["status"]) for body in ended.bodies("tool.result")]
    assert sorted(results[:2]) + results[2:] == [
        ("list_dir", "ok"),
        ("read_file", "ok"),
        ("bash", "error"),  # the tests, failing
        ("grep", "ok"),
        ("read_file", "ok"),
        ("edit_file", "ok"),
        ("bash", "ok"),  # the tests, passing
    ]
    assert_prefix_chain(meet.server.quiet())
    assert meet.server.problems() == []


def _mender(request: ChatRequest) -> Answer:
    """Look around, run the tests, search what the failing one tests, read it, mend it, run the tests again."""
    last = request.tool_results[-1].text if request.tool_results else ""
    if not last:
        look = (call("list_dir", {"path": "."}), call("read_file", {"path": "README.rst"}))
        return reply("I look around first.", calls=look)
    if failing := re.search(r"FAILED test_inflection\.py::test_([a-z]+)", last):
        search = call("grep", {"pattern": f"def {failing[1]}\\b", "glob": "*.py"})
        return reply(f"`{failing[1]}` fails.", calls=[search])
    if found := re.match(r"(\S+\.py):(\d+): def ", last):
        return reply(calls=[call("read_file", {"path": found[1], "offset": int(found[2]), "limit": 30})])
    if WRONG in last:
        edit = {"path": _path_of_the_last_call(request), "edits": [{"old": WRONG, "new": RIGHT}]}
        return reply("Digits before a capital are forgotten.", calls=[call("edit_file", edit)])
    if " passed in " in last:
        return reply("Mended: a digit before a capital starts a word, too. All tests pass.")
    return reply("Now the tests.", calls=[RUN_TESTS])


def _path_of_the_last_call(request: ChatRequest) -> str:
    [last] = [each["tool_calls"] for each in request.messages if each.get("tool_calls")][-1]
    found = re.search(r'"path":\s*"([^"]+)"', last["function"]["arguments"])
    assert found is not None
    return found[1]


def _judged(body: dict[str, Any]) -> tuple[str, str, str, str | None]:
    return body["decision"]["type"], body["by"], body["risk"], body.get("rule")


def _failing(person: Person) -> list[str]:
    """The project's tests that fail, by name. All of them ran, whatever the agent says."""
    ended = subprocess.run(
        [sys.executable, *TESTS.split()[1:], "test_inflection.py"],
        cwd=person.project,
        env=person.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    failed = re.findall(r"^FAILED (\S+)", ended.stdout, re.MULTILINE)
    assert f"{455 - len(failed)} passed" in ended.stdout, ended.stdout + ended.stderr
    return failed


def _downloaded(folder: Path) -> Path:
    """The project's source archive. pip is asked, since it knows where this machine gets its packages from."""
    base = getattr(sys, "_base_executable", sys.executable)
    tried: list[str] = []
    for pip in ([base, "-m", "pip"], [os.environ.get("UV", "uv"), "tool", "run", "pip"]):
        command = [*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), RELEASE]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            tried.append(f"{pip[0]}: {error}")
            continue
        if archives := list(folder.glob("*.tar.gz")):
            return archives[0]
        tried.append((ended.stderr.strip().splitlines() or ["no output"])[-1])
    pytest.skip(f"the source of {RELEASE} cannot be downloaded: {'; '.join(tried)}")
