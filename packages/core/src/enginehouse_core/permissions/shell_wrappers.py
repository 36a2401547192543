"""Programs that run another command, and the command they run.

Rule: a wrapper never makes what it wraps look milder. Where the command inside cannot be found the wrapper itself is
dangerous.
"""

import re
from dataclasses import dataclass, field

from enginehouse_core.permissions.places import Finding
from enginehouse_core.permissions.shell_options import read_options
from enginehouse_core.permissions.shell_words import UNKNOWN_WORDS, Word, plain

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "csh", "tcsh", "rbash"})
_READ_LIKE_BASH = frozenset({"sh", "bash", "dash"})
_BASH_ONLY = re.compile(
    r"\[\[|\(\(|[<>]\(|\$['\"]|&>|>&[^0-9-]|<<<|\|&|\{[^}\s]*[,.][^}\s]*\}|\bfunction\b|\+=|\$\[|;;?&"
)
"""What a plain sh reads differently than bash, and would run or write where bash compares or expands."""
INTERPRETERS = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|osascript|Rscript|ts-node)[\d.]*\Z"
)

_HARMLESS_VARIABLE = re.compile(
    r"(?:LANG|LANGUAGE|LC_\w+|TZ|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR\w*|COLORTERM|CI|DEBIAN_FRONTEND|"
    r"PYTHON(?:UNBUFFERED|DONTWRITEBYTECODE|HASHSEED|IOENCODING|UTF8|FAULTHANDLER)|RUST_BACKTRACE|RUST_LOG|"
    r"GIT_TERMINAL_PROMPT|GIT_OPTIONAL_LOCKS|PYTEST_DISABLE_PLUGIN_AUTOLOAD|SOURCE_DATE_EPOCH|POSIXLY_CORRECT)\Z"
)
_TREACHEROUS_VARIABLE = re.compile(
    r"(?:PATH|LD_\w+|DYLD_\w+|GIT_\w+|\w*PAGER|\w*EDITOR|VISUAL|BROWSER|SHELL|BASH_\w+|ENV|PROMPT_COMMAND|PS[0-4]|IFS|"
    r"CDPATH|SHELLOPTS|BASHOPTS|PYTHON\w+|PERL\w*|RUBY\w*|NODE_\w+|JAVA_\w+|_JAVA_OPTIONS|CLASSPATH|LESS\w*|TAR_OPTIONS|"
    r"RIPGREP_CONFIG_PATH|HOME|GLOBIGNORE|EXECIGNORE|HIST\w+|XDG_\w+|\w*_(?:proxy|PROXY)|SSH_\w+|DOCKER_\w+|KUBECONFIG|"
    r"(?:NPM|npm)_\w+|PIP_\w+|UV_\w+|CARGO_\w+|RUSTC\w*|CC|CXX|LD|AR|MAKE\w*|GCONV_PATH|TERMINFO\w*|TMPDIR|FPATH|ZDOTDIR|"
    r"PYTEST_\w+|JQ_\w+|GREP_\w+|POSIX_\w+|OPT(?:IND|ARG|ERR)|TEXTDOMAIN\w*|OLDPWD|PWD|DIRSTACK|BASH)\Z"
)

_SIMPLE: dict[str, tuple[tuple[str, ...], int]] = {
    "nice": (("-n", "--adjustment"), 0),
    "timeout": (("-k", "-s", "--kill-after", "--signal"), 1),
    "gtimeout": (("-k", "-s", "--kill-after", "--signal"), 1),
    "nohup": ((), 0),
    "setsid": ((), 0),
    "stdbuf": (("-i", "-o", "-e", "--input", "--output", "--error"), 0),
    "ionice": (("-c", "-n", "--class", "--classdata"), 0),
    "chrt": (("-p",), 1),
    "taskset": ((), 1),
    "command": ((), 0),
    "builtin": ((), 0),
    "exec": (("-a",), 0),
    "coproc": ((), 0),
    "time": (("-o", "-f", "--output", "--format"), 0),
    "busybox": ((), 0),
    "toybox": ((), 0),
    "caffeinate": (("-t", "-w"), 0),
    "unbuffer": ((), 0),
}
WRAPPERS = frozenset({*_SIMPLE, "env", "xargs", "eval", "trap", "watch", "sudo", "doas", "flock", "parallel", "strace"})


@dataclass
class Unwrapped:
    """What a wrapper runs: commands as words, scripts as text, and what it does besides."""

    commands: list[tuple[Word, ...]] = field(default_factory=list[tuple[Word, ...]])
    scripts: list[str] = field(default_factory=list[str])
    findings: list[Finding] = field(default_factory=list[Finding])
    lost_folder: bool = False
    """It runs in a folder nobody knows."""
    from_words: bool = False
    """Its input becomes words of the command, not its input."""


