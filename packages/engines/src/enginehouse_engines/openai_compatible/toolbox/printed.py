"""What a command printed, as a model reads it.

Rule: a model gets text it can use and never more than `MAX_OUTPUT_CHARS` of it; of what is longer, head and tail, and
the whole as a file in the session's scratch folder.
"""

import hashlib
import re
from collections.abc import Iterator

from enginehouse_engines.openai_compatible.toolbox.tool import MAX_OUTPUT_CHARS, beside_the_loop
from enginehouse_protocol.errors import WorkspaceError
from enginehouse_protocol.workspace import Workspace

_SAMPLE_BYTES = 64 * 1024
_PIECE_CHARS = 128 * 1024
_SURELY_TEXT_BYTES = 512
"""So little is shown whatever it is."""
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|[PX^_][^\x1b]*\x1b\\"  # strings to the terminal
    r"|[ -/]+[0-~]|[0-~])"
)
_STRUCK_OVER = re.compile(r"[^\n]\x08")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_CONTROL = bytes([*range(7), *range(14, 27), *range(28, 32), 127])


async def as_read(output: bytes, dropped_bytes: int, workspace: Workspace) -> str:
    """`output` for the model, without a last line break. `dropped_bytes`: of its middle, or before it, were lost."""
    text = await beside_the_loop(legible, output, len(output))
    if text is None:
        return f"[{len(output) + dropped_bytes} bytes of binary output, not shown; redirect it to a file to keep it]"
    lost = f"{dropped_bytes} bytes were not kept" if dropped_bytes else ""
    if len(text) <= MAX_OUTPUT_CHARS:
        return "\n".join(part for part in (text.removesuffix("\n"), lost and f"[{lost}]") if part)
    head = MAX_OUTPUT_CHARS * 2 // 3
    tail = text[head - MAX_OUTPUT_CHARS :].removesuffix("\n")
    where = await _kept(text, workspace)
    notes = "; ".join(note for note in (f"{len(text) - MAX_OUTPUT_CHARS} characters not shown", where, lost) if note)
    return f"{text[:head]}\n[… {notes} …]\n{tail}"


async def _kept(text: str, workspace: Workspace) -> str:
    """Keep `text` where the agent can read it; says where. Named by its content: the same output is one file."""
    data = await beside_the_loop(str.encode, text, len(text))
    path = f"{workspace.scratch}/output-{hashlib.sha256(data).hexdigest()[:16]}.txt"
    try:
        await workspace.write(path, data)
    except WorkspaceError as error:  # a full disk must not take the result away
        return f"the whole could not be kept: {error}"
    return f"the whole is in {path}"


def legible(output: bytes) -> str | None:
    """The text a person would have seen: without colours, of an overwritten line the last state. None: binary."""
    if _is_binary(output[:_SAMPLE_BYTES]):
        return None
    text = output.decode("utf-8", "replace").replace("\r\n", "\n")
    return "".join(_without_controls(piece) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of whole lines: an expression holds up the whole process as long as it works on one."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE_CHARS) + 1 or len(text)
        yield text[start:end]
        start = end


def _without_controls(text: str) -> str:
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\x08" in text:
        text = _STRUCK_OVER.sub("", text)
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return _UNPRINTABLE.sub("\ufffd", text)


def _is_binary(sample: bytes) -> bool:
    if len(sample) < _SURELY_TEXT_BYTES:
        return False
    controls = len(sample) - len(sample.translate(None, _CONTROL))
    no_text = sample.decode("utf-8", "replace").count("\ufffd")
    return controls > len(sample) // 20 or no_text > len(sample) // 5


def _last_state(line: str) -> str:
    """A progress bar is written over and over; only how it ended counts."""
    return line.rstrip("\r").rpartition("\r")[2]
