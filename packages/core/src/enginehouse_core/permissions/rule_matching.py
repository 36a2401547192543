"""Whether a rule speaks for a tool use, or for one segment of a command.

Rule: an allow rule matches what is certainly meant and nothing else, a rule that tightens whatever may be meant.
"""

import posixpath
import re
from collections.abc import Sequence

from enginehouse_core.permissions.places import Places, folded_path
from enginehouse_core.permissions.rules import PatternWord, Rule
from enginehouse_core.permissions.shell import Segment
from enginehouse_core.permissions.shell_git import HARMLESS_GLOBAL
from enginehouse_core.permissions.shell_options import read_options
from enginehouse_core.permissions.shell_programs import LISTED
from enginehouse_core.permissions.shell_words import Word
from enginehouse_core.permissions.urls import parse_url

_SAME_FLAGS = (
    frozenset({"-r", "-R", "--recursive"}),
    frozenset({"-f", "--force"}),
    frozenset({"-v", "--verbose"}),
    frozenset({"-d", "--delete"}),
    frozenset({"-a", "--all"}),
    frozenset({"-n", "--dry-run"}),
)
_LONG_WITH_ONE_DASH = frozenset({"find", "java", "go", "terraform", "ffmpeg", "openssl"})
_GIT_VALUED = ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env")
_MANY_VERBS = frozenset(
    {"git", "npm", "pnpm", "yarn", "cargo", "docker", "podman", "kubectl", "make", "gh", "pip", "go"}
)


def allows_segment(rule: Rule, segment: Segment) -> bool:
    """Whether an allow rule speaks for this segment of a command that was parsed without doubt."""
    if rule.kind != "execute" or not rule.words or not segment.words or segment.program is None:
        return False
    if not segment.allowable or (segment.reaches_out and any(word.wild for word in rule.words)):
        return False
    if segment.program == "git" and len(segment.words) > 1 and len(rule.words) > 1 and rule.words[1].any_words:
        first = segment.words[1]  # `git *` means its verbs, not the options that make git run something else
        if not first.known or any(v.startswith("-") and v not in HARMLESS_GLOBAL for v in first.values):
            return False
    return _words_match(rule.words, segment.words)


def _words_match(pattern: Sequence[PatternWord], words: Sequence[Word]) -> bool:
    """Every word of the pattern in its place; `*` alone takes any number of words."""
    reachable = {0}
    for part in pattern:
        following: set[int] = set()
        for position in reachable:
            if part.any_words:
                following.update(range(position, len(words) + 1))
            elif position < len(words) and _certainly(part, words[position]):
                following.add(position + 1)
        reachable = following
    return len(words) in reachable


def _certainly(part: PatternWord, word: Word) -> bool:
    if not word.known or word.splits or word.glob:
        return word.glob and not word.splits and word.text == part.text
    return all(_text_matches(part, value) for value in word.values)


def _text_matches(part: PatternWord, text: str) -> bool:
    if not part.wild:
        return text == part.text
    if ".." in text.split("/") and ".." not in part.text.split("/"):
        return False
    return re.fullmatch(".*".join(re.escape(piece) for piece in part.text.split("*")), text, re.DOTALL) is not None


def tightens_segment(rule: Rule, segment: Segment) -> bool:
    """Whether an ask or deny rule speaks for this segment, however its flags are spelled and whatever wraps it."""
    if rule.kind != "execute":
        return False
    if not rule.words:
        return True
    return any(_tightens_words(rule.words, words) for words in (segment.words, *segment.outer) if words)


def _tightens_words(pattern: tuple[PatternWord, ...], words: tuple[Word, ...]) -> bool:
    if _tightens_here(pattern, words):
        return True
    program = _base(words[0].text or "")
    if program in LISTED or program in _MANY_VERBS:
        return False
    return any(  # an unknown program may run what it is given
        _base(word.text or "") == _base(pattern[0].text) and _tightens_here(pattern, words[position:])
        for position, word in enumerate(words[1:40], start=1)
    )


def _base(text: str) -> str:
    return posixpath.basename(text).casefold()


