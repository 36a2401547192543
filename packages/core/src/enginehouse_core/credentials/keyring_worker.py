"""The process that talks to the system's keyring, for one question.

Rule: a keyring may block for ever (a prompt nobody sees, a service that hangs), so it is asked in a process that can be
ended. Only the keyrings of the system itself count: what a configuration file, a variable or an installed package
offers in their place may be a plain file, or nothing at all.

One JSON line on stdin: `{verb, service, name, value?, may_ask}`. JSON lines on stdout: `{"waiting": …}` when a person
has to unlock it, at the end one `Answer`. A key is in stdin and stdout and nowhere else.
"""

import importlib
import json
import logging
import sys
from typing import Any

_ALLOWED = (
    ("SecretService", "Keyring", "Secret Service"),
    ("kwallet", "DBusKeyring", "KWallet"),
    ("macOS", "Keyring", "macOS Keychain"),
)


class _Problem(Exception):
    pass


def main() -> int:
    logging.disable(logging.CRITICAL)  # what a library writes down could hold a value
    question: dict[str, Any] = json.loads(sys.stdin.readline())
    try:
        title, keyring = _system_keyring()
        _unlocked(title, may_ask=bool(question["may_ask"]))
        _say(title=title, **_done(keyring, question))
    except _Problem as problem:
        _say(problem=str(problem))
    except Exception as error:  # noqa: BLE001 the process ends here; the words of a keyring's library are all there is
        if type(error).__name__ == "KeyringLocked":
            _say(problem="it is locked, and was not unlocked")
            return 0
        text = " ".join(str(error).split())[:300]
        value = question.get("value")
        _say(problem=f"{type(error).__name__}: {text.replace(value, '…') if value else text}")
    return 0


def _system_keyring() -> tuple[str, Any]:
    """The one the system prefers."""
    usable: list[tuple[float, str, Any]] = []
    problems: list[str] = []
    for module, name, title in _ALLOWED:
        try:
            kind: Any = getattr(importlib.import_module(f"keyring.backends.{module}"), name)
            usable.append((float(kind.priority), title, kind))
        except Exception as error:  # noqa: BLE001 each says in its own way that it is not there
            problems.append(f"{title}: {' '.join(str(error).split())[:200] or type(error).__name__}")
    if not usable:
        raise _Problem(f"there is none ({'; '.join(problems)})")
    _, title, kind = max(usable, key=lambda found: found[0])
    return title, kind()


def _unlocked(title: str, *, may_ask: bool) -> None:
    """A locked keyring asks the person with a window of its own, and waits."""
    if title == "macOS Keychain" and may_ask:
        _say(waiting=title)  # it does not say beforehand whether it will ask
    if title != "Secret Service":
        return
    secretstorage: Any = importlib.import_module("secretstorage")
    connection = secretstorage.dbus_init()
    try:
        if secretstorage.get_default_collection(connection).is_locked():
            if not may_ask:
                raise _Problem("it is locked; unlock it, by logging in to the desktop or with its own program")
            _say(waiting=title)
    finally:
        connection.close()


def _done(keyring: Any, question: dict[str, Any]) -> dict[str, Any]:
    service, name = str(question["service"]), str(question["name"])
    match question["verb"]:
        case "look":
            return {}
        case "read":
            return {"value": keyring.get_password(service, name)}
        case "write":
            value = str(question["value"])
            keyring.set_password(service, name, value)
            if keyring.get_password(service, name) != value:
                raise _Problem("it said it stored the key, and does not give it back")
            return {}
        case "delete":
            there = keyring.get_password(service, name) is not None
            if there:
                keyring.delete_password(service, name)
            if keyring.get_password(service, name) is not None:
                raise _Problem("it said it deleted the key, and still has it")
            return {"deleted": there}
        case verb:
            raise _Problem(f"nobody can {verb} it")


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main())
