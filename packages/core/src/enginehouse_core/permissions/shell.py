"""How risky a shell command is, segment by segment.

Rule: the riskiest segment decides, and what cannot be read with certainty is at least dangerous.

Two risks, both needed. The *intrinsic* risk says what the command does; it is what the verdict table in the tests
writes down and what a person is told. The *effective* risk is what the policy uses: without a sandbox nothing contains
a command whose reading was wrong, so it is never below dangerous there. Reading is lexical; the disk is not asked.
Commands are read as bash reads them, which is what runs them; other shells differ in corners.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from enginehouse_core.permissions.places import Finding, Places
from enginehouse_core.permissions.shell_parts import Simple
from enginehouse_core.permissions.shell_programs import PLACED, judge_program, program_name
from enginehouse_core.permissions.shell_readers import Cwds, read_paths, written
from enginehouse_core.permissions.shell_syntax import Script, read_script
from enginehouse_core.permissions.shell_words import Word, plain
from enginehouse_core.permissions.shell_wrappers import (
    INTERPRETERS,
    SHELLS,
    found_word,
    reads_code_from_input,
    unwrap,
    variable_finding,
)
from enginehouse_protocol.permissions import RISKS, Risk, riskier

_MOST_LAYERS = 12
_MOST_SEGMENTS = 2_000
_FETCHERS = frozenset(
    {"curl", "wget", "fetch", "aria2c", "http", "https", "xh", "nc", "ncat", "netcat", "socat", "lynx", "ssh", "ftp"}
)
_DECODERS = frozenset(
    {"base64", "base32", "xxd", "openssl", "uudecode", "gpg", "gunzip", "zcat", "bzcat", "xzcat", "rev", "basenc"}
)

_FED_TO_SHELL = re.compile(
    r"\b(?:curl|wget|aria2c|base64|base32|xxd|openssl)\b[^;\n]*\|[^;\n]*\b(?:(?:ba|da|z|k)?sh|python[\d.]*|perl|ruby|node|php)\b"
)
"""For commands that could not be read with certainty: better one too many."""


@dataclass(frozen=True)
class Segment:
    """One simple command that may run. `words[0]` is the program; no words: only redirections or assignments."""

    words: tuple[Word, ...]
    program: str | None
    """As looked up; None when it only appears while the command runs."""
    risk: Risk
    reasons: tuple[str, ...]
    outer: tuple[tuple[Word, ...], ...] = ()
    """The commands that wrap it, outermost first."""
    allowable: bool = True
    """Whether an allow rule may speak for it: its program is known, its variables are harmless, and it redirects
    nothing to where a command may not write."""
    reaches_out: bool = False
    """A program known to be harmless that is risky only through where it reads or writes: an allow rule with a
    wildcard never meant that."""
    shown: str = ""


@dataclass(frozen=True)
class CommandJudgement:
    segments: tuple[Segment, ...]
    intrinsic: Risk
    reasons: tuple[str, ...]
    """Why it is as risky as it is, the riskiest first; plain sentences."""
    parsed: bool
    """False: no allow rule speaks for any part of it."""
    sandboxed: bool

    @property
    def effective(self) -> Risk:
        return self.intrinsic if self.sandboxed else riskier(self.intrinsic, "dangerous")


def judge_command(command: str, *, places: Places, sandboxed: bool, cwd: str | None = None) -> CommandJudgement:
    """Never raises and never runs or opens anything. `cwd` is where it starts; the first root when not given."""
    reader = _Reader(places)
    start = places.resolve(cwd) if cwd is not None else None
    reader.script(command, (start,) if start else places.roots[:1] or None, (), 0)
    findings = reader.problems
    ranked = sorted(
        [*findings, *(Finding(s.risk, reason) for s in reader.segments for reason in s.reasons)],
        key=lambda finding: -RISKS.index(finding.risk),
    )
    worst: Risk = ranked[0].risk if ranked else "safe"
    for segment in reader.segments:
        worst = riskier(worst, segment.risk)
    reasons = tuple(dict.fromkeys(finding.reason for finding in ranked if finding.risk != "safe"))
    return CommandJudgement(tuple(reader.segments), worst, reasons[:12], not findings, sandboxed)


class _Reader:
    def __init__(self, places: Places) -> None:
        self._places = places
        self.segments: list[Segment] = []
        self.problems: list[Finding] = []

    def script(
        self, command: str, cwds: Cwds, outer: tuple[tuple[Word, ...], ...], layer: int, extra: Iterable[Finding] = ()
    ) -> None:
        if layer > _MOST_LAYERS or len(self.segments) > _MOST_SEGMENTS:
            self.problems.append(Finding("dangerous", "the command is nested too deeply to be read"))
            return
        script = read_script(command, self._places, cwds if cwds is not None else ())
        if cwds is None or cwds == ():
            for simple in script.commands:
                simple.cwds = None
        self._problems(script, command)
        for name in script.assigned:
            if finding := variable_finding(name, exported=False):
                self.problems.append(finding)
        for simple in script.commands:
            self._simple(simple, outer, layer, tuple(extra))

    def _problems(self, script: Script, command: str) -> None:
        self.problems += [Finding("dangerous", f"the command {problem}") for problem in script.problems]
        if script.problems and _FED_TO_SHELL.search(command):
            self.problems.append(Finding("critical", "seems to run as a program what another command hands it"))
        self.problems += [Finding("critical", f"{name} starts itself again and again") for name in script.bombs]

    def _simple(
        self, simple: Simple, outer: tuple[tuple[Word, ...], ...], layer: int, extra: tuple[Finding, ...]
    ) -> None:
        findings = [*extra, *self._redirects(simple)]
        if simple.words:
            for name, _ in simple.assignments:
                if finding := variable_finding(name, exported=True):
                    findings.append(finding)
            self._command(simple, simple.words, simple.cwds, outer, layer, findings)
        else:
            self._add(Segment((), "", "safe", (), outer, False, shown=simple.shown), findings)

    def _redirects(self, simple: Simple) -> list[Finding]:
        findings: list[Finding] = []
        for redirect in simple.redirects:
            if redirect.target is None:
                continue
            if redirect.writes:
                findings += written([redirect.target], self._places, simple.cwds, redirected=True)
            if redirect.reads:
                findings += read_paths([redirect.target], self._places, simple.cwds)
        return [f for f in findings if f.risk != "safe"]

    def _command(
        self,
        simple: Simple,
        words: tuple[Word, ...],
        cwds: Cwds,
        outer: tuple[tuple[Word, ...], ...],
        layer: int,
        findings: list[Finding],
        *,
        from_words: bool = False,
    ) -> None:
        """One command, opened when it wraps others. `findings` hold for whatever is inside."""
        name = program_name(words[0])
        if layer > _MOST_LAYERS:
            findings = [*findings, Finding("dangerous", "the command is nested too deeply to be read")]
        if name is None or layer > _MOST_LAYERS:
            reason = Finding("dangerous", f"which program {words[0].shown} is only appears when it runs")
            self._add(Segment(words, None, "safe", (), outer, False, shown=simple.shown), [*findings, reason])
            return
        inside = unwrap(name, words)
        findings = [*findings, *self._code_from(name, simple, words, outer, layer, from_words)]
        if inside is None or name == "find" or not (inside.commands or inside.scripts):
            own = (
                judge_program(name, words, self._places, cwds) if inside is None or name == "find" else inside.findings
            )
            allowable = not any(f.risk in ("dangerous", "critical") for f in findings)
            reaches_out = name in PLACED and any(f.risk in ("dangerous", "critical") for f in own)
            looked_up = (replace(plain(name), shown=words[0].shown), *words[1:])
            self._add(
                Segment(looked_up, name, "safe", (), outer, allowable, reaches_out, simple.shown), [*findings, *own]
            )
        if inside is None:
            return
        findings = [*findings, *inside.findings]
        inner_cwds = None if inside.lost_folder else cwds
        for command in inside.commands:
            if inside.from_words:
                command = tuple(self._fed_words(simple, command))
            self._command(
                simple,
                command,
                inner_cwds,
                (*outer, words),
                layer + 1,
                findings,
                from_words=from_words or inside.from_words,
            )
        for script in inside.scripts:
            before = len(self.segments)
            self.script(script, inner_cwds, (*outer, words), layer + 1, findings)
            if len(self.segments) == before:  # nothing in it, but the shell itself was started, and redirected
                self._add(Segment(words, name, "safe", (), outer, False, shown=simple.shown), findings)

    def _fed_words(self, simple: Simple, words: tuple[Word, ...]) -> Iterable[Word]:
        """xargs right behind a find: its words are what find found."""
        feeding = [fed for fed in simple.fed_by if fed.words]
        only_find = len(feeding) == 1 and feeding[0].words[0].text == "find"
        for word in words:
            if word.known or not word.splits or not only_find:
                yield word
                continue
            found = found_word(feeding[0].words)
            exact = any(w.text == "-print0" for w in feeding[0].words)
            yield replace(found, splits=not exact, glob=False) if found.known else word

    def _code_from(
        self,
        name: str,
        simple: Simple,
        words: tuple[Word, ...],
        outer: tuple[tuple[Word, ...], ...],
        layer: int,
        from_words: bool,
    ) -> list[Finding]:
        """An interpreter whose program comes from other commands: what do they hand it?"""
        interprets = name in SHELLS or name in ("eval", "source", ".") or bool(INTERPRETERS.match(name))
        if not interprets:
            return []
        sources = list(simple.made_of)
        from_input = reads_code_from_input(name, words) or any(w.text == "/dev/stdin" for w in words)
        if from_input or from_words or name == "eval":
            sources += simple.fed_by
        names = {program_name(w) for s in _all_sources(sources) for w in s.words}
        if fetched := sorted(str(n) for n in names & _FETCHERS):
            return [Finding("critical", f"runs as a program whatever {fetched[0]} brings from the network")]
        if decoded := sorted(str(n) for n in names & _DECODERS):
            return [Finding("critical", f"runs as a program what {decoded[0]} makes readable only then")]
        if from_input and name in SHELLS:
            for text in _texts_fed(simple):
                self.script(text, simple.cwds, (*outer, words), layer + 1)
        return []

    def _add(self, segment: Segment, findings: list[Finding]) -> None:
        risk: Risk = "safe"
        for finding in findings:
            risk = riskier(risk, finding.risk)
        reasons = tuple(dict.fromkeys(f.reason for f in findings if f.risk == risk)) if risk != "safe" else ()
        self.segments.append(replace(segment, risk=risk, reasons=reasons))


def _all_sources(sources: list[Simple]) -> list[Simple]:
    found: list[Simple] = []
    seen: set[int] = set()
    stack = list(sources)
    while stack:
        simple = stack.pop()
        if id(simple) not in seen:
            seen.add(id(simple))
            found.append(simple)
            stack += [*simple.fed_by, *simple.made_of]
    return found


def _texts_fed(simple: Simple) -> list[str]:
    """Texts that certainly reach the command's input: here-documents, here-strings, a plain echo or printf."""
    texts = [r.text for s in (simple, *simple.fed_by) for r in s.redirects if r.text]
    printed = (fed.words[1:] for fed in simple.fed_by if fed.words and fed.words[0].text in ("echo", "printf"))
    for words in printed:
        shown = [word.text or word.prefix for word in words if word.text not in ("-e", "-n", "-ne", "--")]
        texts += [" ".join(shown).replace("\\n", "\n")]
    return texts
