"""What a git command does: reads, changes, or throws away what nobody can bring back.

Rule: only a closed list of reading verbs, with options known not to run programs, is harmless.
"""

from enginehouse_core.permissions.places import Finding, Places
from enginehouse_core.permissions.shell_options import Options, read_options
from enginehouse_core.permissions.shell_words import Word

_GLOBAL_VALUED = (
    "-C",
    "-c",
    "--git-dir",
    "--work-tree",
    "--namespace",
    "--exec-path",
    "--super-prefix",
    "--config-env",
)
HARMLESS_GLOBAL = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"})
_READS = frozenset(
    {
        *("status", "log", "diff", "show", "blame", "annotate", "shortlog", "describe", "rev-parse", "rev-list"),
        *("ls-files", "ls-tree", "cat-file", "name-rev", "merge-base", "for-each-ref", "show-ref", "diff-tree"),
        *("diff-index", "diff-files", "whatchanged", "count-objects", "check-ignore", "check-attr", "grep", "version"),
        *("cherry", "range-diff", "show-branch", "var", "check-ref-format"),
    }
)
_RUN_PROGRAMS = ("--ext-diff", "--textconv", "--open-files-in-pager", "--filters", "--show-signature", "--upload-pack")
_READ_VALUED = ("-n", "-L", "-S", "-G", "-U", "-e", "--format", "--pretty", "--since", "--until", "--author", "--grep")
_LISTING = {
    "branch": frozenset({"-a", "-r", "-v", "-l", "--list", "--all", "--remotes", "--verbose", "--show-current"}),
    "tag": frozenset({"-l", "-n", "--list"}),
    "remote": frozenset({"-v", "--verbose"}),
}
_LISTING_WITH_OPERANDS = frozenset({"--list", "-l", "--contains", "--merged", "--no-merged", "--points-at", "--sort"})
_REWRITES = frozenset({"filter-branch", "filter-repo", "replace", "update-ref", "prune", "fast-import"})


def judge_git(words: tuple[Word, ...], places: Places, cwds: tuple[str, ...] | None) -> list[Finding]:
    """`words` without `git` itself."""
    globals_ = read_options(words, _GLOBAL_VALUED, stop_at_operand=True)
    findings: list[Finding] = []
    if globals_.doubtful and (not globals_.operands or not globals_.operands[0].known):
        return [Finding("dangerous", "what git is to do only appears when it runs")]
    odd = [flag for flag in globals_.flags if flag not in HARMLESS_GLOBAL]
    if odd and odd not in (["--version"], ["--help"]):
        findings.append(Finding("dangerous", f"git {odd[0]} can make git run other programs or read other settings"))
    if not globals_.operands:
        return findings or [Finding("safe", "git says what it is")]
    if cwds is None or any(cwd not in places.roots for cwd in cwds):
        findings.append(Finding("dangerous", "git reads the settings of whatever repository it finds there"))
    verb, rest = globals_.operands[0].text or "", globals_.operands[1:]
    return [*findings, _judge_verb(verb, rest, places, cwds)]


