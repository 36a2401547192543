"""The engine conformance suite, version 1: the real definition of the engine contract.

Rule: an adapter is done when it passes against the real thing. Subclass, give it a harness, and run pytest:

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def harness(self, tmp_path: Path) -> MyHarness: ...

Every test is a sentence and its docstring the rule. What does not apply skips, naming the missing ability.
Needs the extra `enginehouse-protocol[conformance]`, and anyio's `anyio_backend` fixture to be `asyncio`.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"enginehouse_protocol.conformance.{part}" for part in ("opened", "streaming", "tools", "interrupts", "sessions"))
)

from enginehouse_protocol.conformance.engine import EngineConformance  # noqa: E402 - after the rewrite is registered
from enginehouse_protocol.conformance.harness import (  # noqa: E402
    Ability,
    EngineHarness,
    ModelUse,
    RawArguments,
    Reply,
    RunCommand,
    WriteFile,
)
from enginehouse_protocol.conformance.scripted import ScriptedHarness  # noqa: E402

__all__ = [
    "Ability",
    "EngineConformance",
    "EngineHarness",
    "ModelUse",
    "RawArguments",
    "Reply",
    "RunCommand",
    "ScriptedHarness",
    "WriteFile",
]
