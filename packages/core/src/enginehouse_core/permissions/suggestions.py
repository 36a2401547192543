"""The rule that "always" would store for one use, or none.

Rule: it allows what the person looked at and close relatives of it, and is offered only when it can be written, read
back, and would have answered this very use.
"""

import posixpath
import re

from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.rules import parse_rule, path_rule, url_rule
from enginehouse_core.permissions.shell import CommandJudgement, Segment
from enginehouse_core.permissions.shell_programs import LISTED, PLACED
from enginehouse_protocol.errors import RuleRefused
from enginehouse_protocol.permissions import JsonObject, ToolKind

_VERBS: dict[str, int] = {
    **dict.fromkeys(
        ("git", "cargo", "go", "pip", "pip3", "gh", "dotnet", "bundle", "poetry", "hatch", "conda", "apt"), 1
    ),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun", "uv", "docker", "kubectl", "mvn", "gradle", "composer", "brew"), 1),
}
_VERB_RUNS = frozenset(
    {
        ("npm", "run"),
        ("pnpm", "run"),
        ("yarn", "run"),
        ("bun", "run"),
        ("uv", "run"),
        ("poetry", "run"),
        ("bundle", "exec"),
    }
)
_EXACT = frozenset(
    {"curl", "wget", "ssh", "scp", "rsync", "nc", "make", "pkill", "killall", "rm", "kill", "docker", "kubectl"}
)
_INTERPRETER = re.compile(r"(?:python|pypy|perl|ruby|node|deno|php|lua)[\d.]*\Z|(?:ba|da|z|k)?sh\Z")
_MOST_CHARACTERS = 200


def suggest_command(judgement: CommandJudgement) -> str | None:
    """For a command of which all segments but one only read."""
    if not judgement.parsed or judgement.intrinsic == "critical":
        return None
    risky = [segment for segment in judgement.segments if segment.risk != "safe" and segment.words]
    if any(segment.risk != "safe" and not segment.words for segment in judgement.segments):
        return None
    if not risky and len(judgement.segments) == 1:
        risky = list(judgement.segments)
    if not risky or any(_words(segment) != _words(risky[0]) for segment in risky):
        return None
    return _usable(_command_rule(risky[0]))


def _words(segment: Segment) -> list[str | None]:
    return [word.text for word in segment.words]


def _command_rule(segment: Segment) -> str | None:
    name, words = segment.program, segment.words
    if name is None or not segment.allowable or not words:
        return None
    texts = [word.text for word in words]
    taken = _kept(name, texts)
    if taken is None:
        return None
    if taken == 0:  # this command and no other
        if any(text is None for text in texts) or any(word.glob or word.splits for word in words):
            return None
        return f"execute({' '.join(_quoted(text or '') for text in texts)})"
    head = texts[:taken]
    if any(text is None or not text or (text.startswith("-") and text != "-m") for text in head) or any(
        w.glob for w in words[:taken]
    ):
        return None
    return f"execute({' '.join(_quoted(text or '') for text in head)} *)"


def _kept(name: str, texts: list[str | None]) -> int | None:
    """How many words of the command the rule keeps before its `*`; 0: all of them, without a `*`."""
    if _INTERPRETER.match(name):
        if len(texts) < 2 or texts[1] is None or (texts[1].startswith("-") and texts[1] != "-m"):
            return None
        return 3 if texts[1] == "-m" else 2
    if name in _EXACT:
        return 0
    if name in _VERBS:
        if len(texts) < 2:
            return 0
        if (name, texts[1] or "") in _VERB_RUNS:
            inner = texts[2:]
            if not inner or inner[0] is None:
                return None
            kept = _kept(inner[0], inner) if _INTERPRETER.match(inner[0]) else 1
            return None if kept is None else 2 + kept
        return 2
    if name in PLACED or name in LISTED:
        return 0
    return 1


def _quoted(text: str) -> str:
    if text and not re.search(r"[\s'\"*;&|<>$`()\\]", text):
        return text
    return f'"{text}"' if "'" in text else f"'{text}'"


def _usable(text: str | None) -> str | None:
    if text is None or len(text) > _MOST_CHARACTERS:
        return None
    try:
        return parse_rule(text, "allow").text
    except RuleRefused:
        return None


def suggest(kind: ToolKind, name: str, tool_input: JsonObject, paths: tuple[str, ...], places: Places) -> str | None:
    """For everything that is no command."""
    match kind:
        case "edit":
            return _usable(_folder_rule(paths, places))
        case "read" | "search":
            return _usable(path_rule("read", places.resolve(paths[0]))) if len(paths) == 1 else None
        case "fetch":
            url = tool_input.get("url")
            return _usable(url_rule(url)) if isinstance(url, str) else None
        case "delegate" | "other":
            return _usable(f"tool({name})")
        case "execute":
            return None


def _folder_rule(paths: tuple[str, ...], places: Places) -> str | None:
    """The folder the edited files share; a file right below the root stands for itself."""
    shown = {places.display(path) for path in paths}
    if not shown or any(path.startswith(("/", "..")) for path in shown):
        return None
    folders = {posixpath.dirname(path) for path in shown}
    if folders == {""}:
        return path_rule("edit", next(iter(shown))) if len(shown) == 1 else None
    common = posixpath.commonpath([folder or "." for folder in folders])
    rule = path_rule("edit", common) if common and common != "." else None
    return None if rule is None else f"{rule[:-1]}/**)"
