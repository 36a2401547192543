"""The system's keyring: a real one, none at all, and ones that misbehave."""

import json
import os
import sys
from pathlib import Path

import pytest
from credentials.desktop import Desktop, desktop_in

from enginehouse_core.credentials.store import CredentialsUnusable, StoredKey
from enginehouse_core.credentials.system_keyring import SystemKeyring

KEY = StoredKey(address="https://models.example.com:443", value="planted-key-0123456789")
_ASK = """
import os, sys
from enginehouse_core.credentials.store import CredentialsUnusable, StoredKey
from enginehouse_core.credentials.system_keyring import SystemKeyring
store = SystemKeyring("profile-1", os.environ)
key = StoredKey(address="https://models.example.com:443", value="planted-key-0123456789")
try:
"""


@pytest.fixture
def desktop(tmp_path: Path) -> Desktop:
    return desktop_in(tmp_path)


def asked(desktop: Desktop, code: str, *, unlocked: bool = True) -> str:
    body = "".join(f"    {line}\n" for line in code.splitlines())
    done = desktop.python(
        f"{_ASK}{body}except CredentialsUnusable as error:\n    print('unusable:', error)\n", unlocked=unlocked
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_real_keyring_keeps_a_key_and_gives_it_back_in_another_process(desktop: Desktop) -> None:
    assert asked(desktop, "store.write('house', key)\nprint(store.title, store.read('house') == key)") == (
        "Secret Service True"
    )
    assert asked(desktop, "print(store.read('house') == key, store.read('other'))") == "True None"
    assert asked(desktop, "print(store.delete('house'), store.delete('house'), store.read('house'))") == (
        "True False None"
    )


def test_two_profiles_do_not_share_a_key(desktop: Desktop) -> None:
    code = "store.write('house', key)\nprint(SystemKeyring('profile-2', os.environ).read('house'))"
    assert asked(desktop, code) == "None"


def test_a_key_in_a_real_keyring_is_in_no_file_of_it_as_text(desktop: Desktop) -> None:
    asked(desktop, "store.write('house', key)")
    found = [path for path in desktop.home.rglob("*") if path.is_file() and KEY.value.encode() in path.read_bytes()]
    assert list((desktop.home / "data" / "keyrings").glob("*.keyring"))
    assert found == []


def test_a_keyring_that_nobody_unlocked_is_said_and_not_waited_for(desktop: Desktop) -> None:
    asked(desktop, "store.write('house', key)")
    told = asked(desktop, "store.read('house')", unlocked=False)
    assert told.startswith("unusable: the system's keyring cannot be used: ")
    assert KEY.value not in told


def test_without_a_keyring_it_says_so_and_names_what_it_looked_for(tmp_path: Path) -> None:
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }
    with pytest.raises(CredentialsUnusable, match="there is none") as caught:
        SystemKeyring("p", environment).write("house", KEY)
    assert "Secret Service" in str(caught.value)
    assert KEY.value not in str(caught.value)


def worker(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_keyring_that_never_answers_is_left_alone_and_its_process_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    with pytest.raises(CredentialsUnusable, match="did not answer within 1 s"):
        SystemKeyring("p", os.environ, worker=worker(code), deadline_s=1).read("house")
    if pid.exists():  # else it was ended before it could write that
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_a_person_is_told_that_the_keyring_waits_for_them() -> None:
    value = json.dumps({"address": KEY.address, "key": KEY.value})
    lines = [{"waiting": "Secret Service"}, {"title": "Secret Service", "value": value}]
    said = "\\n".join(json.dumps(line) for line in lines)
    told: list[str] = []
    store = SystemKeyring(
        "p", os.environ, waiting=told.append, worker=worker(f"print({said!r}.replace(chr(92) + 'n', chr(10)))")
    )
    assert store.read("house") == KEY
    assert told == ["Secret Service"]


@pytest.mark.parametrize(
    "code,told",
    [
        ("print('nonsense')", "talks nonsense"),
        ("pass", "ended without an answer"),
        ('print(\'{"title": "t", "value": "of another program"}\')', "not written by Enginehouse"),
        ('print(\'{"problem": "it said it stored the key, and does not give it back"}\')', "does not give it back"),
    ],
)
def test_what_the_keyring_does_not_confirm_is_an_error(code: str, told: str) -> None:
    with pytest.raises(CredentialsUnusable, match=told):
        SystemKeyring("p", os.environ, worker=worker(f"input(); {code}")).read("house")


def test_a_key_is_in_no_argument_and_no_variable_of_the_process_that_asks() -> None:
    """What `/proc` shows of it, it says itself, with a mask on what it was given on stdin."""
    code = (
        "import json, os, sys; q = json.loads(input()); v = json.loads(q['value'])['key'];"
        "seen = v in ' '.join(sys.orig_argv) or v in ' '.join(os.environ.values());"
        "print(json.dumps({'problem': f'seen: {seen}'}))"
    )
    with pytest.raises(CredentialsUnusable, match="seen: False"):
        SystemKeyring("p", {"DEEPSEEK_API_KEY": KEY.value}, worker=worker(code)).write("house", KEY)


def test_the_key_is_in_no_repr() -> None:
    assert KEY.value not in repr(KEY)
