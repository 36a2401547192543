"""What each session works with (provider, key, environment), which host supplied it, and every secret that came along.

Rule: in memory, for as long as the session is there and this process lives. What is secret for one session is masked
in all.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from enginehouse_core.masking import Masker
from enginehouse_core.workspace.environment import command_environment
from enginehouse_protocol.engine import Access, Secret
from enginehouse_protocol.errors import UsageError
from enginehouse_protocol.hub import Launch
from enginehouse_protocol.ids import SessionId

_HELD_AT_ONCE = 3


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
        """`learned` is called with a new masker whenever what is secret has changed."""
        self.masker = Masker({})
        self._learned = learned
        self._given: dict[SessionId, tuple[str, Access]] = {}
        self._secrets: dict[SessionId, deque[Mapping[str, str]]] = {}
        """The newest of each session, and the ones before, which its engine may still hold."""
        self._masked_values: frozenset[str] = frozenset()

    def masked(self, data: bytes) -> bytes:
        """With what is known by now. Slow for much data: in a worker."""
        return self.masker.bytes_(data)

    def of(self, session_id: SessionId) -> Access | None:
        """What this session works with; None: nobody has said since the hub started."""
        given = self._given.get(session_id)
        return given[1] if given else None

    def give(self, session_id: SessionId, host: str, launch: Launch) -> Access:
        """Raises: UsageError: the key it names is not there."""
        if launch.key is not None and launch.key not in launch.secrets:
            raise UsageError(f"the launch names {launch.key!r} as its key, and has no secret of that name")
        known = self._secrets.setdefault(session_id, deque(maxlen=_HELD_AT_ONCE))
        if launch.secrets not in known:
            known.append(launch.secrets)
            self._look_again()
        secret = Secret(launch.key, launch.secrets[launch.key]) if launch.key else None
        environment = command_environment(launch.environment)
        access = Access(provider=launch.provider, secret=secret, environment=environment)
        self._given[session_id] = host, access
        return access

    def renew(
        self, session_id: SessionId, before: Access, owner: str, host: str, launch: Launch | None
    ) -> Supplied | None:
        """The same for a session that works with `before`, `owner` being the host that began it. None: nothing new."""
        if launch is None:
            return None
        last_host = self._given.get(session_id, (owner, None))[0]
        access = self.give(session_id, host, launch)
        if access == before:
            return None
        another = host != last_host or (before.secret is not None and before.secret != access.secret)
        return Supplied(access, by=host if another else "", names=tuple(sorted(launch.secrets)))

    def forget(self, session_id: SessionId) -> None:
        self._given.pop(session_id, None)
        if self._secrets.pop(session_id, None):
            self._look_again()

    def _look_again(self) -> None:
        """At what is secret by now. What no session works with any more is kept nowhere."""
        named: dict[str, str] = {}  # value → name
        for launches in self._secrets.values():
            for launch in launches:
                for name, value in launch.items():
                    named.setdefault(value, name)
        if named.keys() == self._masked_values:
            return
        self._masked_values = frozenset(named)
        secrets: dict[str, str] = {}
        for value, name in named.items():
            while name in secrets:  # a second value under a known name
                name += "'"
            secrets[name] = value
        self.masker = Masker(secrets)
        self._learned(self.masker)
