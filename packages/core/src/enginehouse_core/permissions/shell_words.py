"""Words of a shell command: what bash would make of one, as far as that can be known without running anything.

Rule: a word is either known completely or it is unknown. There is no "probably".
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from tree_sitter import Node

_MOST_VALUES = 32
_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))", re.DOTALL
)
_PLAIN_EXPANSION = re.compile(r"\$\{(\w+)\}\Z")
_QUIET_EXPANSION = re.compile(
    r"\$\{[#!]?(\w+|[@*#?$!-])(\[[@*0-9]+\])?(:?[-+?=]|[%#/^,]|\}).*\Z|\$\{#?\w+(\[[@*0-9]+\])?\}\Z", re.DOTALL
)
_ASSIGNMENT_HOME = re.compile(r"\w+=~(?:/|\Z)")  # bash puts the home folder there too
_SEQUENCE = re.compile(r"(-?\d+|[a-zA-Z])\.\.(-?\d+|[a-zA-Z])(?:\.\.(-?\d+))?\Z")


@dataclass(frozen=True)
class Word:
    """One word. `values`: every text it may be, none when unknown; `shown`: as written in the command."""

    shown: str
    values: tuple[str, ...] = ()
    prefix: str = ""
    """Of an unknown word: what it certainly begins with."""
    splits: bool = False
    """Unknown and unquoted: it may become several words, options among them."""
    glob: bool = False
    """Holds an unquoted `*`, `?` or `[`: the shell puts file names in its place."""

    @property
    def known(self) -> bool:
        return bool(self.values)

    @property
    def text(self) -> str | None:
        """The one text this word is, when there is exactly one."""
        return self.values[0] if len(self.values) == 1 else None


def plain(text: str) -> Word:
    return Word(shown=text, values=(text,))


UNKNOWN_WORDS = Word(shown="…", splits=True)
"""Stands for words that only appear while the command runs."""


@dataclass(frozen=True)
class _Piece:
    text: str | None
    quoted: bool
    variable: str | None = None


@dataclass
class Variables:
    """What the variables of one command may hold. A name that is missing comes from the environment: unknown."""

    known: dict[str, frozenset[str] | None] = field(default_factory=dict[str, frozenset[str] | None])

    def may_be(self, name: str, values: frozenset[str] | None, *, certain: bool = False) -> None:
        """Add to what `name` may hold. Unless `certain` it may also still be empty."""
        if values is None or (name in self.known and self.known[name] is None):
            self.known[name] = None
            return
        extra: frozenset[str] = frozenset() if certain else frozenset({""})
        self.known[name] = (self.known.get(name) or frozenset()) | values | extra

    def get(self, name: str) -> frozenset[str] | None:
        return self.known.get(name)


class Doubt(Exception):
    """The text means something to bash that this reader cannot be sure about."""


def words_of(node: Node, source: bytes, variables: Variables, home: str) -> list[Word]:
    """The words one argument becomes; more than one only through braces. Raises `Doubt`."""
    pieces = list(_pieces(node, source))
    shown = source[node.start_byte : node.end_byte].decode("utf-8", "replace")
    texts = "".join(p.text or "" for p in pieces if not p.quoted)
    if "{" in texts and ("," in texts or ".." in texts):
        if any(p.text is None for p in pieces):
            return [Word(shown=shown, splits=True)]
        expanded = _braces("".join(p.text if not p.quoted else _hide(p.text) for p in pieces if p.text is not None))
        if len(expanded) > _MOST_VALUES:
            return [Word(shown=shown, splits=True)]
        return [_word([*_unhide(text)], shown, variables, home) for text in expanded]
    return [_word(pieces, shown, variables, home)]


def _word(pieces: list[_Piece], shown: str, variables: Variables, home: str) -> Word:
    if pieces and not pieces[0].quoted and home and _ASSIGNMENT_HOME.match(pieces[0].text or ""):
        pieces = [_Piece((pieces[0].text or "").replace("=~", f"={home}", 1), False), *pieces[1:]]
    if pieces and not pieces[0].quoted and (pieces[0].text or "").startswith("~"):
        first = pieces[0].text or ""
        name = first.split("/", 1)[0]
        alone = len(pieces) == 1 or "/" in first
        if name == "~" and alone and home:
            pieces = [_Piece(home + first[1:], False), *pieces[1:]]
        else:  # another person's home, `~+`, `~-`: somewhere outside
            return Word(shown=shown, prefix="~", splits=False)
    choices: list[tuple[str, ...]] = []
    prefix, glob, unquoted_unknown = "", False, False
    still_prefix = True
    for piece in pieces:
        options = _values(piece, variables, home)
        if options is None:
            still_prefix = False
            unquoted_unknown = unquoted_unknown or not piece.quoted
            continue
        glob = glob or (not piece.quoted and any(mark in option for option in options for mark in "*?["))
        if still_prefix and len(options) == 1:
            prefix += options[0]
        else:
            still_prefix = False
        choices.append(options)
    if any(_values(piece, variables, home) is None for piece in pieces):
        return Word(shown=shown, prefix=prefix, splits=unquoted_unknown, glob=glob)
    if _count(choices) > _MOST_VALUES:
        return Word(shown=shown, prefix=prefix, splits=any(not p.quoted for p in pieces if p.variable))
    values = tuple(dict.fromkeys("".join(parts) for parts in product(*choices)))
    if len(values) > 1 and any(value.startswith("-") for value in values):
        return Word(shown=shown, prefix=prefix, splits=True)
    return Word(shown=shown, values=values, glob=glob)


def _count(choices: list[tuple[str, ...]]) -> int:
    count = 1
    for options in choices:
        count *= len(options)
    return count


def _values(piece: _Piece, variables: Variables, home: str) -> tuple[str, ...] | None:
    if piece.variable is None:
        return None if piece.text is None else (piece.text,)
    if piece.variable == "HOME" and "HOME" not in variables.known and home:
        return (home,)
    held = variables.get(piece.variable)
    if held is None or (not piece.quoted and any(c in value for value in held for c in " \t\n*?[")):
        return None
    return tuple(sorted(held))


def _pieces(node: Node, source: bytes) -> Iterator[_Piece]:
    text = source[node.start_byte : node.end_byte].decode("utf-8", "replace")
    match node.type:
        case "word" | "number" | "brace_expression" | "variable_name" | "test_operator" if not _nested(node):
            yield from _unquoted(text)
        case "$" | "[" | "]" | "{" | "}" | "=" | "-" | "%" | "~" | ":" | "#" | "!" | "?" | "@" | "*" | "+" | "/":
            yield _Piece(text, False)
        case "raw_string":
            if len(text) < 2 or "'" in text[1:-1]:
                raise Doubt("a quoted text that does not end where it should")
            yield _Piece(text[1:-1], True)
        case "ansi_c_string":
            yield _Piece(ansi_c(text[2:-1]), True)
        case "string":
            yield _Piece("", True)
            yield from _inside_double_quotes(node, source)
        case "concatenation" | "command_name":
            end = node.start_byte
            for child in node.children:
                if source[end : child.start_byte].replace(b"\\\n", b""):
                    raise Doubt("words that may or may not be one word")
                end = child.end_byte
                yield from _pieces(child, source)
        case "simple_expansion":
            yield _Piece(None, False, variable=text[1:])
        case "expansion":
            if found := _PLAIN_EXPANSION.match(text):
                yield _Piece(None, False, variable=found[1])
            elif _QUIET_EXPANSION.match(text):
                yield _Piece(None, False)
            else:
                raise Doubt(f"{text} may run more than it shows")
        case "process_substitution":
            yield _Piece("/dev/fd/63", True)  # a pipe; what runs inside is a command of its own
        case "command_substitution" | "arithmetic_expansion":
            if text.startswith("`") and "\\" in text:
                raise Doubt("escapes inside backticks")
            yield _Piece(None, False)
        case _:
            raise Doubt(f"{text!r} is not understood")


def _nested(node: Node) -> bool:
    return any(child.is_named and child.type not in ("number", "word") for child in node.children)


def _unquoted(text: str) -> Iterator[_Piece]:
    plain_text, position = "", 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            if position + 1 >= len(text):
                raise Doubt("a backslash with nothing after it")
            if plain_text:
                yield _Piece(plain_text, False)
                plain_text = ""
            if text[position + 1] == "`":
                raise Doubt("an escaped backtick")
            if text[position + 1] != "\n":
                yield _Piece(text[position + 1], True)
            position += 2
            continue
        if character in "`;&|<>()\"' \t\n" or (character == "$" and position + 1 < len(text)):
            raise Doubt(f"{text!r} may be more than one word")
        plain_text += character
        position += 1
    if plain_text or not text:
        yield _Piece(plain_text, False)


def _inside_double_quotes(node: Node, source: bytes) -> Iterator[_Piece]:
    end = node.start_byte + 1
    for child in node.children:
        if child.type == '"':
            continue
        if child.start_byte > end:
            yield _Piece(double_quoted(source[end : child.start_byte].decode("utf-8", "replace")), True)
        if child.type == "string_content":
            yield _Piece(double_quoted(source[child.start_byte : child.end_byte].decode("utf-8", "replace")), True)
        elif child.type == "$":
            yield _Piece("$", True)
        else:
            for piece in _pieces(child, source):
                yield _Piece(piece.text, True, variable=piece.variable)
        end = child.end_byte
    if end < node.end_byte - 1:
        yield _Piece(double_quoted(source[end : node.end_byte - 1].decode("utf-8", "replace")), True)


_EXPANDS = re.compile(r'\$[({A-Za-z0-9_@*#?$!\[-]|`|"')


def double_quoted(text: str) -> str:
    """What text between double quotes stands for. Raises `Doubt` when something in it would still expand."""
    result, position = "", 0
    while position < len(text):
        if text[position] == "\\" and position + 1 < len(text):
            following = text[position + 1]
            if following == "`":
                raise Doubt("an escaped backtick")
            result += "" if following == "\n" else following if following in '$"\\' else "\\" + following
            position += 2
            continue
        if _EXPANDS.match(text, position):
            raise Doubt("an expansion that was not recognised")
        result += text[position]
        position += 1
    return result


def ansi_c(text: str) -> str:
    """What `$'…'` stands for."""

    def escape(found: re.Match[str]) -> str:
        for digits, radix in ((found[1], 16), (found[2], 16), (found[3], 16), (found[4], 8)):
            if digits:
                code = int(digits, radix)
                if not 0 < code < 0x110000 or 0xD800 <= code < 0xE000:
                    raise Doubt("an escape that stands for no character")
                return chr(code)
        if found[5]:
            raise Doubt("a control character")
        return _ESCAPES.get(found[6], found[6] if found[6] in "\\'\"?" else "\\" + found[6])

    return _ANSI.sub(escape, text)


_HIDDEN = re.compile("\ue000(.*?)\ue001", re.DOTALL)


def _hide(text: str) -> str:
    return "\ue000" + text.replace("{", "\ue002").replace(",", "\ue003").replace("}", "\ue004") + "\ue001"


def _unhide(text: str) -> Iterator[_Piece]:
    for index, part in enumerate(_HIDDEN.split(text)):
        if part or index % 2:
            shown = part.replace("\ue002", "{").replace("\ue003", ",").replace("\ue004", "}")
            yield _Piece(shown, bool(index % 2))


def _braces(text: str) -> list[str]:
    """Bash's brace expansion of one word, bounded: beyond the bound the result is merely long."""
    for opening, character in enumerate(text):
        if character != "{":
            continue
        depth, start, parts = 0, opening + 1, list[str]()
        for position in range(opening, len(text)):
            if text[position] == "{":
                depth += 1
            elif text[position] == "," and depth == 1:
                parts.append(text[start:position])
                start = position + 1
            elif text[position] == "}":
                depth -= 1
                if depth == 0:
                    parts.append(text[start:position])
                    choices = parts if len(parts) > 1 else _sequence(parts[0])
                    if choices is None:
                        break
                    results: list[str] = []
                    for choice in choices:
                        for rest in _braces(choice + text[position + 1 :]):
                            results.append(text[:opening] + rest)
                            if len(results) > _MOST_VALUES:
                                return results
                    return results
    return [text]


def _sequence(text: str) -> list[str] | None:
    found = _SEQUENCE.match(text)
    if found is None:
        return None
    first, last = found[1], found[2]
    if first.lstrip("-").isdigit() != last.lstrip("-").isdigit() or len(first) > 9 or len(last) > 9:
        return None
    ends = (int(first), int(last)) if first.lstrip("-").isdigit() else (ord(first), ord(last))
    step = abs(int(found[3] or 1)) or 1
    numbers = range(ends[0], ends[1] + (1 if ends[0] <= ends[1] else -1), step if ends[0] <= ends[1] else -step)
    taken = [number for number, _ in zip(numbers, range(_MOST_VALUES + 1), strict=False)]
    return [str(number) if first.lstrip("-").isdigit() else chr(number) for number in taken]
