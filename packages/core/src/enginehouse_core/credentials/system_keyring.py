"""The system's keyring, asked through a process of its own.

Rule: no question takes longer than its deadline, and after it nothing is left running. What the keyring does not
confirm was not stored.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from enginehouse_core.credentials.store import CredentialsUnusable, StoredKey, StoreKind

DEADLINE_S = 5.0
"""For a keyring that is open. Starting Python takes a part of it."""
UNLOCKING_S = 60.0
"""For a person who types a password into the keyring's own window."""
SERVICE = "enginehouse"
_PASSED = ("HOME", "USER", "LOGNAME", "LANG", "PATH", "TMPDIR", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY")
_PASSED_BEGINNINGS = ("XDG_", "DBUS_", "KDE_", "LC_")
_WORKER = (sys.executable, "-P", "-m", "enginehouse_core.credentials.keyring_worker")


class SystemKeyring:
    kind: StoreKind = "keyring"

    def __init__(
        self,
        profile: str,
        environment: Mapping[str, str],
        *,
        waiting: Callable[[str], None] | None = None,
        worker: Sequence[str] = _WORKER,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`profile`: `Folders.key`, so that two profiles share nothing. `waiting`: tells a person, who sits here, that
        the keyring waits for its password; without one a locked keyring is not waited for."""
        self._profile = profile
        self._environment = {
            name: value for name, value in environment.items() if name in _PASSED or name.startswith(_PASSED_BEGINNINGS)
        }
        self._waiting = waiting
        self._worker = worker
        self._deadline_s = deadline_s
        self._title = "the system's keyring"

    @property
    def title(self) -> str:
        return self._title

    def look(self) -> str:
        """Which one it is. Raises `CredentialsUnusable` when there is none, or it is locked and nobody is there."""
        self._ask("look", "")
        return self._title

    def read(self, provider: str) -> StoredKey | None:
        text = self._ask("read", provider).get("value")
        if text is None:
            return None
        try:
            found = json.loads(text)
            return StoredKey(address=str(found["address"]), value=str(found["key"]))
        except (ValueError, KeyError, TypeError) as error:
            raise self._unusable("what it holds was not written by Enginehouse") from error

    def write(self, provider: str, key: StoredKey) -> None:
        self._ask("write", provider, json.dumps({"address": key.address, "key": key.value}))

    def delete(self, provider: str) -> bool:
        return bool(self._ask("delete", provider).get("deleted"))

    def _ask(self, verb: str, provider: str, value: str | None = None) -> dict[str, Any]:
        question = {
            "verb": verb,
            "service": SERVICE,
            "name": f"{self._profile}/{provider}",
            "value": value,
            "may_ask": self._waiting is not None,
        }
        try:
            worker = subprocess.Popen(
                self._worker,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise self._unusable(f"the process that asks it cannot be started: {error.strerror}") from error
        with worker:
            try:
                assert worker.stdin is not None
                worker.stdin.write(json.dumps(question).encode() + b"\n")
                worker.stdin.close()
                return self._answer(worker)
            except BrokenPipeError as error:
                raise self._unusable("the process that asks it ended at once") from error
            finally:
                worker.kill()

    def _answer(self, worker: "subprocess.Popen[bytes]") -> dict[str, Any]:
        patience = _Patience(self._deadline_s)
        for line in _lines(worker, patience):
            try:
                said: dict[str, Any] = json.loads(line)
            except ValueError as error:
                raise self._unusable("the process that asks it talks nonsense") from error
            if title := said.get("waiting"):
                patience.begin(UNLOCKING_S)
                if self._waiting is not None:
                    self._waiting(str(title))
            elif problem := said.get("problem"):
                raise self._unusable(str(problem))
            else:
                self._title = str(said.get("title", self._title))
                return said
        if patience.left_s() <= 0:
            raise self._unusable(f"it did not answer within {patience.allowed_s:g} s")
        raise self._unusable("the process that asks it ended without an answer")

    def _unusable(self, why: str) -> CredentialsUnusable:
        return CredentialsUnusable(f"{self._title} cannot be used: {why}")


class _Patience:
    def __init__(self, allowed_s: float) -> None:
        self.begin(allowed_s)

    def begin(self, allowed_s: float) -> None:
        self.allowed_s = allowed_s
        self._until = time.monotonic() + allowed_s

    def left_s(self) -> float:
        return self._until - time.monotonic()


def _lines(worker: "subprocess.Popen[bytes]", patience: _Patience) -> Iterator[bytes]:
    """Whole lines, until the process ends or it is too late."""
    assert worker.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        while (left_s := patience.left_s()) > 0:
            if not selector.select(left_s):
                continue
            data = os.read(worker.stdout.fileno(), 65_536)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            yield from whole
