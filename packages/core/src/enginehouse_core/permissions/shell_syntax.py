"""A shell command taken apart into the simple commands it may run, wherever in it they hide.

Rule: every byte of the command is accounted for. Where the grammar and bash might disagree the script carries a
problem, and a script with problems is never judged harmless.
"""

import re
from dataclasses import dataclass, replace

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.shell_commands import Walker
from enginehouse_core.permissions.shell_parts import Redirect, Simple
from enginehouse_core.permissions.shell_words import Variables, Word, plain

MOST_BYTES = 64 * 1024
_MOST_NODES = 20_000
_MOST_DEPTH = 150
_MOST_COMMANDS = 400

_PARSER_LANGUAGE = Language(tree_sitter_bash.language())
_LETTERS = bytes(byte if byte < 0x80 else ord("z") for byte in range(256))
"""The grammar's scanner reads past its tables, and may crash, on characters outside ASCII. To bash they are letters, so
letters of the same length stand in for them; what they really are is read from the source."""
_LONG_DELIMITER = re.compile(r"<<-?\s*\S{120}")
_STRANGE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\ue000-\ue0ff\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_JOINING = re.compile(r"[^\s]\\\n[^\s]")
"""A line continuation in the middle of a word, which the grammar reads as a gap and bash as nothing at all."""


@dataclass
class Script:
    commands: list[Simple]
    problems: list[str]
    bombs: list[str]
    """Functions that call themselves."""
    assigned: dict[str, frozenset[str] | None]


def read_script(command: str, places: Places, cwds: tuple[str, ...] | None = None) -> Script:
    """Take `command` apart. Never raises: whatever goes wrong is a problem of the script."""
    start = cwds if cwds is not None else (places.roots[:1] or None)
    source = command.encode("utf-8", "surrogatepass")
    if len(source) > MOST_BYTES:
        return Script([], [f"longer than {MOST_BYTES // 1024} KiB"], [], {})
    if command.count("<<") > 40 or _LONG_DELIMITER.search(command):  # the scanner keeps them in a buffer of fixed size
        return Script(_rough(command, start, places.home), ["has too many or too long here-documents"], [], {})
    problems: list[str] = []
    if found := _STRANGE.search(command):
        problems.append(f"holds the character U+{ord(found[0]):04X}, which shells and people read differently")
    if _JOINING.search(command):
        problems.append("has a line continuation inside a word")
    tree = Parser(_PARSER_LANGUAGE).parse(source.translate(_LETTERS))
    if tree.root_node.has_error:
        problems.append("cannot be parsed")
    if (source[: tree.root_node.start_byte] + source[tree.root_node.end_byte :]).strip(b" \t\n"):
        problems.append("has text the parser passed over")
    if not _small_enough(tree.root_node):
        return Script(_rough(command, start, places.home), [*problems, "nested too deeply or too large"], [], {})
    variables = Variables()
    for _ in range(5):  # what a loop assigns last may be used first: until nothing new turns up
        before = dict(variables.known)
        walker = Walker(source, places, start, variables)
        commands = walker.walk(tree.root_node)
        if before == variables.known:
            break
    else:
        variables.known = dict.fromkeys(variables.known)
        walker = Walker(source, places, start, variables)
        commands = walker.walk(tree.root_node)
    problems += walker.all_problems()
    if walker.lost:
        commands = [*commands, *(replace(simple, cwds=None) for simple in commands)]  # there, or nobody knows where
    if problems:
        commands = [*commands, *_rough(command, start, places.home)]
    return Script(commands, list(dict.fromkeys(problems)), walker.bombs, dict(variables.known))


def _small_enough(root: Node) -> bool:
    stack, count, commands = [(root, 0)], 0, 0
    while stack:
        node, depth = stack.pop()
        count += 1
        commands += node.type == "command"
        if count > _MOST_NODES or depth > _MOST_DEPTH or commands > _MOST_COMMANDS:
            return False
        stack.extend((child, depth + 1) for child in node.children)
    return True


def _rough(command: str, cwds: tuple[str, ...] | None, home: str) -> list[Simple]:
    """Split at everything that may end a command: only good for finding what is forbidden."""
    parts: list[Simple] = []
    for part in re.split(r"[;&|\n\r(){}`]|\$\(", command.replace("\\\n", ""))[:400]:
        text = re.sub("[\"'\\\\]", "", part)
        targets = [Redirect(">", _rough_word(found, home)) for found in re.findall(r">\s*([^\s<>]+)", text)]
        words = re.sub(r"[<>]+\s*[^\s<>]*", " ", text).split()
        while words and words[0] in {"if", "then", "else", "elif", "do", "while", "until", "!", "time", "{"}:
            words = words[1:]
        if words or targets:
            known = tuple(_rough_word(word, home) for word in words[:200])
            parts.append(Simple(known, redirects=tuple(targets), cwds=cwds, shown=part.strip()))
    return parts


def _rough_word(text: str, home: str) -> Word:
    text = re.sub(r"^~(?=/|\Z)|^\$HOME\b|^\$\{HOME\}", lambda _: home or "~", text)
    return Word(shown=text, prefix=text.split("$")[0], splits=True) if "$" in text else plain(text)
