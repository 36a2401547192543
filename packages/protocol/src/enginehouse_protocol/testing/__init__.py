"""Real implementations to test against: a record in memory, a port, a workspace, a scripted engine.

Rule: nothing that ships imports this package.
"""

from enginehouse_protocol.testing.answers import allow, deny, edit, first_option, never, no_answer
from enginehouse_protocol.testing.history import MemoryHistory
from enginehouse_protocol.testing.native_store import NativeStore
from enginehouse_protocol.testing.port import RecordingPort, input_that_ran
from enginehouse_protocol.testing.script import (
    AskPerson,
    Crash,
    Do,
    Emit,
    End,
    Fail,
    Gate,
    Hang,
    Plan,
    RequestTurn,
    Say,
    Step,
    Together,
    Usage,
    UseTool,
    Wait,
)
from enginehouse_protocol.testing.scripted_engine import ScriptedEngine, ScriptedSession, last_text
from enginehouse_protocol.testing.workspace import TempWorkspace

__all__ = [
    "AskPerson",
    "Crash",
    "Do",
    "Emit",
    "End",
    "Fail",
    "Gate",
    "Hang",
    "MemoryHistory",
    "NativeStore",
    "Plan",
    "RecordingPort",
    "RequestTurn",
    "Say",
    "ScriptedEngine",
    "ScriptedSession",
    "Step",
    "TempWorkspace",
    "Together",
    "Usage",
    "UseTool",
    "Wait",
    "allow",
    "deny",
    "edit",
    "first_option",
    "input_that_ran",
    "last_text",
    "never",
    "no_answer",
]
