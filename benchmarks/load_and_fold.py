"""Opening a long conversation: 100,000 events loaded and folded, beside msgspec decoding the same lines."""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.row import Row
from enginehouse_core.transcript.file import FILE_NAME
from enginehouse_core.transcript.scan import Header, encode_header
from enginehouse_protocol.codec import encode_event
from enginehouse_protocol.content import Text
from enginehouse_protocol.events import (
    DurableBody,
    Event,
    MessageAssistant,
    MessageUser,
    PermissionDecided,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.ids import SessionId, TurnId, new_call_id, new_message_id, new_reply_id, new_session_id
from enginehouse_protocol.permissions import Allow

EVENTS = 100_000
ROUNDS = 5
# Each measures itself in a fresh process: CPU seconds, and how far the peak of its memory rose.
_BEFORE = """
import gc, resource, sys, time
from pathlib import Path
import enginehouse_core.transcript.load as load
from enginehouse_protocol.events import Event
import msgspec
folder, session = Path(sys.argv[1]), sys.argv[2]
gc.collect(); gc.freeze()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
"""
_AFTER = """
print(time.process_time() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024)
"""
_OURS = "fold = load.load(folder, session).fold; assert fold.last_seq == " + str(EVENTS)
_MSGSPEC = f"""
decode = msgspec.json.Decoder(Event).decode
with open(folder / "{FILE_NAME}", "rb") as file:
    file.readline()
    count = 0
    for line in file:
        count += decode(line).seq > 0
assert count == {EVENTS}
"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        session_id = new_session_id()
        folder = Path(place)
        _write(folder / FILE_NAME, session_id)
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            theirs.append(_run(_MSGSPEC, folder, session_id))
            ours.append(_run(_OURS, folder, session_id))
    best, floor = min(ours)[0], min(theirs)[0]
    memory = min(memory for _, memory in ours)
    return [
        Row("load + fold 100k events, CPU", f"{best:.2f} s", f"msgspec alone {floor:.2f} s", best / floor, "<= 1.5"),
        Row("load + fold 100k events, memory", f"{memory:.0f} MB", "target 60 MB", memory / 60, "<= 1"),
    ]


def _run(code: str, folder: Path, session_id: SessionId) -> tuple[float, float]:
    argv = [sys.executable, "-c", _BEFORE + code + _AFTER, str(folder), session_id]
    seconds, megabytes = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(megabytes)


def _write(path: Path, session_id: SessionId) -> None:
    with path.open("wb") as file:
        file.write(encode_header(Header(session_id=session_id, created_at_ms=0)) + b"\n")
        seq = 0
        while seq < EVENTS:
            turn = TurnId(f"t_{seq}")
            for body in _step():
                seq += 1
                event = Event(session_id=session_id, seq=seq, at_ms=seq, turn_id=turn, body=body)
                file.write(encode_event(event) + b"\n")
                if seq == EVENTS:
                    return


def _step() -> list[DurableBody]:
    call, reply = new_call_id(), new_reply_id()
    text = "Looking at the next file, then running the tests again. " * 4
    command = "python3 -m pytest -q tests/test_parser.py"
    return [
        MessageUser(message_id=new_message_id(), content=(Text(text=text),)),
        MessageAssistant(message_id=new_message_id(), reply_id=reply, text=text),
        ToolUse(
            call_id=call, reply_id=reply, name="bash", kind="execute", title=f"$ {command}", input={"command": command}
        ),
        PermissionDecided(call_id=call, decision=Allow(), by="rule", risk="dangerous", input_digest="0" * 32),
        ToolResult(call_id=call, status="ok", content=(Text(text=text * 2),), duration_ms=900),
        UsageUpdated(scope="request", input_tokens=9_000, output_tokens=200, context_tokens=9_200),
    ]
