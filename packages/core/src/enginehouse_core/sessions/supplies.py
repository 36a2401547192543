"""What each session works with (provider, key, environment), which host supplied it, and every secret that came along.

Rule: in memory, for as long as this process lives. What is secret for one session is masked in all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from enginehouse_core.masking import Masker
from enginehouse_core.workspace.environment import command_environment
from enginehouse_protocol.engine import Access, Secret
from enginehouse_protocol.hub import Launch
from enginehouse_protocol.ids import SessionId


@dataclass(frozen=True)
class Supplied:
    """What a host gave a session to work with from here on."""

    access: Access
    by: str = ""
    """The host, where the record must say so: it is another one than before, or it brought another key."""
    names: tuple[str, ...] = ()
    """Of the secrets."""


class Supplies:
    def __init__(self, learned: Callable[[Masker], None]) -> None:
        """`learned` is called with a new masker whenever there is a secret that was not known."""
        self.masker = Masker({})
        self._learned = learned
        self._secrets: dict[str, str] = {}
        self._given: dict[SessionId, tuple[str, Access]] = {}

    def masked(self, data: bytes) -> bytes:
        """With what is known by now. Slow for much data: in a worker."""
        return self.masker.bytes_(data)

    def of(self, session_id: SessionId) -> Access | None:
        """What this session works with; None: nobody has said since the hub started."""
        given = self._given.get(session_id)
        return given[1] if given else None

    def give(self, session_id: SessionId, host: str, launch: Launch) -> Access:
        self._learn(launch.secrets)
        secret = Secret(launch.key, launch.secrets[launch.key]) if launch.key else None
        environment = command_environment(launch.environment)
        access = Access(provider=launch.provider, secret=secret, environment=environment)
        self._given[session_id] = host, access
        return access

    def renew(self, session_id: SessionId, owner: str, host: str, launch: Launch | None) -> Supplied | None:
        """The same for a session that has begun, `owner` being the host that began it. None: nothing is new."""
        if launch is None:
            return None
        last_host, before = self._given.get(session_id, (owner, None))
        access = self.give(session_id, host, launch)
        if access == before:
            return None
        another = host != last_host or (before is not None and before.secret != access.secret)
        return Supplied(access, by=host if another else "", names=tuple(sorted(launch.secrets)))

    def forget(self, session_id: SessionId) -> None:
        self._given.pop(session_id, None)

    def _learn(self, secrets: Mapping[str, str]) -> None:
        known = set(self._secrets.values())
        new = {name: value for name, value in secrets.items() if value not in known}
        for name, value in new.items():
            # A second value under a known name: an engine may still hold the first, so both stay masked.
            while name in self._secrets:
                name += "'"
            self._secrets[name] = value
        if new:
            self.masker = Masker(self._secrets)
            self._learned(self.masker)
