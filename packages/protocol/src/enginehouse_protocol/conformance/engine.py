"""The whole suite as one class to subclass."""

import pytest

from enginehouse_protocol.conformance.interrupts import Interrupts
from enginehouse_protocol.conformance.sessions import Sessions
from enginehouse_protocol.conformance.streaming import Streaming
from enginehouse_protocol.conformance.tools import Tools


class EngineConformance(Streaming, Tools, Interrupts, Sessions):
    """Every rule of the engine contract that can be seen from outside."""

    pytestmark = pytest.mark.anyio
