"""Recordings of the real CLI (2.1.332) fed to a translator, with the engine contract watched all the way.

A recording is what the CLI wrote to its stdout while a scripted Messages API answered it, cut down to what has a
meaning. Lines with a `note` are what the session did at that moment: wrote a prompt, interrupted, lost the process.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from enginehouse_engines.claude.saying import Emit, NotUnderstood, Said, TurnEnded, WantsTurn
from enginehouse_engines.claude.translator import Translator
from enginehouse_protocol.content import content_text
from enginehouse_protocol.engine import TurnEnd
from enginehouse_protocol.events import (
    Body,
    HistoryChanged,
    MessageAssistant,
    MessageDelta,
    MessageReset,
    NativeUpdated,
    Notice,
    PlanUpdated,
    ReasoningDelta,
    StepStarted,
    ToolDetached,
    ToolResult,
    ToolUse,
    UsageUpdated,
)
from enginehouse_protocol.ids import new_turn_id
from enginehouse_protocol.permissions import Decision
from enginehouse_protocol.testing.contract import ContractWatch

RECORDINGS = Path(__file__).parent / "recordings"
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))
TEXT_FRAME: dict[str, Any] = {
    "type": "assistant",
    "message": {"id": "msg_1", "model": "m", "content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"},
    "parent_tool_use_id": None,
    "uuid": "u1",
}
STREAM_FRAME: dict[str, Any] = {
    "type": "stream_event",
    "event": {"type": "message_start", "message": {"id": "msg_1"}},
    "parent_tool_use_id": None,
}
RESULT: dict[str, Any] = {"type": "result", "subtype": "success", "is_error": False, "session_id": "s"}
BodyT = TypeVar("BodyT", bound=Body)


def lines_of(name: str) -> list[bytes]:
    return (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines()


class Replay:
    """A translator, what it said, and whether core would have taken it."""

    def __init__(self, decisions: Mapping[str, Decision] | None = None) -> None:
        """`decisions`: what was answered about uses, by the CLI's ids."""
        self.translator = Translator("/ws")
        self.said: list[Said] = []
        self.in_turn = False
        self._decisions = decisions or {}
        self._watch = ContractWatch()

    @property
    def bodies(self) -> list[Body]:
        return [each.body for each in self.said if isinstance(each, Emit)]

    @property
    def ends(self) -> list[TurnEnded]:
        return [each for each in self.said if isinstance(each, TurnEnded)]

    @property
    def open_uses(self) -> list[ToolUse]:
        return self._watch.open_uses

    def all(self, kind: type[BodyT]) -> list[BodyT]:
        return [body for body in self.bodies if isinstance(body, kind)]

    def play(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.line(line)

    def line(self, line: bytes) -> list[Said]:
        note: Any = json.loads(line) if line.startswith(b'{"note"') else None
        match note:
            case None:
                return self.frame(line)
            case {"note": "prompt"}:
                return self.prompt(note["uuid"])
            case {"note": "interrupt"}:
                return self.take(self.translator.interrupted())
            case _:
                return self.take(self.translator.died("the process ended"))

    def prompt(self, uuid: str) -> list[Said]:
        self.in_turn = True
        return self.take(self.translator.begin_turn(new_turn_id(), uuid))

    def frame(self, frame: bytes | dict[str, Any]) -> list[Said]:
        said = self.take(self.translator.feed(frame))
        for each in said:
            match each:
                case Emit(body=ToolUse(provider_call_id=str(use_id))) if use_id in self._decisions:
                    self.translator.decided(use_id, self._decisions[use_id])
                case _:
                    pass
        return said

    def take(self, said: list[Said]) -> list[Said]:
        """Do with it what a session does, and refuse what core would refuse."""
        for each in said:
            match each:
                case Emit(body=body):
                    problem = self._watch.problem(body, in_turn=self.in_turn)
                    assert problem is None, f"{problem}: {body}"
                    assert not self._watch.repeats(body), f"said twice: {body}"
                    self._watch.follow(body)
                case WantsTurn():
                    assert not self.in_turn, "a turn was asked for inside one"
                    self.in_turn = True
                case TurnEnded():
                    assert self.in_turn, "a turn ended that nobody began"
                    assert self._watch.owed_now == [], "a turn ended without the results of its uses"
                    self.in_turn = self.translator.in_turn
                case _:
                    pass
        self.said += said
        return said


def replay(name: str, decisions: Mapping[str, Decision] | None = None) -> Replay:
    """The whole recording. Everything in it is understood, and each turn that began in it ended."""
    played = Replay(decisions)
    played.play(lines_of(name))
    unknown = [each for each in played.said if isinstance(each, NotUnderstood)]
    assert [each for each in unknown if each.what != "a result nobody waits for"] == []
    assert not played.in_turn
    return played


def outline(played: Replay, *, without: str = "step native usage") -> list[str]:
    """What was said, a line each, with short names instead of ids. `without`: first words that are left out."""
    namer = _Names()
    lines = [line for each in played.said if (line := _line(each, namer))]
    left_out = set(without.split())
    return [line for line in lines if line.split()[0] not in left_out]


class _Names:
    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, prefix: str, identifier: str) -> str:
        if identifier not in self._names:
            self._counts[prefix] = self._counts.get(prefix, 0) + 1
            self._names[identifier] = f"{prefix}{self._counts[prefix]}"
        return self._names[identifier]


def _line(said: Said, name: _Names) -> str:
    match said:
        case WantsTurn(origin=origin):
            return f"wants {origin}"
        case TurnEnded(end=TurnEnd(stop=stop), prompt_uuid=prompt):
            return f"end {stop}" + ("" if prompt else " of its own turn")
        case TurnEnded(end=error, prompt_uuid=prompt):
            return f"failed {getattr(error, 'code', '')}" + ("" if prompt else " of its own turn")
        case Emit(body=body):
            parent = getattr(body, "parent_call_id", None)
            return _body(body, name) + (f" below {name('c', parent)}" if parent else "")
        case _:
            return ""


def _body(body: Body, name: _Names) -> str:
    match body:
        case MessageDelta():
            return f"delta {name('m', body.message_id)} {body.text!r}"
        case ReasoningDelta():
            return f"thought {name('m', body.message_id)} {body.text!r}"
        case MessageReset():
            return f"reset {name('m', body.message_id)}"
        case MessageAssistant(reasoning=None):
            return f"message {name('m', body.message_id)} {body.text!r}" + ("" if body.complete else " cut")
        case MessageAssistant(reasoning=reasoning):
            return f"message {name('m', body.message_id)} thinking {reasoning.text if reasoning else ''!r}"
        case ToolUse():
            return f"use {name('c', body.call_id)} {body.kind} {body.title!r}"
        case ToolResult():
            return f"result {name('c', body.call_id)} {body.status}"
        case ToolDetached():
            return f"detached {name('c', body.call_id)}"
        case PlanUpdated():
            return "plan " + ", ".join(f"{entry.text} {entry.status}" for entry in body.entries)
        case HistoryChanged():
            return f"history {body.tokens_before} {body.tokens_after}"
        case Notice():
            return f"notice {body.code}"
        case StepStarted():
            return f"step {body.step}"
        case UsageUpdated():
            return f"usage {body.input_tokens} {body.output_tokens} {body.cost_usd}"
        case NativeUpdated():
            return f"native {body.turn_ref}"
        case _:
            raise AssertionError(body)


def result_texts(played: Replay) -> list[str]:
    return [content_text(result.content) for result in played.all(ToolResult)]
