"""What a permission rule says: its grammar, its canonical text, and which rule "always" would store.

Rule: a rule that could allow more than a person reads in it is refused when it is written, not when it is used.

    execute(git status *)       a command; `*` alone stands for any words, also none; inside a word for any characters
    edit(src/**)                paths like in a .gitignore, below a root; `./name` only right below it
    read(/etc/hosts)            with a leading `/`: absolute, from the top of the file system
    fetch(https://host/*)       a URL; the host exactly, or `*.host` for everything below it
    tool(NAME)                  one tool by its exact name, MCP tools too
    edit  read  fetch  delegate the whole kind; `execute` alone only to ask or deny
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, cast

from pathspec import GitIgnoreSpec

from enginehouse_core.permissions.urls import UrlPattern, parse_url, parse_url_pattern
from enginehouse_protocol.errors import RuleRefused
from enginehouse_protocol.permissions import Verdict

RuleKind = Literal["execute", "edit", "read", "fetch", "delegate", "tool"]
EXAMPLES: dict[RuleKind, str] = {
    "execute": "execute(git status *)",
    "edit": "edit(src/**)",
    "read": "read(/etc/hosts)",
    "fetch": "fetch(https://example.com/*)",
    "delegate": "delegate",
    "tool": "tool(mcp__tracker__list)",
}
_MOST_CHARACTERS = 1_000
_TOOL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@-]{0,199}\Z")
_RUN_ANYTHING = frozenset(
    {
        *("env", "sudo", "su", "doas", "pkexec", "xargs", "eval", "source", ".", "exec", "command", "builtin", "nohup"),
        *(
            "nice",
            "timeout",
            "setsid",
            "stdbuf",
            "time",
            "watch",
            "ionice",
            "chrt",
            "taskset",
            "trap",
            "busybox",
            "toybox",
        ),
        *("coproc", "strace", "parallel", "flock", "script", "unbuffer", "ssh", "alias"),
    }
)
_SHELL = re.compile(r"(?:ba|da|z|k|mk|a|fi|c|tc|rba)?sh\Z")
_INTERPRETER = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|tclsh|osascript|awk|gawk|mawk)[\d.]*\Z"
)
_RUNNERS = {
    "uv": ("run",),
    "poetry": ("run",),
    "pipenv": ("run",),
    "npm": ("exec",),
    "pnpm": ("exec", "dlx"),
    "npx": (),
    "uvx": (),
}


@dataclass(frozen=True)
class PatternWord:
    """One word of a command pattern. Quoted words are `literal`: a `*` in them is a `*`."""

    text: str
    literal: bool = False

    @property
    def any_words(self) -> bool:
        return self.text == "*" and not self.literal

    @property
    def wild(self) -> bool:
        return "*" in self.text and not self.literal


@dataclass(frozen=True)
class Rule:
    """One rule, parsed. Exactly one of the patterns is set, or none for a bare kind."""

    kind: RuleKind
    text: str
    """Canonical: what `permissions list` shows and the profile stores."""
    words: tuple[PatternWord, ...] = ()
    path: str | None = None
    spec: GitIgnoreSpec | None = None
    url: UrlPattern | None = None
    name: str | None = None

    @property
    def bare(self) -> bool:
        return not self.words and self.path is None and self.url is None and self.name is None


class OnFile(Protocol):
    """A rule as it is stored: the profile's own record fits as it is."""

    @property
    def effect(self) -> Verdict: ...
    @property
    def rule(self) -> str: ...
    @property
    def project(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class StoredRule:
    """`project` is the absolute path of the folder it holds in; None: everywhere."""

    effect: Verdict
    rule: str
    project: str | None = None


@lru_cache(maxsize=2048)
def parse_rule(text: str, effect: Verdict = "deny") -> Rule:
    """Understand one rule. With `effect="allow"` what would allow too much is refused.

    Raises:
        RuleRefused: what is wrong, and how a rule of that kind looks.
    """
    stripped = text.strip()
    if len(stripped) > _MOST_CHARACTERS or not stripped.isprintable():
        raise _refused(text, "a rule is one line of visible characters, at most 1,000 of them", "edit")
    found = re.fullmatch(r"([A-Za-z_]+)(?:\((.*)\))?", stripped)
    if found is None:
        raise _refused(text, "a rule is a kind, or a kind with a pattern in brackets", "execute")
    kind = cast(RuleKind, found[1])
    if kind not in EXAMPLES:
        raise _refused(text, f"{found[1]!r} is no kind; the kinds are {', '.join(EXAMPLES)}", "execute")
    body = None if found[2] is None else found[2].strip()
    if body == "":
        raise _refused(text, "the brackets are empty", kind)
    match kind:
        case "execute":
            return _execute(text, body, effect)
        case "edit" | "read":
            return Rule(kind=kind, text=kind) if body is None else _path(text, kind, body)
        case "fetch":
            return Rule(kind=kind, text=kind) if body is None else _fetch(text, body)
        case "delegate":
            if body is not None:
                raise _refused(text, "delegate takes no pattern", kind)
            return Rule(kind=kind, text=kind)
        case "tool":
            if body is None or not _TOOL_NAME.match(body):
                raise _refused(text, "tool needs the exact name of one tool, without wildcards", kind)
            return Rule(kind=kind, text=f"tool({body})", name=body)


def _refused(text: str, problem: str, kind: RuleKind) -> RuleRefused:
    shown = text if len(text) <= 100 else text[:97] + "..."
    return RuleRefused(f"the rule {shown!r} cannot be used: {problem}; for example {EXAMPLES[kind]}")


def _execute(text: str, body: str | None, effect: Verdict) -> Rule:
    if body is None:
        if effect == "allow":
            raise _refused(text, "allowing every command is what yolo mode is for, with its warning", "execute")
        return Rule(kind="execute", text="execute")
    words = _pattern_words(text, body)
    if effect == "allow" and (problem := allows_too_much(words)):
        raise _refused(text, problem, "execute")
    return Rule(kind="execute", text=f"execute({' '.join(_shown(word) for word in words)})", words=words)


def _pattern_words(text: str, body: str) -> tuple[PatternWord, ...]:
    words: list[PatternWord] = []
    current, quote, started, literal = "", "", False, False
    for character in body:
        if quote:
            if character == quote:
                quote = ""
            else:
                current += character
        elif character in "'\"":
            quote, started, literal = character, True, True
        elif character == " ":
            if started:
                words.append(PatternWord(current, literal))
            current, started, literal = "", False, False
        elif character in ";&|<>$`()\\":
            raise _refused(
                text,
                f"{character!r} belongs to the shell; a rule names one simple command, quote it if it is text",
                "execute",
            )
        else:
            current, started = current + character, True
    if quote:
        raise _refused(text, f"the {quote} is never closed", "execute")
    if started:
        words.append(PatternWord(current, literal))
    return tuple(words)


def _shown(word: PatternWord) -> str:
    if not word.literal:
        return word.text
    return f'"{word.text}"' if "'" in word.text else f"'{word.text}'"


def allows_too_much(words: Sequence[PatternWord]) -> str | None:
    """Why these words would allow more than one kind of command, or None."""
    if not words:
        return "it names no command"
    first = words[0]
    name = first.text.rpartition("/")[2].lower()
    if first.wild or not first.text:
        return "its first word must be the name of one program"
    if "=" in name:
        return "its first word must be a program, not a variable"
    if name in _RUN_ANYTHING:
        return f"{name} runs any other command"
    second = words[1] if len(words) > 1 else None
    shell, interpreter = bool(_SHELL.match(name)), bool(_INTERPRETER.match(name))
    if shell or interpreter:
        if second is None:
            return (
                None
                if interpreter and name.startswith(("python", "node")) and False
                else f"{name} alone runs whatever it is given"
            )
        module = second.text == "-m" and len(words) > 2 and not words[2].wild and interpreter
        if second.text.startswith("*") or (
            second.text.startswith("-") and not module and second.text not in ("--version", "-V")
        ):
            return f"{name} runs any code; name the script, or `-m` and the module"
    if name in _RUNNERS:
        verbs = _RUNNERS[name]
        if verbs and (second is None or second.wild):
            return f"{name} with any verb runs any other command"
        rest = list(words[2:] if second is not None and second.text in verbs else words[1:] if not verbs else [])
        if (verbs and second is not None and second.text in verbs) or not verbs:
            if not rest or rest[0].text.startswith("-"):
                return f"{name} runs any other command; name it right behind"
            return allows_too_much(rest)
    if name == "find" and any(word.wild for word in words[1:]):
        return "find can run and remove with its options; name it without wildcards"
    return None


def _path(text: str, kind: RuleKind, body: str) -> Rule:
    if body.startswith("!"):
        raise _refused(text, "a rule cannot be turned around with '!'", kind)
    if ".." in body.split("/") or body.startswith("~"):
        raise _refused(text, "'..' and '~' are not followed; write the path from the root, or absolute", kind)
    pattern = body[1:] if body.startswith("./") else "\\" + body if body.startswith("#") else body
    try:
        spec = GitIgnoreSpec.from_lines([pattern])
    except ValueError as error:
        raise _refused(text, str(error), kind) from error
    return Rule(kind=kind, text=f"{kind}({body})", path=body, spec=spec)


def _fetch(text: str, body: str) -> Rule:
    try:
        pattern = parse_url_pattern(body)
    except ValueError as error:
        raise _refused(text, str(error), "fetch") from error
    return Rule(kind="fetch", text=f"fetch({pattern.text})", url=pattern)


def path_rule(kind: Literal["edit", "read"], path: str) -> str | None:
    """The rule for exactly one path as displayed, its special characters escaped; None when it cannot be written."""
    if not path.isprintable() or path != path.strip() or path in ("", "."):
        return None
    escaped = re.sub(r"([\\*?\[\]!#])", r"\\\1", path)
    return f"{kind}({escaped if path.startswith('/') else './' + escaped})"


def url_rule(url: str) -> str | None:
    parsed = parse_url(url)
    return None if parsed is None or parsed.tricky else f"fetch({parsed.origin}/*)"
