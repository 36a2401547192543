"""The host conformance suite, version 1: what whoever looks through a host may rely on.

Rule: a host is judged by what a person can read and do in it, and by the record; never by its code. Subclass, give it a
driver, and run pytest:

    class TestMyHost(HostConformance):
        @pytest.fixture
        async def driver(self, tmp_path: Path) -> AsyncGenerator[MyDriver]: ...

Every test is a sentence and its docstring the rule. What a host cannot do skips, with the reason its driver gives.
Needs the extra `enginehouse-protocol[conformance]`, and anyio's `anyio_backend` fixture to be `asyncio`.
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"enginehouse_protocol.conformance.hosts.{part}"
        for part in ("play", "showing", "cards", "interrupts", "windows", "floods")
    )
)

from enginehouse_protocol.conformance.hosts.driver import (  # noqa: E402 - after the rewrite is registered
    Ability,
    HostDriver,
    Window,
)
from enginehouse_protocol.conformance.hosts.stage import (  # noqa: E402
    AskPerson,
    Hold,
    Reply,
    RunCommand,
    Use,
    WriteFile,
)
from enginehouse_protocol.conformance.hosts.suite import HostConformance  # noqa: E402

__all__ = [
    "Ability",
    "AskPerson",
    "Hold",
    "HostConformance",
    "HostDriver",
    "Reply",
    "RunCommand",
    "Use",
    "Window",
    "WriteFile",
]