def _tightens_here(pattern: tuple[PatternWord, ...], words: tuple[Word, ...]) -> bool:
    first, program = pattern[0], words[0].text
    if program is None:
        return first.any_words
    if not first.any_words and not any(
        _text_matches(PatternWord(first.text.casefold(), first.literal), spelled)
        for spelled in (program.casefold(), _base(program), program.casefold().removeprefix("./"))
    ):
        return False
    name, rest = _base(program), list(words[1:])
    if name == "git":
        skipped = read_options(rest, _GIT_VALUED, stop_at_operand=True)
        rest = skipped.operands
    asked = pattern[1:]
    if not asked or not asked[-1].any_words:
        asked = (*asked, PatternWord("*"))  # who forbids `git push` does not mean to allow `git push -v`
    if any(word.splits and not word.known for word in rest):
        return _prefix_matches(asked, rest)
    flags = [part for part in asked if part.text.startswith("-") and part.text not in ("-", "--") and not part.wild]
    operands = [part for part in asked if part not in flags and part.text != "--"]
    return _has_flags(name, flags, rest) and _operands_match(operands, _operands(rest))


def _prefix_matches(asked: Sequence[PatternWord], rest: list[Word]) -> bool:
    """Up to the word that may become anything; that and what follows may be whatever was forbidden."""
    known = rest[: next(i for i, w in enumerate(rest) if w.splits and not w.known)]
    operands = [part for part in asked if not part.text.startswith("-") and not part.any_words]
    given = [w for w, _ in _operands(known)]
    return all(_possibly(part, word) for part, word in zip(operands, given, strict=False))


def _has_flags(name: str, flags: list[PatternWord], rest: list[Word]) -> bool:
    if not flags:
        return True
    given = read_options(rest)
    for part in flags:
        if any(word.text == part.text for word in rest):
            continue
        if part.text.startswith("--") or len(part.text) == 2:
            wanted = [part.text.split("=", 1)[0]]
        elif name in _LONG_WITH_ONE_DASH:
            return False
        else:
            wanted = ["-" + letter for letter in part.text[1:]]
        for flag in wanted:
            same = next((group for group in _SAME_FLAGS if flag in group), frozenset({flag}))
            if not given.has(*same):
                return False
    return True


def _operands(rest: list[Word]) -> list[tuple[Word, bool]]:
    """Words that are no options, each with whether it may be the value of an option before it."""
    found: list[tuple[Word, bool]] = []
    ended = after_option = False
    for word in rest:
        text = word.text or word.prefix
        if text == "--" and not ended:
            ended, after_option = True, False
        elif text.startswith("-") and len(text) > 1 and not ended:
            after_option = "=" not in text
        else:
            found.append((word, after_option))
            after_option = False
    return found


def _operands_match(pattern: list[PatternWord], given: list[tuple[Word, bool]]) -> bool:
    reachable = {0}
    for part in pattern:
        following: set[int] = set()
        for position in reachable:
            while True:
                if part.any_words:
                    following.update(range(position, len(given) + 1))
                    break
                if position < len(given) and _possibly(part, given[position][0]):
                    following.add(position + 1)
                if position < len(given) and given[position][1]:
                    position += 1  # it may have been the value of an option
                    continue
                break
        reachable = following
    return any(all(optional for _, optional in given[position:]) for position in reachable)


def _possibly(part: PatternWord, word: Word) -> bool:
    if not word.known:
        return part.wild or part.text.startswith(word.prefix)
    loose = PatternWord(_loose(part.text), part.literal)
    return any(_text_matches(loose, _loose(value)) or value == part.text for value in word.values)


def _loose(text: str) -> str:
    return posixpath.normpath(text) if "/" in text else text


def matches_path(rule: Rule, path: str, places: Places, *, generous: bool) -> bool:
    """Whether an edit or read rule speaks for one path. `generous`: aliases and any place count (ask, deny)."""
    full = places.resolve(path)
    inside = places.inside(full)
    if rule.spec is None or rule.path is None:
        return generous or inside
    absolute = rule.path.startswith("/")
    shown = full.lstrip("/") if absolute else places.display(path).lstrip("/")
    if rule.spec.match_file(shown) and (generous or inside or absolute):
        return True
    if not generous:
        return False
    return any(rule.spec.match_file(alias.lstrip("/")) for alias in (folded_path(shown), full))


def matches_url(rule: Rule, url: str, *, generous: bool) -> bool:
    if rule.url is None:
        return True
    parsed = parse_url(url)
    if parsed is None:
        return generous
    return rule.url.matches(parsed) and (generous or not parsed.tricky)
