"""The conformance suite against the scripted engine: with the history alone, and with a store of its own."""

from pathlib import Path

import pytest

from enginehouse_protocol.conformance import EngineConformance, ScriptedHarness
from enginehouse_protocol.testing import NativeStore


class TestScriptedEngine(EngineConformance):
    @pytest.fixture
    def harness(self) -> ScriptedHarness:
        return ScriptedHarness()


class TestScriptedEngineWithAStore(EngineConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> ScriptedHarness:
        return ScriptedHarness(NativeStore(tmp_path / "store"))
