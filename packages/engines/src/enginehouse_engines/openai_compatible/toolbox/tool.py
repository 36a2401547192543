"""What a tool of this engine is. The rooms beside this one are the tools.

Rule: a tool touches files and processes only through the workspace, and only after the person, or a rule of theirs,
said yes. What it gives back is bounded and says what is missing.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

import anyio.to_thread
import msgspec

from enginehouse_protocol.content import FileChange, Image
from enginehouse_protocol.errors import EnginehouseError
from enginehouse_protocol.events import PlanEntry, QuestionOption
from enginehouse_protocol.permissions import JsonObject, ToolKind
from enginehouse_protocol.workspace import Workspace

MAX_OUTPUT_CHARS = 40_000
"""Of one tool result, as the model gets it."""
_MAX_DEPTH = 64
_ON_THE_LOOP = 128 * 1024
"""Bytes or characters that are decoded or compared on the event loop."""
GivenT = TypeVar("GivenT")
ResultT = TypeVar("ResultT")
InputT = TypeVar("InputT", bound=msgspec.Struct)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one run of a tool ended. The text is for the model."""

    text: str
    status: Literal["ok", "error", "interrupted"] = "ok"
    changes: tuple[FileChange, ...] = ()
    images: tuple[Image, ...] = ()


class BadInput(Exception):
    """The model's arguments are not what the tool takes. The message is for the model."""


class ToolRefused(Exception):
    """The tool cannot do that. The message is for the model."""


class Voice(Protocol):
    """How one use speaks to people while it runs, and what its model can be given."""

    @property
    def shows_images(self) -> bool:
        """Whether the model takes images."""
        ...

    async def print(self, text: str, /) -> None:
        """A piece of what it prints, as it comes."""
        ...

    async def show_plan(self, entries: tuple[PlanEntry, ...], /) -> None:
        """The model's plan as it is from now on."""
        ...

    async def ask(
        self, text: str, options: tuple[QuestionOption, ...], /, *, multiple: bool, free_text: bool
    ) -> tuple[str, ...] | None:
        """What the person answers; None: nobody did."""
        ...


class Plan(Protocol):
    """One use of a tool, its input understood. Nothing has happened yet."""

    @property
    def title(self) -> str:
        """One line for people. A preview may add to it."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and folders it names, as the model named them."""
        ...

    async def preview(self, workspace: Workspace, /) -> tuple[FileChange, ...]:
        """What it would change. A `run` after it does exactly that, or refuses.

        Raises:
            ToolRefused, WorkspaceError, UsageError: it cannot be done as asked; the message is for the model.
        """
        ...

    async def run(self, workspace: Workspace, voice: Voice, /) -> Outcome:
        """Do it.

        Raises:
            ToolRefused, WorkspaceError, UsageError: it could not be done; the message is for the model.
        """
        ...


class Tool(Protocol):
    name: ClassVar[str]
    kind: ClassVar[ToolKind]
    description: ClassVar[str]
    schema: ClassVar[JsonObject]
    """JSON Schema of the input."""
    asked: ClassVar[bool]
    """Whether it has to be allowed. False only for what acts on nothing but what was allowed before, and for what does
    nothing but speak to the person, through core."""

    def plan(self, given: JsonObject) -> Plan:
        """Raises `BadInput` when the input is not what the schema asks for."""
        ...


def understood(given: JsonObject, shape: type[InputT]) -> InputT:
    """The input as `shape`. A null is what some models write for a field they leave out.

    Raises:
        BadInput: a field is missing, unknown or of a wrong type.
    """
    try:
        return msgspec.convert({name: value for name, value in given.items() if value is not None}, shape)
    except msgspec.ValidationError as error:
        raise BadInput(str(error)) from error


def parsed(arguments: str) -> JsonObject:
    """The argument text of a call as an object. No text at all means no arguments.

    Raises:
        BadInput: it is not a JSON object.
    """
    if not arguments.strip():
        return {}
    try:
        given: Any = msgspec.json.decode(arguments)
        msgspec.json.encode(given)  # a number too large for our own record is refused here, not there
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError, OverflowError) as error:
        raise BadInput(f"the arguments are not valid JSON ({error}); they may have been cut off") from error
    if not isinstance(given, dict):
        raise BadInput("the arguments must be a JSON object")
    if _is_deeper(given, _MAX_DEPTH):
        raise BadInput(f"the arguments are nested more than {_MAX_DEPTH} deep")
    return cast(JsonObject, given)


def _is_deeper(value: object, limit: int) -> bool:
    """Whether objects and lists stand in each other more than `limit` deep. Nothing of ours is; a record has to be
    walked by everybody who reads it."""
    level = [value]
    for _ in range(limit):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += cast(JsonObject, item).values()
            elif isinstance(item, list):
                inner += cast(list[object], item)
        if not inner:
            return False
        level = inner
    return any(isinstance(item, dict | list) for item in level)


def definition(tool: Tool) -> JsonObject:
    """The tool as a Chat Completions request offers it."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
    }


def takes(tool: Tool) -> str:
    """The tool's input in words, for a model that got it wrong."""
    return f"{tool.name} takes {_shape_in_words(tool.schema)}"


def _shape_in_words(schema: JsonObject) -> str:
    if "enum" in schema:
        return " | ".join(msgspec.json.encode(value).decode() for value in schema["enum"])
    match schema["type"]:
        case "object":
            required = schema.get("required", ())
            fields = (
                f"{name}{'' if name in required else '?'}: {_shape_in_words(field)}"
                for name, field in schema["properties"].items()
            )
            return f"{{{', '.join(fields)}}}"
        case "array":
            return f"[{_shape_in_words(schema['items'])}, …]"
        case plain:
            return str(plain)


def listed(lines: Sequence[str], *, more: bool, advice: str) -> str:
    """As many whole lines as a model should be made to read. `more`: there are others besides; `advice` says what to
    do then."""
    shown: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > MAX_OUTPUT_CHARS:
            more = True
            break
        shown.append(line)
    if more:
        shown.append(f"[only the first {len(shown)} are shown; {advice}]")
    return "\n".join(shown)


def shown_name(name: str) -> str:
    """A file's name on one line. One with a line break or other control characters is quoted, so that it cannot pass
    for two."""
    return name if name.isprintable() else msgspec.json.encode(name).decode()


async def beside_the_loop(function: Callable[[GivenT], ResultT], given: GivenT, size: int) -> ResultT:
    """`function(given)`, in a worker thread when there is so much of it that others would notice."""
    if size <= _ON_THE_LOOP:
        return function(given)
    return await anyio.to_thread.run_sync(function, given)


def shown_path(workspace: Workspace, path: str) -> str:
    """The path as people and rules see it; as given where the workspace cannot place it."""
    try:
        return workspace.display(path)
    except EnginehouseError:
        return path


def one_line(text: str, limit: int = 160) -> str:
    """The first line of `text` for a title."""
    first, _, rest = text.strip().partition("\n")
    return first if not rest and len(first) <= limit else f"{first[: limit - 1]}…"
