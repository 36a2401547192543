"""A secret that comes in by every door is in no byte of what is kept, shown or sent on.

Rule: the search knows nothing of how masking works. It looks for the value, its base64 at each of the three offsets and
its hexadecimal, in every file that is not the person's own and in everything that was printed.
"""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from select import select

import psutil
import pytest

from end_to_end.conftest import Introduction
from end_to_end.person import PATIENCE_S, Person
from model_server import Answer, call, fault, reply

SECRET = "acceptance/Zk3+q9X2-v7Rb1"
HALF = len(SECRET) // 2
OTHERS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/accept",
    "GITHUB_TOKEN": "ghp_acceptanceacceptanceaccepta1",
    "NPM_CONFIG__AUTH": "bnBtOmFjY2VwdGFuY2U",
    "MY_DB_PASSWORD": "hunter2-hunter2-acceptance",
}
URLS = {
    "DATABASE_URL": "postgres://app:pg-acceptance-9x8y7z@db/app",
    "HTTPS_PROXY": "http://someone:proxy-acceptance-4d3c@proxy.invalid:3128",
}
PASSWORDS = ("pg-acceptance-9x8y7z", "proxy-acceptance-4d3c")
READS_THE_SECRET = {
    "in two delayed pieces": f"head -c {HALF} key.txt; sleep 0.4; tail -c +{HALF + 1} key.txt",
    "letter by letter": 'while IFS= read -r -n1 c; do printf %s "$c"; sleep 0.01; done < key.txt',
    "as base64": "base64 key.txt; printf x | cat - key.txt | base64 -w0; printf xy | cat - key.txt | base64 -w 20",
    "as hexadecimal": "od -An -v -tx1 key.txt | tr -d ' \\n'; xxd -p key.txt; xxd -u -p key.txt",
    "across a chunk": f"head -c {256 * 1024 - HALF} /dev/zero | tr '\\0' x; cat key.txt",
    "where output is cut": 'read -r key < key.txt; for n in {1..4000}; do printf %s "$key"; done',
    "on stderr, and fails": "cat key.txt >&2; exit 9",
    "and is too slow": "cat key.txt; sleep 60.5",
}


def test_the_search_itself_finds_every_spelling() -> None:
    for spelled in (SECRET.encode(), base64.b64encode(SECRET.encode()), SECRET.encode().hex().encode()):
        assert _found(SECRET, b"before" + spelled + b"after")
    for before in (b"", b"x", b"xy"):
        assert _found(SECRET, base64.encodebytes(before + SECRET.encode() + b"after"))
    assert not _found(SECRET, SECRET[1:].encode())


@pytest.mark.parametrize("json_lines", [True, False], ids=["json", "text"])
def test_a_tool_prints_it_in_every_way(meet: Introduction, run: tuple[str, ...], json_lines: bool) -> None:
    calls = [
        call("bash", {"command": command} if "sleep 60" not in command else {"command": command, "timeout_s": 0.5})
        for command in READS_THE_SECRET.values()
    ]
    person = _person_with_a_secret(meet, [*(reply(calls=[each]) for each in calls), reply("Seen.")])
    flags = ("--json",) if json_lines else ()
    ended = person.runs(*run, "--mode", "yolo", *flags, "print it")
    assert ended.code == 0, ended.err
    printed = {"stdout": ended.out_bytes, "stderr": ended.err.encode()}
    assert _leaks(person, printed | _told(meet)) == []
    results = meet.asked()[-1].tool_results
    assert len(results) == len(READS_THE_SECRET)
    for result, way in zip(results, READS_THE_SECRET, strict=True):
        assert "«secret:OPENAI_API_KEY»" in result.text, way


