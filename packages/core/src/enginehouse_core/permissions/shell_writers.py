"""Programs that make, change, copy and remove files: where their words say it happens.

Rule: what is removed must be known beforehand; a removal nobody can foresee is critical.
"""

import posixpath
import re

from enginehouse_core.permissions.places import Finding, Places
from enginehouse_core.permissions.shell_options import read_options
from enginehouse_core.permissions.shell_readers import Cwds, paths_of, read_paths, written
from enginehouse_core.permissions.shell_words import Word


def judge_removal(rest: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    options = read_options(rest)
    deep = options.has("-r", "-R", "--recursive")
    findings = [Finding("dangerous", "removes files")]
    if options.has("--no-preserve-root"):
        findings.append(Finding("critical", "removes even the top folder"))
    for word in options.operands:
        unknown = not word.known
        if unknown and (deep or word.splits or not word.prefix):
            findings.append(Finding("critical", f"nobody can tell beforehand what {word.shown} removes"))
        elif cwds is None and not all(value.startswith("/") for value in word.values):
            findings.append(Finding("critical" if deep else "dangerous", "nobody can tell in which folder it removes"))
        if unknown and word.prefix and not deep:
            findings += [places.removing(places.resolve(word.prefix + "x", cwd), deep=False) for cwd in cwds or ("/",)]
        findings += [places.removing(path, deep=deep) for path in paths_of(word, places, cwds)]
    return findings


def judge_new_entries(rest: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    valued = ("-m", "-t", "-d", "-r", "-s", "--mode", "--size", "--date", "--reference")
    options = read_options(rest, valued)
    return _changes(options.operands, options.doubtful, places, cwds)


def _changes(words: list[Word], unsure: bool, places: Places, cwds: Cwds) -> list[Finding]:
    findings = [Finding("write", "changes files"), *written(words, places, cwds)]
    if unsure:
        findings.append(Finding("dangerous", "gets words that only appear when it runs"))
    return findings


def judge_copies(rest: tuple[Word, ...], places: Places, cwds: Cwds, *, moves: bool = False) -> list[Finding]:
    options = read_options(rest, ("-t", "-S", "-m", "-o", "-g", "--target-directory", "--suffix", "--mode"))
    targets = options.given("-t", "--target-directory")
    sources = list(options.operands)
    if not targets and len(sources) > 1:
        targets = [sources.pop()]
    findings = _changes(targets, options.doubtful, places, cwds)
    for source in sources:  # the name arrives below the target, and may be a protected one
        name = posixpath.basename((source.text or "").rstrip("/"))
        findings += written(
            [Word(t.shown, tuple(f"{v}/{name}" for v in t.values)) for t in targets if t.known and name], places, cwds
        )
    deep = options.has("-r", "-R", "-a", "--recursive", "--archive")
    if any((w.text or "")[:1] in ("4", "2", "6") and len(w.text or "") == 4 for w in options.given("-m", "--mode")):
        findings.append(Finding("critical", "makes a program that runs with another person's rights"))
    return findings + (written(sources, places, cwds) if moves else read_paths(sources, places, cwds, deep=deep))


def judge_moves(rest: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    return judge_copies(rest, places, cwds, moves=True)


def judge_links(rest: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    findings = judge_copies(rest, places, cwds)
    for word in read_options(rest, ("-t", "-S")).operands[:-1]:
        if not all(places.inside(path) for path in paths_of(word, places, cwds)) or not word.known:
            findings.append(Finding("dangerous", "makes a way out of the roots"))
    return findings


def judge_rights(rest: tuple[Word, ...], places: Places, cwds: Cwds, *, owner: bool = False) -> list[Finding]:
    mode_like = [w for w in rest if re.fullmatch(r"-[rwxXst]+", w.text or "")]
    options = read_options([w for w in rest if w not in mode_like], ("--reference", "--from"))
    operands = [*mode_like, *options.operands] if mode_like else options.operands
    mode, files = (operands[0].text or "" if operands else ""), operands[1:]
    findings = [Finding("dangerous", "gives files another owner")] if owner else []
    findings += _changes(files, options.doubtful, places, cwds)
    if not owner and (re.fullmatch(r"0*[2-7]\d{3}", mode) or re.search(r"[+=]\w*s", mode)):
        findings.append(Finding("critical", "makes a program that runs with another person's rights"))
    if options.has("-R", "--recursive"):
        for word in files:
            paths = paths_of(word, places, cwds)
            if not word.known or not paths or any(places.wide(path) for path in paths):
                findings.append(Finding("critical", f"changes the rights of everything below {word.shown}"))
    return findings


def judge_owner(rest: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    return judge_rights(rest, places, cwds, owner=True)