def variable_finding(name: str, *, exported: bool) -> Finding | None:
    """What setting `name` means: for the shell, or `exported` to a program."""
    if _HARMLESS_VARIABLE.match(name):
        return None
    if _TREACHEROUS_VARIABLE.match(name):
        return Finding("dangerous", f"{name} decides what other programs run or where they look")
    if exported:
        return Finding("dangerous", f"nobody knows what the variable {name} makes the program do")
    return None


def unwrap(name: str, words: tuple[Word, ...]) -> Unwrapped | None:
    """What `words` (the program, called `name`, included) runs; None when it is no wrapper."""
    if name == "command" and len(words) > 1 and (words[1].text or "") in ("-v", "-V"):
        return Unwrapped()
    if name in _SIMPLE:
        return _simple(name, words)
    if name == "env":
        return _env(words)
    if name == "xargs":
        return _xargs(words)
    if name == "find":
        return _find(words)
    if name in SHELLS:
        return _shell(name, words)
    if name == "eval":
        return _texts(words[1:], "eval runs its words as a script")
    if name == "trap":
        return _texts(words[1:2], "trap runs a script later")
    if name == "watch":
        return _texts(
            read_options(words[1:], ("-n", "--interval"), stop_at_operand=True).operands,
            "watch runs a script again and again",
        )
    return None


def _simple(name: str, words: tuple[Word, ...]) -> Unwrapped:
    valued, positions = _SIMPLE[name]
    options = read_options(words[1:], valued, stop_at_operand=True, numeric=name == "nice")
    inner = tuple(options.operands[positions:])
    found = Unwrapped(commands=[inner] if inner else [])
    if name == "time" and options.has("-o", "--output"):
        found.findings.append(Finding("dangerous", "time writes a file"))
    if any(not word.known for word in options.operands[: positions + 1]) or (name == "chrt" and options.has("-p")):
        found.findings.append(Finding("dangerous", f"what {name} runs only appears when it runs"))
    if name == "setsid" and options.has("-c"):
        found.findings.append(Finding("dangerous", "it takes over the terminal"))
    if name == "coproc" and len(inner) > 1:
        found.findings.append(Finding("dangerous", "a background process with a name of its own"))
    return found


def _env(words: tuple[Word, ...]) -> Unwrapped:
    options = read_options(
        words[1:], ("-u", "--unset", "-C", "--chdir", "-S", "--split-string", "-a"), stop_at_operand=True
    )
    found = Unwrapped()
    for text in options.given("-S", "--split-string"):
        rest = " ".join(w.text or "$UNKNOWN" for w in options.operands)
        found.scripts.append(f"{text.text or '$UNKNOWN'} {rest}")
        found.findings.append(Finding("dangerous", "env splits a text into a command"))
        return found
    if options.has("-C", "--chdir"):
        found.lost_folder = True
    rest = list(options.operands)
    while rest and "=" in (rest[0].text or rest[0].prefix) and not (rest[0].text or "").startswith("="):
        name = (rest[0].text or rest[0].prefix).split("=", 1)[0]
        if finding := variable_finding(name, exported=True):
            found.findings.append(finding)
        rest.pop(0)
    if rest and rest[0].text is None:
        found.findings.append(Finding("dangerous", "what env runs only appears when it runs"))
    if rest:
        found.commands.append(tuple(rest))
    else:
        found.findings.append(Finding("dangerous", "env shows the environment, which may hold secrets"))
    return found


_XARGS_VALUED = (
    "-I",
    "-n",
    "-L",
    "-P",
    "-d",
    "-E",
    "-s",
    "-a",
    "--max-args",
    "--max-procs",
    "--delimiter",
    "--arg-file",
)


def _xargs(words: tuple[Word, ...]) -> Unwrapped:
    options = read_options(words[1:], (*_XARGS_VALUED, "--replace", "--max-lines"), stop_at_operand=True)
    inner = tuple(options.operands) or (plain("echo"),)
    found = Unwrapped(from_words=True)
    if options.has("-a", "--arg-file"):
        found.findings.append(Finding("dangerous", "xargs takes its words from a file"))
    replaced = [w.text for w in options.given("-I", "--replace")] or (["{}"] if options.has("-i", "--replace") else [])
    if replaced:
        marker = replaced[0] or "{}"
        inner = tuple(_with_unknown(word, marker) for word in inner)
    else:
        inner = (*inner, UNKNOWN_WORDS)
    found.commands.append(inner)
    return found


def _with_unknown(word: Word, marker: str) -> Word:
    text = word.text
    if text is None or marker not in text:
        return word
    prefix = text.split(marker, 1)[0]
    return Word(shown=text, prefix=prefix, splits=not prefix)


_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_WRITES = frozenset({"-fprint", "-fprint0", "-fls", "-fprintf"})
_FIND_TESTS = re.compile(
    r"-(?:i?name|i?path|i?regex|i?wholename|newer\w*|[acm](?:time|min)|size|empty|user|group|perm)\Z"
)


