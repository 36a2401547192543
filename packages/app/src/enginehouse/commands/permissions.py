"""`enginehouse permissions`: the person's rules, and what they and the modes make of a tool use.

Rule: a rule is stored as it will be read, and refused with the reason when it would allow more than it seems to.
"""

import argparse
import os
import re
import shlex
from collections.abc import Sequence

from enginehouse.output import put, put_listing, remark
from enginehouse.places import directory_of
from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.policy import Judgement, judge
from enginehouse_core.permissions.rules import parse_rule
from enginehouse_core.profile.defaults import MODES
from enginehouse_core.profile.folders import Folders
from enginehouse_core.profile.rules_file import WrittenRule, add_rule, read_rules, remove_rules
from enginehouse_hosts.terminal.plain_text import exact
from enginehouse_protocol.errors import RuleRefused, UsageError
from enginehouse_protocol.permissions import JsonObject, ToolKind, Verdict
from enginehouse_protocol.settings import Mode

_RULE = re.compile(r"(execute|edit|read|fetch|delegate|tool)(?:\((.*)\))?", re.DOTALL)


def list_rules(arguments: argparse.Namespace) -> int:
    rules = read_rules(Folders.of(os.environ).permissions)
    if arguments.directory is not None:
        here = directory_of(arguments.directory)
        rules = [rule for rule in rules if rule.project is None or _is_below(here, rule.project)]
    put_listing(
        ("effect", "rule", "where"),
        [(rule.effect, rule.rule, rule.project or "everywhere") for rule in rules],
        [_object(rule) for rule in rules],
        as_json=arguments.json,
        none="no rules; the mode alone decides",
    )
    return 0


def allow(arguments: argparse.Namespace) -> int:
    return _store(arguments, "allow")


def deny(arguments: argparse.Namespace) -> int:
    return _store(arguments, "deny")


def remove(arguments: argparse.Namespace) -> int:
    folders = Folders.of(os.environ)
    project = _project(arguments)
    texts = {arguments.rule.strip()}
    try:
        texts.add(parse_rule(arguments.rule).text)
    except RuleRefused:
        pass  # a rule that no longer parses must be removable too

    def unwanted(rule: WrittenRule) -> bool:
        return rule.rule in texts and rule.project == project and arguments.effect in (None, rule.effect)

    found = {rule.effect for rule in read_rules(folders.permissions) if unwanted(rule)}
    if len(found) > 1:
        raise UsageError(
            f"{arguments.rule!r} stands there as {' and as '.join(sorted(found))}; say which with --effect"
        )
    removed: list[WrittenRule] = []
    if found:
        removed = remove_rules(folders.permissions, unwanted)
    if not removed:
        where = "everywhere" if project is None else f"for {project}"
        effect = f"{arguments.effect} " if arguments.effect else ""
        raise UsageError(
            f"there is no {effect}rule {arguments.rule!r} {where}; `enginehouse permissions list` shows those there are"
        )
    for rule in removed:
        put(f"removed: {_shown(rule.effect, rule.rule, rule.project)}\n")
    return 0


def explain(arguments: argparse.Namespace) -> int:
    folders = Folders.of(os.environ)
    words, here = _words(arguments)
    rules = read_rules(folders.permissions)
    kind, name, tool_input, paths, shown = _use(words)
    places = Places(roots=(here,), home=os.path.expanduser("~"), profile=str(folders.profile))
    judged: dict[Mode, Judgement] = {
        mode: judge(kind, name, tool_input, paths, mode=mode, rules=rules, places=places, sandboxed=False)
        for mode in MODES
    }
    default = judged["default"]
    put(f"{exact(shown)}\nrisk: {default.risk}\n")
    for reason in _reasons(judged):
        put(f"  because {exact(reason)}\n")
    for mode, judgement in judged.items():
        put(f"{mode.replace('_', '-'):<12}  {judgement.verdict:<5}  {exact(_decided(judgement))}\n")
    if default.always_rule is not None:
        put(f'"always" would store: {exact(default.always_rule)}\n')
    return 0


def _store(arguments: argparse.Namespace, effect: Verdict) -> int:
    folders = Folders.of(os.environ)
    text = parse_rule(arguments.rule, effect).text
    project = _project(arguments)
    is_new = add_rule(folders.permissions, WrittenRule(effect=effect, rule=text, project=project))
    put(f"{_shown(effect, text, project)}\n")
    if not is_new:
        remark("it was there already")
    return 0


def _shown(effect: Verdict, rule: str, project: str | None) -> str:
    return exact(f"{effect} {rule} ({project or 'everywhere'})")


def _project(arguments: argparse.Namespace) -> str | None:
    return None if arguments.everywhere else directory_of(arguments.directory)


def _words(arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Everything behind `explain` is the command, so its own options are read here: only `-C DIR`, and only first."""
    words: list[str] = list(arguments.words)
    directory: str | None = arguments.directory
    if words[:1] == ["-C"] and len(words) > 1:
        directory, words = words[1], words[2:]
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise UsageError("say a command or a rule, as in `enginehouse permissions explain git push`")
    return words, directory_of(directory)


def _use(words: Sequence[str]) -> tuple[ToolKind, str, JsonObject, tuple[str, ...], str]:
    """The tool use that a command or a rule stands for: kind, name, input, paths, and how to call it."""
    found = _RULE.fullmatch(words[0]) if len(words) == 1 else None
    if found is None:
        command = words[0] if len(words) == 1 else shlex.join(words)
        return "execute", "bash", {"command": command}, (), f"$ {command}"
    kind, body = found[1], (found[2] or "").strip()
    shown = parse_rule(words[0]).text
    match kind:
        case "execute":
            command = " ".join(word for word in body.split(" ") if word != "*")
            return (
                "execute",
                "bash",
                {"command": command} if command else {},
                (),
                f"{shown}, as `{command or 'any command'}`",
            )
        case "edit" | "read":
            return kind, f"{kind}_file", {"path": body}, (body,) if body else (), shown
        case "fetch":
            return "fetch", "fetch", {"url": body} if body else {}, (), shown
        case "delegate":
            return "delegate", "delegate", {}, (), shown
        case _:
            return "other", body, {}, (), shown


def _reasons(judged: dict[Mode, Judgement]) -> list[str]:
    """Why the risk is what it is: without what a mode or a rule adds."""
    return list(judged["yolo"].reasons if judged["yolo"].by == "mode" else judged["default"].reasons)


def _decided(judgement: Judgement) -> str:
    return f"the rule {judgement.rule}" if judgement.by == "rule" else "the mode"


def _object(rule: WrittenRule) -> JsonObject:
    return {
        "effect": rule.effect,
        "rule": rule.rule,
        "project": rule.project,
        "added_at": rule.added_at.isoformat() if rule.added_at else None,
    }


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
