"""May this use run? The matrix of modes and risks, then the person's rules. A pure function: no disk, no clock.

Rule: strictest wins. No rule lifts what the mode denies, and outside yolo *critical* is asked whatever a rule says.

Without a sandbox a command is at least dangerous, however harmless it reads. An allow rule is the person's word that
such a command may run uncontained: when one speaks for a segment, the other segments of that command are taken by what
they do themselves, so that `pytest -q | tail -5` runs under `execute(pytest *)`. No segment that does more than the
mode allows unasked rides along.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from enginehouse_core.permissions.places import Finding, Places
from enginehouse_core.permissions.rule_matching import allows_segment, matches_path, matches_url, tightens_segment
from enginehouse_core.permissions.rules import OnFile, Rule, StoredRule, parse_rule
from enginehouse_core.permissions.shell import CommandJudgement, judge_command
from enginehouse_core.permissions.suggestions import suggest, suggest_command
from enginehouse_protocol.errors import RuleRefused
from enginehouse_protocol.permissions import JsonObject, Risk, ToolKind, Verdict, riskier
from enginehouse_protocol.settings import Mode

MATRIX: dict[Mode, dict[Risk, Verdict]] = {
    "plan": {"safe": "allow", "write": "deny", "dangerous": "deny", "critical": "deny"},
    "default": {"safe": "allow", "write": "ask", "dangerous": "ask", "critical": "ask"},
    "accept_edits": {"safe": "allow", "write": "allow", "dangerous": "ask", "critical": "ask"},
    "yolo": {"safe": "allow", "write": "allow", "dangerous": "allow", "critical": "allow"},
}
_WHERE = ("cwd", "workdir", "working_directory")


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    risk: Risk
    reasons: tuple[str, ...]
    """Plain sentences, the weightiest first; never empty for a deny."""
    by: Literal["mode", "rule"] = "mode"
    rule: str | None = None
    """The rule that decided, as it is stored."""
    can_always: bool = False
    always_rule: str | None = None
    """What "always" would store; set exactly when `can_always`."""


@dataclass(frozen=True)
class _Active:
    stored: OnFile
    rule: Rule


@dataclass(frozen=True)
class _Case:
    """One use, its risk found."""

    kind: ToolKind
    name: str
    input: JsonObject
    paths: tuple[str, ...]
    places: Places
    risk: Risk
    reasons: tuple[str, ...]
    command: CommandJudgement | None = None


def judge(
    kind: ToolKind,
    name: str,
    tool_input: JsonObject,
    paths: tuple[str, ...],
    *,
    mode: Mode,
    rules: Sequence[OnFile],
    places: Places,
    sandboxed: bool,
) -> Judgement:
    """Judge one tool use. `rules` may hold those of other projects; they do not count here.

    A stored rule that cannot be understood: an allow counts for nothing, any other makes everything be asked.
    """
    case = _weigh(kind, name, tool_input, paths, places, sandboxed)
    active, broken = _active(rules, places)
    judgement = _judged(case, mode, active)
    if broken and judgement.verdict == "allow":
        reason = f"the rule {broken[0].rule!r} cannot be understood, so nothing runs unasked"
        return replace(judgement, verdict="ask", by="rule", rule=broken[0].rule, reasons=(reason, *judgement.reasons))
    if judgement.verdict != "ask" or judgement.by == "rule" or case.risk == "critical" or broken:
        return judgement
    offer = suggest_command(case.command) if case.command else suggest(kind, name, tool_input, case.paths, places)
    if offer is not None:
        trial = _Active(StoredRule(effect="allow", rule=offer), parse_rule(offer, "allow"))
        if _judged(case, mode, [*active, trial]).verdict == "allow":
            return replace(judgement, can_always=True, always_rule=offer)
    return judgement


def _active(rules: Iterable[OnFile], places: Places) -> tuple[list[_Active], list[OnFile]]:
    active: list[_Active] = []
    broken: list[OnFile] = []
    for stored in rules:
        if not _holds_here(stored, places):
            continue
        try:
            active.append(_Active(stored, parse_rule(stored.rule, stored.effect)))
        except RuleRefused:
            if stored.effect != "allow":
                broken.append(stored)
    return active, broken


def _holds_here(stored: OnFile, places: Places) -> bool:
    """An allow holds where the session works; what tightens holds as soon as any root is in its project."""
    if stored.project is None:
        return True
    project = places.resolve(stored.project)
    roots = places.roots[:1] if stored.effect == "allow" else places.roots
    return any(root == project or root.startswith(project.rstrip("/") + "/") for root in roots)


def _weigh(
    kind: ToolKind, name: str, tool_input: JsonObject, paths: tuple[str, ...], places: Places, sandboxed: bool
) -> _Case:
    paths = tuple(_located(path, places) for path in paths)

    def case(risk: Risk, reasons: Iterable[str], command: CommandJudgement | None = None) -> _Case:
        return _Case(kind, name, tool_input, paths, places, risk, tuple(dict.fromkeys(reasons)), command)

    match kind:
        case "read" | "search":
            if not paths:
                return case("safe", ()) if kind == "search" else case("dangerous", ("it does not say what it reads",))
            return case(*_worst(paths, places, lambda path: places.reading(path, deep=kind == "search")))
        case "edit":
            if not paths:
                return case("dangerous", ("it does not say what it changes",))
            return case(*_worst(paths, places, places.writing))
        case "execute":
            text = command_text(tool_input)
            if text is None:
                return case("dangerous", ("it does not say which command it runs",))
            where = next((tool_input[key] for key in _WHERE if isinstance(tool_input.get(key), str)), None)
            command = judge_command(text, places=places, sandboxed=sandboxed, cwd=where)
            reasons = command.reasons
            if not sandboxed and command.intrinsic in ("safe", "write"):
                reasons = (*reasons, "it runs without a sandbox")
            return case(command.effective, reasons, command)
        case "fetch":
            return case("dangerous", ("it reaches the network",))
        case "delegate":
            return case("dangerous", ("it lets another agent work",))
        case "other":
            return case("dangerous", (f"nobody knows what {name} does",))


def _located(path: str, places: Places) -> str:
    """A path as tools mean it. What only looks relative (`~`, a drive, a URL) is placed outside the roots."""
    if path == "~" or path.startswith("~/"):
        return places.resolve(places.home + path[1:]) if places.home else "/" + path
    if path.startswith("~") or "\\" in path or re.match(r"[A-Za-z][\w+.-]*:", path):
        return "/" + path
    return places.resolve(path)


def command_text(tool_input: JsonObject) -> str | None:
    """The command of an execute use: `command`, a text or a list of words."""
    command: object = tool_input.get("command")
    if isinstance(command, str):
        return command
    if isinstance(command, list) and command:
        words = cast(list[object], command)
        if all(isinstance(word, str) for word in words):
            return shlex.join(cast(list[str], words))
    return None


def _worst(paths: tuple[str, ...], places: Places, judge_path: Callable[[str], Finding]) -> tuple[Risk, list[str]]:
    worst: Risk = "safe"
    reasons: list[str] = []
    for path in paths:
        finding = judge_path(places.resolve(path))
        worst = riskier(worst, finding.risk)
        if finding.risk != "safe":
            reasons.append(finding.reason)
    return worst, reasons


def _judged(case: _Case, mode: Mode, active: Sequence[_Active]) -> Judgement:
    verdict = MATRIX[mode][case.risk]
    by_mode = Judgement(verdict, case.risk, case.reasons)
    if verdict == "deny":
        return replace(by_mode, reasons=(f"{mode} mode only reads", *case.reasons))
    for effect in ("deny", "ask"):
        for each in active:
            if each.stored.effect == effect and _tightens(each.rule, case):
                reasons = (f"the rule {each.rule.text} says {effect}", *case.reasons)
                return Judgement(cast(Verdict, effect), case.risk, reasons, "rule", each.stored.rule)
    if verdict == "allow" or case.risk == "critical":
        return by_mode
    allows = [each for each in active if each.stored.effect == "allow"]
    spoken = _allowed_command(case, mode, allows) if case.kind == "execute" else _allowed(case, mode, allows)
    if spoken is None:
        return by_mode
    return Judgement("allow", case.risk, case.reasons, "rule", spoken.stored.rule)


def _tightens(rule: Rule, case: _Case) -> bool:
    match rule.kind:
        case "tool":
            return rule.name == case.name
        case "execute" if case.kind == "execute":
            if case.command is None:
                return True  # which command it is cannot be seen, so it may be this one
            return rule.bare or any(tightens_segment(rule, segment) for segment in case.command.segments)
        case "edit" if case.kind == "edit":
            return not case.paths or any(matches_path(rule, path, case.places, generous=True) for path in case.paths)
        case "read" if case.kind in ("read", "search"):
            paths = case.paths or (".",)
            return any(matches_path(rule, path, case.places, generous=True) for path in paths)
        case "fetch" if case.kind == "fetch":
            url = case.input.get("url")
            return not isinstance(url, str) or matches_url(rule, url, generous=True)
        case "delegate":
            return case.kind == "delegate"
        case _:
            return False


def _allowed_command(case: _Case, mode: Mode, allows: Sequence[_Active]) -> _Active | None:
    """The rule that lets the command run; every segment needs one, or needs none in this mode."""
    command = case.command
    if command is None or not command.parsed:
        return None
    spoken: _Active | None = None
    for segment in command.segments:
        if segment.risk == "critical":
            return None
        found = next((each for each in allows if allows_segment(each.rule, segment)), None)
        if found is not None:
            spoken = spoken or found
        elif MATRIX[mode][segment.risk] != "allow":
            return None
    return spoken


def _allowed(case: _Case, mode: Mode, allows: Sequence[_Active]) -> _Active | None:
    by_name = next((each for each in allows if each.rule.kind == "tool" and each.rule.name == case.name), None)
    if by_name is not None:
        return by_name
    match case.kind:
        case "edit" | "read" | "search":
            return _allowed_paths(case, mode, allows)
        case "fetch":
            url = case.input.get("url")
            matching = (e for e in allows if e.rule.kind == "fetch" and isinstance(url, str))
            return next((e for e in matching if matches_url(e.rule, str(url), generous=False)), None)
        case "delegate":
            return next((each for each in allows if each.rule.kind == "delegate"), None)
        case _:
            return None


def _allowed_paths(case: _Case, mode: Mode, allows: Sequence[_Active]) -> _Active | None:
    kind = "edit" if case.kind == "edit" else "read"
    spoken: _Active | None = None
    for path in case.paths:
        full = case.places.resolve(path)
        finding = case.places.writing(full) if kind == "edit" else case.places.reading(full, deep=case.kind == "search")
        rules = (each for each in allows if each.rule.kind == kind)
        found = next((each for each in rules if matches_path(each.rule, path, case.places, generous=False)), None)
        if found is not None:
            spoken = spoken or found
        elif MATRIX[mode][finding.risk] != "allow":
            return None
    return spoken