def find_starts(words: tuple[Word, ...]) -> list[Word]:
    """The folders a find command starts from."""
    starts: list[Word] = []
    for word in words[1:]:
        text = word.text or word.prefix
        if text in ("-H", "-L", "-P") or text.startswith("-O"):
            continue
        if text.startswith("-") or text in ("(", "!", ","):
            break
        starts.append(word)
    return starts or [plain(".")]


def find_selects(words: tuple[Word, ...]) -> bool:
    """Whether a find command picks by name, age or size instead of taking everything."""
    return any(_FIND_TESTS.match(word.text or "") for word in words)


def found_word(words: tuple[Word, ...]) -> Word:
    """What a find command puts in place of `{}`: something below where it starts."""
    starts = find_starts(words)
    if any(not word.known for word in starts):
        return Word(shown="{}", prefix="", splits=False)
    selects = find_selects(words)
    values = [f"{value.rstrip('/')}/found" if selects else value for word in starts for value in word.values]
    return Word(shown="{}", values=tuple(values), glob=True)


def _find(words: tuple[Word, ...]) -> Unwrapped | None:
    found = Unwrapped()
    position = 0
    while position < len(words):
        text = words[position].text
        if text in _FIND_RUNS:
            end = position + 1
            while (
                end < len(words)
                and words[end].text != ";"
                and not (words[end].text == "+" and words[end - 1].text == "{}")
            ):
                end += 1
            inner = [found_word(words) if w.text == "{}" else _with_unknown(w, "{}") for w in words[position + 1 : end]]
            if text in ("-execdir", "-okdir"):
                found.lost_folder = True
            if inner:
                found.commands.append(tuple(inner))
            position = end
        position += 1
    return found if found.commands else None


def find_findings(words: tuple[Word, ...]) -> tuple[list[Finding], list[Word], bool]:
    """What find does itself besides running commands: findings, files it writes, whether it removes."""
    findings: list[Finding] = []
    writes: list[Word] = []
    deletes = False
    for position, word in enumerate(words):
        if word.text in _FIND_WRITES and position + 1 < len(words):
            writes.append(words[position + 1])
        deletes = deletes or word.text == "-delete"
        if word.text == "-files0-from":
            findings.append(Finding("dangerous", "find takes its folders from a file"))
        if (
            (not word.known and position and (word.splits or not word.prefix))
            or word.splits
            or (word.glob and (word.text or "")[:1] in "*?[")
        ):
            findings.append(Finding("dangerous", "find gets words that only appear when it runs"))
    return findings, writes, deletes


def _texts(words: tuple[Word, ...] | list[Word], why: str) -> Unwrapped:
    found = Unwrapped(findings=[Finding("dangerous", why)])
    if words and all(word.text is not None for word in words):
        found.scripts.append(" ".join(word.text or "" for word in words))
    return found


def _shell(name: str, words: tuple[Word, ...]) -> Unwrapped | None:
    """A shell with `-c`; None when it runs a file or its input."""
    options = read_options(
        [plain("-" + (w.text or "")[1:]) if (w.text or "").startswith("+") else w for w in words[1:]],
        ("-o", "-O", "--rcfile", "--init-file"),
        stop_at_operand=True,
    )
    if "-c" not in options.flags:
        return None
    found = Unwrapped()
    if name not in _READ_LIKE_BASH:
        found.findings.append(Finding("dangerous", f"{name} reads scripts in its own way"))
    odd = [
        flag
        for flag in options.flags
        if flag not in ("-c", "-e", "-u", "-x", "-o", "-f", "-v", "--norc", "--noprofile", "--posix")
    ]
    if odd:
        found.findings.append(Finding("dangerous", f"{name} {odd[0]} may run start-up files first"))
    script = options.operands[0].text if options.operands else None
    if script is None:
        found.findings.append(Finding("dangerous", "its script only appears when it runs"))
        if options.operands:  # what is written of it counts all the same
            shown = re.sub(r"\A(['\"])(.*)\1\Z", r"\2", options.operands[0].shown, flags=re.DOTALL)
            found.scripts.append(shown.replace('\\"', '"').replace("\\$", "$"))
    else:
        found.scripts.append(script)
        if name != "bash" and _BASH_ONLY.search(script):
            found.findings.append(Finding("dangerous", f"{name} may read this script differently than bash does"))
    return found


def reads_code_from_input(name: str, words: tuple[Word, ...]) -> bool:
    """Whether an interpreter takes its program from its input."""
    if name in SHELLS:
        options = read_options(words[1:], ("-o", "-O", "--rcfile", "--init-file"), stop_at_operand=True)
        return "-c" not in options.flags and (
            "-s" in options.flags or not options.operands or options.operands[0].text in ("-", "/dev/stdin")
        )
    if not INTERPRETERS.match(name):
        return False
    options = read_options(words[1:], ("-W", "-X", "-I", "-r", "--require"), stop_at_operand=True)
    if any(
        flag in ("-c", "-m", "-e", "-p", "--eval", "--print", "--version", "-V", "--help") for flag in options.flags
    ):
        return False
    return not options.operands or options.operands[0].text in ("-", "/dev/stdin")