def test_a_person_types_it_and_a_model_says_it_in_pieces(meet: Introduction, run: tuple[str, ...]) -> None:
    pieces = [SECRET[:3], SECRET[3:HALF], SECRET[HALF:]]
    written = call("write_file", ['{"path": "copy.txt", "content": "', *pieces, '"}'])
    coded = base64.b64encode(SECRET.encode()).decode()
    person = _person_with_a_secret(
        meet,
        [
            reply(deltas=["It is ", *pieces, ", I think."], reasoning=["Hm, ", *pieces], calls=[written]),
            reply(deltas=["Or ", *coded, " or ", *SECRET.encode().hex(), "."]),
            reply("Still here."),
        ],
    )
    ended = person.runs(*run, "--mode", "yolo", "--json", typed=f"my key is {SECRET}, use it".encode())
    assert ended.code == 0, ended.err
    shown = person.runs(*run, "-c", "again", typed=SECRET.encode())
    assert shown.code == 0, shown.err
    session_id = person.session_id()
    printed = {
        "--json": ended.out_bytes + ended.err.encode(),
        "text": (shown.out + shown.err).encode(),
        "list": person.runs("sessions", "list").out_bytes,
        "show": person.runs("sessions", "show", session_id).out_bytes,
        "events": person.runs("sessions", "events", session_id).out_bytes,
    }
    assert "«secret:OPENAI_API_KEY»" in printed["show"].decode()
    assert _leaks(person, printed | _told(meet)) == []
    assert (person.project / "copy.txt").read_text() == SECRET  # what runs is not masked


def test_on_a_terminal_it_is_not_shown_either(meet: Introduction) -> None:
    write = call("write_file", {"path": "copy.txt", "content": f"key = {SECRET}\n"})
    person = _person_with_a_secret(meet, [reply(deltas=[SECRET[:HALF], SECRET[HALF:]], calls=[write]), reply("Well.")])
    with person.sits_at("run", "go") as terminal:
        terminal.until("n: deny > ")
        terminal.types("y\n")
        ended = terminal.ends()
    assert (ended.code, (person.project / "copy.txt").read_text()) == (
        0,
        f"key = {SECRET}\n",
    )  # what runs is not masked
    assert _leaks(person, {"terminal": ended.err.encode()} | _told(meet)) == []


def test_a_server_that_repeats_the_key_in_its_error(meet: Introduction) -> None:
    person = _person_with_a_secret(meet, [fault(401, f"Incorrect API key provided: {SECRET}.", code="invalid_api_key")])
    ended = person.runs("run", "--json", "hello")
    assert ended.code != 0
    assert "Incorrect API key provided" in ended.out + ended.err
    assert _leaks(person, {"stdout": ended.out_bytes, "stderr": ended.err.encode()}) == []


def test_a_command_cannot_see_the_credentials_of_the_launching_shell(meet: Introduction, run: tuple[str, ...]) -> None:
    """L02: `env`, and the same read from /proc, of itself and of whoever started it."""
    commands = (
        "env; export -p; cat /proc/self/environ | tr '\\0' '\\n'",
        "cat /proc/self/cmdline /proc/$PPID/cmdline /proc/$$/environ | tr '\\0' '\\n'",
        "cat /proc/$PPID/environ | tr '\\0' '\\n'",
        "cat /proc/$PPID/environ | base64 -w0",
        "for pid in $(ls /proc | grep '^[0-9]*$'); do if grep -qs OPENAI_BASE_URL /proc/$pid/environ; then"
        " tr '\\0' '\\n' < /proc/$pid/environ; fi; done",
    )
    person = _person_with_a_secret(
        meet, [*(reply(calls=[call("bash", {"command": command})]) for command in commands), reply("Seen.")]
    )
    person.environment |= OTHERS | {"SSH_AUTH_SOCK": "/nowhere/agent.sock"}
    ended = person.runs(*run, "--json", "--mode", "yolo", "look around")
    assert ended.code == 0, ended.err
    results = [result.text for result in meet.asked()[-1].tool_results]
    assert len(results) == len(commands)
    for name in ("OPENAI_API_KEY", "SSH_AUTH_SOCK", *OTHERS):
        assert name not in results[0], name
    assert "PATH=" in results[0]
    printed = {"stdout": ended.out_bytes, "stderr": ended.err.encode()}
    assert _leaks(person, printed | _told(meet), secrets=(SECRET, *OTHERS.values())) == []


def test_a_password_inside_a_url_of_the_launching_shell_is_a_secret_too(meet: Introduction) -> None:
    commands = ("env", "tr '\\0' '\\n' < /proc/$PPID/environ")
    person = _person_with_a_secret(
        meet, [*(reply(calls=[call("bash", {"command": command})]) for command in commands), reply("Seen.")]
    )
    person.environment |= URLS
    ended = person.runs("run", "--json", "--mode", "yolo", "look around")
    assert ended.code == 0, ended.err
    printed = {"stdout": ended.out_bytes, "stderr": ended.err.encode()}
    assert "pg-acc" not in meet.asked()[1].tool_results[0].text
    assert _leaks(person, printed | _told(meet), secrets=PASSWORDS) == []


