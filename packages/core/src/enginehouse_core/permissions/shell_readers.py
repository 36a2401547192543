"""Programs that only read, and the options that make them do more.

Rule: a closed list. A program is here because its options were looked at; one that is missing is not harmless.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from enginehouse_core.permissions.places import Finding, Places
from enginehouse_core.permissions.shell_options import Options, read_options
from enginehouse_core.permissions.shell_words import Word

Cwds = tuple[str, ...] | None

PRINTERS = frozenset(
    {
        *("echo", "true", "false", ":", "whoami", "id", "groups", "uname", "arch", "nproc", "uptime", "free", "tty"),
        *("basename", "dirname", "seq", "sleep", "expr", "pwd", "getconf", "which", "type", "test", "[", "[[", "exit"),
        *("return", "break", "continue", "shift", "logname", "lscpu", "lsblk", "pgrep", "wait", "jobs", "times", "tr"),
        *("printf", "locale", "df", "read", "getopts", "cal"),
    }
)
"""Their words are text or names, whatever they look like; nothing they do outlives them."""


@dataclass(frozen=True)
class Reader:
    """How to read the words of one program. Options are spelled as `read_options` reports them."""

    valued: tuple[str, ...] = ()
    text_first: bool = False
    """The first operand is a pattern or a program text, unless an option in `text_given` gave it."""
    text_given: tuple[str, ...] = ()
    text_options: tuple[str, ...] = ()
    """Options whose value is text, never a path."""
    writes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    deep: tuple[str, ...] | None = None
    """Options that make it read whole folders; None: never, (): always."""
    last_is_output: bool = False


_COUNTED = Reader(valued=("-n", "-c", "--lines", "--bytes"), text_options=("-n", "-c"))
_GREP = Reader(
    valued=("-e", "-f", "-m", "-A", "-B", "-C", "-d", "-D", "--regexp", "--file", "--include", "--exclude", "--color"),
    text_first=True,
    text_given=("-e", "-f", "--regexp", "--file"),
    text_options=("-e", "--regexp", "--include", "--exclude", "-m", "-A", "-B", "-C", "--exclude-dir"),
    deep=("-r", "-R", "--recursive", "--dereference-recursive"),
)
_PLAIN = Reader()
_SUMS = Reader(deep=None)

READERS: dict[str, Reader] = {
    "ls": Reader(valued=("-I", "-w", "-T"), text_options=("-I",)),
    "cat": _PLAIN,
    "tac": _PLAIN,
    "rev": _PLAIN,
    "nl": _PLAIN,
    "wc": Reader(),
    "head": _COUNTED,
    "tail": _COUNTED,
    "cut": Reader(valued=("-d", "-f", "-c", "-b"), text_options=("-d", "-f", "-c", "-b", "--delimiter")),
    "paste": Reader(valued=("-d",), text_options=("-d",)),
    "join": Reader(valued=("-t", "-o", "-j", "-1", "-2", "-e"), text_options=("-t", "-e", "-o")),
    "comm": _PLAIN,
    "fold": Reader(valued=("-w",)),
    "fmt": Reader(valued=("-w",)),
    "column": Reader(valued=("-s", "-t", "-c", "-o"), text_options=("-s", "-o")),
    "expand": _PLAIN,
    "unexpand": _PLAIN,
    "od": Reader(valued=("-t", "-A", "-N", "-j", "-w")),
    "hexdump": Reader(valued=("-n", "-s", "-e"), text_options=("-e",)),
    "strings": Reader(valued=("-n",)),
    "cmp": _PLAIN,
    "diff": Reader(valued=("-U", "-I", "-x"), text_options=("-I", "-x"), deep=("-r", "--recursive")),
    "md5sum": _SUMS,
    "sha1sum": _SUMS,
    "sha224sum": _SUMS,
    "sha256sum": _SUMS,
    "sha384sum": _SUMS,
    "sha512sum": _SUMS,
    "shasum": Reader(valued=("-a",)),
    "b2sum": _SUMS,
    "cksum": _SUMS,
    "sum": _SUMS,
    "stat": Reader(valued=("-c", "-f", "--format", "--printf"), text_options=("-c", "--format", "--printf")),
    "file": Reader(valued=("-m", "-f", "-F"), runs=("-C", "--compile", "-S", "--no-sandbox")),
    "du": Reader(valued=("-d", "-t", "--max-depth", "--exclude"), text_options=("--exclude",)),
    "readlink": _PLAIN,
    "realpath": _PLAIN,
    "tree": Reader(valued=("-L", "-I", "-P", "-o"), text_options=("-I", "-P"), writes=("-o",), runs=("-R",)),
    "uniq": Reader(valued=("-f", "-s", "-w"), last_is_output=True),
    "sort": Reader(
        valued=("-k", "-t", "-o", "-S", "-T", "--output", "--compress-program", "--key", "--parallel"),
        text_options=("-t", "-k", "--field-separator"),
        writes=("-o", "--output"),
        runs=("--compress-program", "-T", "--temporary-directory"),
    ),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": Reader(
        valued=(
            "-e",
            "-f",
            "-g",
            "-t",
            "-T",
            "-A",
            "-B",
            "-C",
            "-m",
            "-r",
            "-d",
            "-j",
            "-M",
            "--glob",
            "--type",
            "--max-count",
        ),
        text_first=True,
        text_given=("-e", "-f", "--regexp", "--file", "--files", "--type-list"),
        text_options=("-e", "-g", "-r", "--glob", "--regexp", "--replace", "--iglob"),
        runs=("--pre", "--hostname-bin", "-z", "--search-zip"),
        deep=(),
    ),
    "jq": Reader(
        valued=("-f", "-L", "--indent", "--from-file"),
        text_first=True,
        text_given=("-f", "--from-file"),
    ),
    "zcat": _PLAIN,
    "bzcat": _PLAIN,
    "xzcat": _PLAIN,
    "date": Reader(
        valued=("-d", "-r", "-f", "--date"), text_first=True, text_options=("-d", "--date"), runs=("-s", "--set")
    ),
}


def judge_reader(name: str, words: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    """`words` without the program itself, which is in `READERS`."""
    reader = READERS[name]
    options = read_options(words, reader.valued, numeric=name in ("head", "tail", "fold"))
    if options.unsure or (options.globbed and (reader.writes or reader.runs)):
        return [Finding("dangerous", f"{name} gets words that only appear when it runs")]
    findings: list[Finding] = [Finding("safe", f"{name} only reads")]
    if reader.runs and options.has(*reader.runs):
        findings.append(Finding("dangerous", f"{name} can run programs or write elsewhere with these options"))
    findings += written(options.given(*reader.writes), places, cwds)
    if reader.writes and options.has(*reader.writes) and not options.given(*reader.writes):
        findings.append(Finding("dangerous", f"{name} writes a file nobody can name"))
    operands = options.operands
    if name == "jq" and (jq := _jq(options)):
        findings.append(jq)
    if name == "date" and operands and not (operands[0].text or "").startswith("+"):
        findings.append(Finding("dangerous", "date sets the clock"))
    if reader.text_first and not options.has(*reader.text_given):
        operands = operands[1:]
    if reader.last_is_output and len(operands) > 1:
        findings += written(operands[1:], places, cwds)
    deep = reader.deep is not None and (not reader.deep or options.has(*reader.deep))
    if deep and not operands:
        findings += read_paths([Word(shown=".", values=(".",))], places, cwds, deep=True)
    findings += read_paths(operands, places, cwds, deep=deep)
    values = [w for flag, w in options.values if flag not in (*reader.text_options, *reader.writes)]
    return findings + read_paths(values, places, cwds, deep=deep)


def read_paths(words: Iterable[Word], places: Places, cwds: Cwds, *, deep: bool = False) -> list[Finding]:
    findings: list[Finding] = []
    for word in words:
        if word.text == "-":
            continue
        if not word.known:
            if word.shown.startswith("<("):
                continue
            findings.append(Finding("dangerous", f"nobody can tell beforehand which file {word.shown} is"))
            continue
        findings += [places.reading(path, deep=deep) for path in paths_of(word, places, cwds)]
        if cwds is None and not all(value.startswith("/") for value in word.values):
            findings.append(Finding("dangerous", "nobody can tell in which folder it runs"))
    return findings


def written(words: Iterable[Word], places: Places, cwds: Cwds, *, redirected: bool = False) -> list[Finding]:
    """`redirected`: the shell opens it, to which `-` is a name like any other."""
    findings: list[Finding] = []
    for word in words:
        if word.text == "" or (word.text == "-" and not redirected):
            continue
        if not word.known or (cwds is None and not all(value.startswith("/") for value in word.values)):
            name = places.protected("/" + word.prefix)
            risk = "critical" if name else "dangerous"
            findings.append(Finding(risk, f"nobody can tell beforehand where {word.shown} is"))
            if word.known:  # even so a protected name is one wherever it is
                findings += [places.writing(places.resolve(value, "/nowhere")) for value in word.values]
            continue
        findings += [places.writing(path) for path in paths_of(word, places, cwds)]
    return findings


def paths_of(word: Word, places: Places, cwds: Cwds) -> list[str]:
    bases: tuple[str | None, ...] = cwds if cwds is not None else (None,)
    return [
        places.resolve(value, base)
        for value in word.values
        for base in bases
        if value and (base is not None or value.startswith("/"))
    ]


def _jq(options: Options) -> Finding | None:
    if options.has("-f", "--from-file", "-L"):
        return Finding("dangerous", "jq runs a program from a file")
    text = options.operands[0].text if options.operands else ""
    if text is None or re.search(r"\benv\b|\$ENV|\binclude\b|\bimport\b", text):
        return Finding("dangerous", "jq can print the environment, which may hold secrets")
    return None


_AWK_DOES_MORE = re.compile(r"system|\||>|getline|@|\bclose\b|ENVIRON|PROCINFO|ARGV|\\")


def judge_awk(words: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    options = read_options(words, ("-F", "-v", "-f", "-i", "-E", "-l", "-o"), stop_at_operand=True)
    odd = [flag for flag in options.flags if flag not in ("-F", "-v")]
    text = options.operands[0].text if options.operands else None
    if odd or options.doubtful or text is None or _AWK_DOES_MORE.search(text):
        return [Finding("dangerous", "an awk program can run others and write files")]
    return [Finding("safe", "this awk program only prints"), *read_paths(options.operands[1:], places, cwds)]


_SED_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n]|\\.)*/I?)"
_SED_COMMAND = re.compile(
    rf"\s*(?:{_SED_ADDRESS}(?:\s*,\s*(?:[+~]?\d+|{_SED_ADDRESS}))?\s*)?!?\s*"
    r"(?:[pdqQlnNDGgPhHx=]|s([^\w\s\\])(?:(?!\1)[^\\\n]|\\.)*\1(?:(?!\1)[^\\\n]|\\.)*\1[gpIi0-9]*"
    r"|y([^\w\s\\])(?:(?!\2)[^\\\n]|\\.)*\2(?:(?!\2)[^\\\n]|\\.)*\2|\{|\}|[aic]\\?[^\n]*)\s*(?:[;\n]|\Z)",
    re.DOTALL,
)


def judge_sed(words: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    """sed with `-i` writes its files; its commands e, w, r and anything not understood do more."""
    scripts: list[Word] = []
    rest: list[Word] = []
    in_place = False
    for word in words:  # `-i` takes its suffix only when attached, which read_options cannot know
        text = word.text or ""
        if re.fullmatch(r"-[nErsz]*i\S*|--in-place(=.*)?|--in.*", text):
            in_place = True
            if "/" in text:
                return [Finding("dangerous", "sed keeps its copies elsewhere")]
            if text[1:2] != "i" and not text.startswith("--"):
                rest.append(Word(shown=text, values=(text.split("i")[0],)))
            continue
        rest.append(word)
    options = read_options(rest, ("-e", "-f", "-l", "--expression", "--file"))
    scripts += options.given("-e", "--expression")
    operands = list(options.operands)
    if not scripts and operands:
        scripts.append(operands.pop(0))
    if options.doubtful or options.has("-f", "--file") or not scripts:
        return [Finding("dangerous", "sed gets commands nobody can read beforehand")]
    for script in scripts:
        if script.text is None or not _sed_only_edits(script.text):
            return [Finding("dangerous", "sed's commands may run programs or write files")]
    if in_place:
        return [Finding("write", "sed changes files in place"), *written(operands, places, cwds)]
    return [Finding("safe", "sed only prints"), *read_paths(operands, places, cwds)]


def _sed_only_edits(script: str) -> bool:
    position = 0
    if len(script) > 4096:
        return False
    script = script.strip()
    while position < len(script):
        found = _SED_COMMAND.match(script, position)
        if found is None or found.end() == position:
            return False
        position = found.end()
    return True