def _judge_verb(verb: str, rest: list[Word], places: Places, cwds: tuple[str, ...] | None) -> Finding:
    options = read_options(rest, _READ_VALUED, numeric=True)
    if verb in _READS:
        return _reads(verb, options, places, cwds)
    if verb in _LISTING and not options.doubtful:
        listing = options.has(*_LISTING_WITH_OPERANDS) or not options.operands
        known = all(
            flag.lstrip("-")[:1].isdigit() or flag in _LISTING[verb] | _LISTING_WITH_OPERANDS | {"-v"}
            for flag in options.flags
        )
        if known and listing:
            return Finding("safe", f"git {verb} lists")
        if verb == "branch" and options.has("-D", "-M", "-C", "--force", "-f"):
            return Finding("critical", "git branch with force drops commits nothing else may name")
        if verb == "remote" and [w.text for w in options.operands[:1]] == ["get-url"]:
            return Finding("safe", "git remote get-url prints")
    operand = next((w.text for w in options.operands), None)
    match verb:
        case "stash" if operand in ("list", "show"):
            return Finding("safe", "git stash list shows")
        case "stash" if operand in ("drop", "clear"):
            return Finding("critical", "stashed work is removed and nothing else names it")
        case "reflog" if operand in ("expire", "delete", "drop"):
            return Finding("critical", "the reflog is the way back from mistakes")
        case "reflog" if not options.doubtful:
            return Finding("safe", "git reflog shows")
        case "config":
            return _config(options)
        case "push":
            return _push(options)
        case "reset" if options.has("--hard", "--merge", "--keep"):
            return Finding("critical", "git reset --hard throws uncommitted work away, and no reflog keeps that")
        case "clean" if options.has("-f", "--force") or options.doubtful:
            return Finding("critical", "git clean removes files git never kept")
        case "checkout" | "switch" if options.has("-f", "--force", "--discard-changes"):
            return Finding("critical", f"git {verb} with force throws uncommitted work away")
        case "gc" if options.has("--prune"):
            return Finding("critical", "pruning removes the way back from mistakes")
        case "worktree" if operand == "remove" and options.has("-f", "--force"):
            return Finding("critical", "removes a worktree with uncommitted work")
        case _ if verb in _REWRITES:
            return Finding("critical", f"git {verb} rewrites history")
        case "tag" if options.has("-d", "--delete", "-f", "--force"):
            return Finding("dangerous", "git tag moves or removes a tag")
        case _:
            return Finding("dangerous", f"git {verb} changes the repository, runs its hooks or reaches the network")


def _reads(verb: str, options: Options, places: Places, cwds: tuple[str, ...] | None) -> Finding:
    if options.doubtful:
        return Finding("dangerous", f"git {verb} gets options that only appear when it runs")
    if options.has(*_RUN_PROGRAMS) or (verb == "grep" and options.has("-O")):
        return Finding("dangerous", f"git {verb} may run another program with these options")
    risk = Finding("safe", f"git {verb} reads the repository")
    if options.has("--output") or any(flag.startswith("--output=") for flag in options.flags):
        targets = options.given("--output")
        if not targets or cwds is None:
            return Finding("dangerous", "git writes a file nobody can name beforehand")
        found = [places.writing(places.resolve(w.text or "", cwd)) for w in targets for cwd in cwds if w.known]
        return max(found, key=lambda f: ("safe", "write", "dangerous", "critical").index(f.risk), default=risk)
    outside = options.has("--no-index") or verb in ("grep", "diff", "blame")
    for word in [*options.operands, *(value for _, value in options.values)]:
        text = word.text
        if outside and text and (text.startswith(("/", "~")) or ".." in text.split("/")) and cwds:
            for cwd in cwds:
                if (found := places.reading(places.resolve(text, cwd), deep=True)).risk != "safe":
                    return found
    return risk


def _config(options: Options) -> Finding:
    reading = {
        "--get",
        "--get-all",
        "--list",
        "-l",
        "--get-regexp",
        "--show-origin",
        "--show-scope",
        "--name-only",
        "-z",
    }
    scope = {"--global", "--local", "--system", "--worktree", "--includes", "--null", "--type", "--bool", "--int"}
    asks = options.has("--get", "--get-all", "--list", "-l", "--get-regexp")
    first = next((w.text for w in options.operands), None)
    if not options.doubtful and all(flag in reading | scope for flag in options.flags):
        if asks or first in ("get", "list"):
            return Finding("safe", "git config reads a setting")
    return Finding("critical", "git config writes into .git, or the person's settings, what git runs next")


def _push(options: Options) -> Finding:
    forced = options.has(
        "-f", "--force", "--force-with-lease", "--force-if-includes", "--mirror", "--delete", "-d", "--prune"
    )
    for word in options.operands[1:]:
        forced = forced or (word.text or word.prefix).startswith(("+", ":"))
    if forced or options.doubtful:
        return Finding("critical", "a forced push or a removed branch overwrites what others have")
    return Finding("dangerous", "git push reaches the network")