def test_the_processes_of_a_tool_hold_no_credential(meet: Introduction, run: tuple[str, ...]) -> None:
    """Looked at from outside, while the command runs; so are the processes that hold the key: their command lines."""
    command = "echo go > ready; sleep 63.5"
    person = _person_with_a_secret(meet, [reply(calls=[call("bash", {"command": command})]), reply("Done.")])
    person.environment |= OTHERS | URLS | {"SSH_AUTH_SOCK": "/nowhere/agent.sock"}
    secrets = (SECRET, *OTHERS.values(), *PASSWORDS)
    os.mkfifo(person.project / "ready")
    ready = os.open(person.project / "ready", os.O_RDONLY | os.O_NONBLOCK)
    with person.starts(*run, "--mode", "yolo", "look around") as process:
        assert select([ready], [], [], PATIENCE_S)[0]
        os.close(ready)
        hubs = person.hubs()
        below = [each for top in (psutil.Process(process.pid), *hubs) for each in top.children(recursive=True)]
        ours = [each for each in below if "enginehouse" in " ".join(each.cmdline())]
        tools = [each for each in below if each not in ours]
        assert tools
        for each in tools:
            seen = Path(f"/proc/{each.pid}/environ").read_bytes() + Path(f"/proc/{each.pid}/cmdline").read_bytes()
            assert [secret for secret in secrets if _found(secret, seen)] == [], each
            assert b"SSH_AUTH_SOCK" not in seen
        for each in [*ours, *hubs, psutil.Process(process.pid)]:
            words = Path(f"/proc/{each.pid}/cmdline").read_bytes()
            assert [secret for secret in secrets if _found(secret, words)] == [], each
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert _leaks(person, {}, secrets=secrets) == []


def _person_with_a_secret(meet: Introduction, script: list[Answer]) -> Person:
    """All folders are below the home, the key is the secret, and `key.txt` in the project holds it, too."""
    person = meet(script)
    person.environment |= {"XDG_RUNTIME_DIR": str(person.home / "run"), "OPENAI_API_KEY": SECRET}
    (person.home / "run").mkdir(mode=0o700)
    (person.project / "key.txt").write_text(SECRET)
    return person


def _told(meet: Introduction) -> dict[str, bytes]:
    """The bodies of the model's requests. The key itself travels in a header, to the address it belongs to."""
    return {f"request {request.number}": request.raw for request in meet.asked()}


def _leaks(person: Person, printed: dict[str, bytes], *, secrets: tuple[str, ...] = (SECRET,)) -> list[str]:
    """Where a secret is: names of files and of what was printed. The project is the person's own."""
    kept = {str(path): path.read_bytes() for path in _files(person)}
    assert any(name.endswith("transcript.jsonl") for name in kept)
    names = {f"the name {name}": name.encode() for name in kept}
    return [
        f"{secret[:6]}… in {where}"
        for where, data in (kept | names | printed).items()
        for secret in secrets
        if _found(secret, data)
    ]


def _files(person: Person) -> Iterator[Path]:
    for path in person.home.rglob("*"):
        if path.is_file() and not path.is_relative_to(person.project):
            yield path


def _found(secret: str, data: bytes) -> bool:
    value = secret.encode()
    unwrapped = data.replace(b"\\n", b"").replace(b"\n", b"")
    if any(form in each for form in (value, value.hex().encode()) for each in (data, data.lower(), unwrapped)):
        return True
    standard = unwrapped.replace(b"-", b"+").replace(b"_", b"/").replace(b"\\/", b"/")
    return any(form in standard for form in _base64_forms(value))


def _base64_forms(value: bytes) -> Iterator[bytes]:
    """The letters that depend on nothing but `value`, at each of the three places it may have in a longer text."""
    for before in (0, 1, 2):
        whole = base64.b64encode(bytes(before) + value)
        first = (0, 2, 3)[before]
        last = (before + len(value)) * 8 // 6
        yield whole[first:last]
