"""One use on its way to a decision: what exactly is judged, and who already holds which input.

Rule: what is judged is what is recorded and what may run. Where the engine or the record holds another input, the case
knows it.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import msgspec

from enginehouse_protocol.codec import map_text, refuse_nonfinite, well_formed
from enginehouse_protocol.events import ToolUse
from enginehouse_protocol.ids import TurnId
from enginehouse_protocol.permissions import JsonObject

_CANONICAL = msgspec.json.Encoder(order="deterministic")
_PATH_CHARACTERS = 4096


@dataclass(eq=False)
class DecidingTurn:
    """What is decided within one turn."""

    ended: str = ""
    """Why nothing may run any more; empty while something may."""
    deciding: int = 0
    gates: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])
    quiet: anyio.Event = field(default_factory=anyio.Event)
    """Set when nothing is being decided, and then replaced."""


@dataclass(eq=False)
class Case:
    use: ToolUse
    """As it is judged: well-formed, and as edited."""
    turn_id: TurnId | None
    turn: DecidingTurn
    digest: str
    instead: JsonObject | None = None
    """What an allow must carry because the engine holds another input."""


def case_of(use: ToolUse, turn_id: TurnId | None, turn: DecidingTurn, key: bytes, *, edited: bool = False) -> Case:
    """The case of a use, its text repaired.

    `key` is the digest's: without one a short secret in an input could be guessed from its digest in the record.

    Raises:
        MalformedData: a number JSON cannot carry, or an input nested too deeply to be read back.
    """
    refuse_nonfinite(use.input)
    repaired = use
    try:
        _CANONICAL.encode(use)
    except UnicodeEncodeError:
        repaired = map_text(use, well_formed)
    instead = repaired.input if edited or repaired.input != use.input else None
    digest = hashlib.blake2b(_CANONICAL.encode(repaired.input), key=key, digest_size=16).hexdigest()
    return Case(repaired, turn_id, turn, digest, instead)


def edited_case(case: Case, tool_input: JsonObject, key: bytes) -> Case:
    """The same use with what a person made of its input."""
    paths = _edited_paths(case.use, tool_input)
    use = msgspec.structs.replace(case.use, input=tool_input, paths=paths, preview=())
    return case_of(use, case.turn_id, case.turn, key, edited=True)


def _edited_paths(use: ToolUse, tool_input: JsonObject) -> tuple[str, ...]:
    """The paths of an edited input: whatever text stands where the original named one, or is new."""
    changed = {
        value
        for key, value in tool_input.items()
        if isinstance(value, str)
        and value != use.input.get(key)
        and "\n" not in value
        and len(value) < _PATH_CHARACTERS
    }
    kept = {path for path in use.paths if path in tool_input.values()}
    named = {key for key, value in use.input.items() if value in use.paths}
    replaced = {tool_input[key] for key in named if isinstance(tool_input.get(key), str)}
    return tuple(sorted(kept | replaced if named else changed | set(use.paths)))


def is_recorded(asked: Any, recorded: Any) -> bool:
    """Whether the record says this. A text it spilled is told by its digest, and 1 is neither 1.0 nor true."""
    match recorded, asked:
        case {"type": "spilled", "sha256": str() as digest}, str():
            return hashlib.sha256(asked.encode()).hexdigest() == digest
        case dict(), dict():
            ours, theirs = cast(JsonObject, asked), cast(JsonObject, recorded)
            return ours.keys() == theirs.keys() and all(is_recorded(ours[key], theirs[key]) for key in ours)
        case ((list() | tuple()), (list() | tuple())):
            items, others = cast(list[Any], asked), cast(list[Any], recorded)
            return len(items) == len(others) and all(map(is_recorded, items, others))
        case _:
            return type(recorded) is type(asked) and recorded == asked
