"""A conversation of some length, as the bytes of its transcript."""

from enginehouse_core.transcript.scan import Header, encode_header
from enginehouse_protocol.codec import encode_event
from enginehouse_protocol.content import Text
from enginehouse_protocol.events import (
    DurableBody,
    Event,
    MessageAssistant,
    MessageQueued,
    MessageUser,
    PermissionDecided,
    SessionCreated,
    ToolResult,
    ToolUse,
    TurnCompleted,
    TurnStarted,
)
from enginehouse_protocol.ids import CallId, EngineName, MessageId, ReplyId, SessionId, TurnId
from enginehouse_protocol.permissions import Allow
from enginehouse_protocol.workspace import Root

SESSION = SessionId("s_01234567890123456789abcdef")
OTHER = SessionId("s_zzzzzzzzzz0123456789abcdef")


def bodies(turns: int) -> list[tuple[TurnId | None, DurableBody]]:
    """Turns with a tool use each; texts with everything that is hard on a line format."""
    found: list[tuple[TurnId | None, DurableBody]] = [
        (None, SessionCreated(engine=EngineName("scripted"), roots=(Root(path="/w/외주 é"),)))
    ]
    for number in range(turns):
        turn, message, call = TurnId(f"t_{number}"), MessageId(f"m_{number}"), CallId(f"c_{number}")
        text = Text(text=f'go {number} \u2028 \x00 "quoted" {{"seq":1}} \n next')
        found += [
            (None, MessageQueued(message_id=message, content=(text,))),
            (turn, TurnStarted(origin="message", message_ids=(message,))),
            (turn, MessageUser(message_id=message, content=(text,))),
            (turn, MessageAssistant(message_id=MessageId(f"a_{number}"), reply_id=ReplyId("r"), text="— ok 😀")),
            (turn, ToolUse(call_id=call, name="bash", kind="execute", title="$ ls", input={"command": "ls", "n": [1]})),
            (turn, PermissionDecided(call_id=call, decision=Allow(), by="mode", risk="write", input_digest="d")),
            (turn, ToolResult(call_id=call, status="ok", content=(Text(text="a\r\nb"),))),
            (turn, TurnCompleted(stop="end")),
        ]
    return found


def events(turns: int, session: SessionId = SESSION) -> list[Event]:
    return [
        Event(session_id=session, seq=seq, at_ms=1_000 + seq, turn_id=turn, body=body)
        for seq, (turn, body) in enumerate(bodies(turns), start=1)
    ]


def transcript(turns: int, session: SessionId = SESSION) -> bytes:
    header = encode_header(Header(session_id=session, created_at_ms=1_000))
    return b"".join(line + b"\n" for line in [header, *(encode_event(event) for event in events(turns, session))])
