"""What one program with its words does to the machine: the table behind the risk of a segment.

Rule: a program that is not in the tables may do anything, so it is dangerous.
"""

import posixpath
import re
from collections.abc import Callable

from enginehouse_core.permissions.places import Finding, Places
from enginehouse_core.permissions.shell_git import judge_git
from enginehouse_core.permissions.shell_options import read_options
from enginehouse_core.permissions.shell_readers import (
    PRINTERS,
    READERS,
    Cwds,
    judge_awk,
    judge_reader,
    judge_sed,
    paths_of,
    read_paths,
    written,
)
from enginehouse_core.permissions.shell_words import Word
from enginehouse_core.permissions.shell_wrappers import INTERPRETERS, SHELLS, find_findings, find_selects, find_starts
from enginehouse_core.permissions.shell_writers import (
    judge_copies,
    judge_links,
    judge_moves,
    judge_new_entries,
    judge_owner,
    judge_removal,
    judge_rights,
)

_SYSTEM_FOLDERS = frozenset({"/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin"})
_ANOTHER_RIGHT = frozenset(
    {"sudo", "su", "doas", "pkexec", "run0", "runuser", "sudoedit", "setpriv", "chroot", "nsenter"}
)
_MACHINE = frozenset(
    {
        *("shutdown", "reboot", "halt", "poweroff", "init", "telinit", "wipefs", "shred", "fdisk", "parted", "sfdisk"),
        *(
            "gdisk",
            "blkdiscard",
            "mkswap",
            "swapoff",
            "crontab",
            "at",
            "batch",
            "visudo",
            "passwd",
            "chpasswd",
            "useradd",
        ),
        *("userdel", "usermod", "groupadd", "groupdel", "mount", "umount", "insmod", "modprobe", "rmmod", "iptables"),
        *(
            "nft",
            "ufw",
            "setcap",
            "chattr",
            "killall5",
            "launchctl",
            "diskutil",
            "srm",
            "sysctl",
            "setenforce",
            "hdparm",
        ),
    }
)
_MACHINE_FAMILY = re.compile(r"(?:mkfs|fsck|newfs)(?:[._]\w+)?\Z")
_NETWORK = frozenset(
    {
        "curl",
        "wget",
        "ssh",
        "scp",
        "sftp",
        "rsync",
        "nc",
        "ncat",
        "netcat",
        "socat",
        "ftp",
        "telnet",
        "ping",
        "dig",
        "gh",
        "aws",
    }
)
_SERVICES = frozenset(
    {
        "poweroff",
        "reboot",
        "halt",
        "kexec",
        "suspend",
        "start",
        "stop",
        "restart",
        "enable",
        "disable",
        "mask",
        "edit",
        "isolate",
    }
)
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_PUBLISHES = re.compile(
    r"(?:(?:npm|pnpm|yarn|cargo|poetry|uv|gem|hex) publish|twine upload|gem push|terraform (?:destroy|apply)|"
    r"(?:kubectl|helm) (?:delete|uninstall)|gh (?:repo|release|secret) (?:delete|archive)|gh repo edit)\b"
)
_VERSIONS = re.compile(
    r"(?:python|pip|pypy|node|nodejs|npm|npx|pnpm|yarn|bun|deno|ruby|gem|perl|php|java|javac|go|rustc|cargo|rustup|gcc|cc|g\+\+|"
    r"clang|make|cmake|ninja|uv|ruff|mypy|pyright|basedpyright|pytest|tsc|eslint|docker|podman|curl|wget|bash|zsh|sed|awk|"
    r"grep|tar|openssl|ssh|sqlite3|psql|gh|code|vim|nvim|emacs|poetry|hatch|tox|black|rsync|bazel|mvn|gradle|dotnet|swift|"
    r"kubectl|helm|terraform)[\d.]*\Z"
)
_VERSION_WORDS = frozenset({"--version", "-V", "-version"})
_SHORT_VERSION = frozenset({"node", "npm", "npx", "pnpm", "yarn", "ruby", "gcc", "clang", "make"})
_WORD_VERSION = frozenset({"go", "openssl", "docker", "terraform", "helm"})
_LURKING = frozenset(
    {"rm", "dd", "shred", "chmod", "chown", "sudo", "su", "doas", "git", "find", "kill", "wipefs", "shutdown"}
)


def program_name(word: Word) -> str | None:
    """The program as it is looked up: bare, or the system's own by full path; None when it only appears at run time."""
    text = word.text
    if text is None or word.glob or not text:
        return None
    folder, _, name = text.rpartition("/")
    return name if folder and name and posixpath.normpath(folder) in _SYSTEM_FOLDERS else text


def judge_program(name: str, words: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    """`words` includes the program, which is called `name`."""
    rest = words[1:]
    findings = _self_disarming(words)
    lowered = name.lower()
    if lowered != name:  # some file systems find `rm` under `RM`
        findings.append(Finding("dangerous", f"{name} is not how a program is spelled"))
    if lowered in _ANOTHER_RIGHT:
        return [*findings, Finding("critical", f"{lowered} runs with another person's rights")]
    if lowered in _MACHINE or _MACHINE_FAMILY.match(lowered):
        return [*findings, Finding("critical", f"{lowered} changes the machine, often for good")]
    if _VERSIONS.match(lowered) and len(rest) == 1 and _asks_version(lowered, rest[0]):
        return [*findings, Finding("safe", "prints a version")]
    if judge := _JUDGES.get(lowered):
        return [*findings, *judge(rest, places, cwds)]
    if lowered in PRINTERS:
        return [*findings, *_printer(lowered, rest)]
    if lowered in READERS:
        return [*findings, *judge_reader(lowered, rest, places, cwds)]
    if lowered in _CONTAINERS:
        return [*findings, _container(lowered, rest)]
    if _PUBLISHES.match(" ".join(w.text or "" for w in words)):
        return [*findings, Finding("critical", "reaches others and cannot be taken back")]
    if lowered in SHELLS or INTERPRETERS.match(lowered):
        return [*findings, Finding("dangerous", f"{lowered} runs code")]
    if lowered == "systemctl" and any((w.text or w.prefix) in _SERVICES for w in rest):
        return [*findings, Finding("critical", "changes what the machine runs")]
    reason = f"{name} reaches the network" if lowered in _NETWORK else f"runs {name}, which may do anything"
    return [*findings, Finding("dangerous", reason), *_lurking(words, places, cwds)]


def _lurking(words: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    """An unknown program may be a wrapper: look for the worst among what it is given."""
    for position, word in enumerate(words[1:40], start=1):
        name = program_name(word)
        if name is not None and name.lower() in _LURKING:
            found = judge_program(name, words[position:], places, cwds)
            return [finding for finding in found if finding.risk == "critical"]
    return []


def _asks_version(name: str, word: Word) -> bool:
    text = word.text or ""
    return (
        text in _VERSION_WORDS
        or (text == "-v" and name in _SHORT_VERSION)
        or (text == "version" and name in _WORD_VERSION)
    )


def _self_disarming(words: tuple[Word, ...]) -> list[Finding]:
    texts = [w.text or w.prefix for w in words]
    if any(posixpath.basename(text) in ("enginehouse", "enginehouse_core") for text in texts[:6]):
        if any(
            text in ("allow", "remove", "deny", "yolo", "--mode") or text.startswith(("--mode", "--sandbox"))
            for text in texts
        ):
            return [Finding("critical", "changes what Enginehouse itself allows")]
    return []


def _printer(name: str, rest: tuple[Word, ...]) -> list[Finding]:
    if name == "printf" and any((not w.known and w.splits) or (w.text or "").startswith("-v") for w in rest[:1]):
        return [Finding("dangerous", "printf sets a variable")]
    if name in ("test", "[") and any(
        "[" in (w.text or "") and ("$(" in (w.text or "") or "`" in (w.text or "")) for w in rest
    ):
        return [Finding("dangerous", "tests a text that may run a command")]
    return [Finding("safe", f"{name} only prints or compares")]


def _cd(rest: tuple[Word, ...], _places: Places, _cwds: Cwds) -> list[Finding]:
    options = read_options(rest)
    if any(not word.known or word.glob for word in options.operands) or len(options.operands) > 1:
        return [Finding("dangerous", "nobody can tell beforehand which folder it moves to")]
    return [Finding("safe", "moves to another folder")]


def _set(rest: tuple[Word, ...], _places: Places, _cwds: Cwds) -> list[Finding]:
    if rest and all(
        re.fullmatch(r"[-+][aeuxvofC]+|pipefail|errexit|nounset|xtrace|noclobber", w.text or "") for w in rest
    ):
        if not any(re.search(r"^[-+]\w*a", w.text or "") for w in rest if (w.text or "")[:1] in "-+"):
            return [Finding("safe", "sets how the shell treats errors")]
    return [Finding("dangerous", "shows or changes the shell's settings and variables")]


def _declares(rest: tuple[Word, ...], _places: Places, _cwds: Cwds) -> list[Finding]:
    for word in rest:
        text = word.text or word.prefix
        if not word.known and not word.prefix:
            return [Finding("dangerous", "declares what only appears when it runs")]
        if "[" in text.split("=", 1)[0] or (
            text[:1] in "-+" and text.strip("-+") not in ("x", "r", "g", "rx", "xr", "gx", "")
        ):
            return [Finding("dangerous", "declares a variable that counts, points elsewhere or is a function")]
    return [Finding("safe", "sets a variable")] if rest else [Finding("dangerous", "shows the environment")]


def _dd(rest: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    findings = [Finding("dangerous", "dd overwrites whatever it is pointed at")]
    for word in rest:
        text = word.text
        if text is None:
            findings.append(Finding("critical", "nobody can tell beforehand what dd overwrites"))
        elif text.startswith("of="):
            findings += [places.writing(places.resolve(text[3:], cwd)) for cwd in cwds or ("/",)]
        elif text.startswith("if="):
            findings += [places.reading(places.resolve(text[3:], cwd)) for cwd in cwds or ("/",)]
    return findings


def _kill(rest: tuple[Word, ...], _places: Places, _cwds: Cwds) -> list[Finding]:
    texts = [w.text for w in rest]
    if texts[:1] == ["-l"]:
        return [Finding("safe", "lists signals")]
    targets = texts[2:] if texts[:1] in (["-s"], ["-n"]) else texts
    if targets and len(targets) > 1 and (targets[0] or "").startswith("-") and targets is texts:
        targets = targets[1:]
    if any(target in ("1", "-1", "0", "-0") for target in targets):
        return [Finding("critical", "ends every process, the first one or this session's own")]
    return [Finding("dangerous", "ends a process")]


def _find(rest: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    words = (Word("find", ("find",)), *rest)
    findings, writes, deletes = find_findings(words)
    starts = find_starts(words)
    findings += [Finding("safe", "find only lists"), *written(writes, places, cwds)]
    for word in starts:
        if not word.known:
            findings.append(Finding("critical" if deletes else "dangerous", f"nobody can tell where {word.shown} is"))
        for path in paths_of(word, places, cwds):
            if not deletes:
                findings.append(places.reading(path))
            elif find_selects(words) and places.inside(path):
                findings.append(places.removing(path + "/found", deep=False))
            else:
                findings.append(places.removing(path, deep=True))
        if cwds is None and not all(value.startswith("/") for value in word.values):
            findings.append(Finding("critical" if deletes else "dangerous", "nobody can tell in which folder it runs"))
    return findings


def _tar(rest: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    if len(rest) == 2 and re.fullmatch(r"-?t?[vzjJ]*t?[vzjJ]*f", rest[0].text or "") and "t" in (rest[0].text or ""):
        return [Finding("safe", "tar lists"), *read_paths(rest[1:], places, cwds)]
    return [Finding("dangerous", "tar writes wherever the archive says, and can run programs")]


def _processes(rest: tuple[Word, ...], _places: Places, _cwds: Cwds) -> list[Finding]:
    if any(not w.known or (not (w.text or "").startswith("-") and "e" in (w.text or "")) for w in rest):
        return [Finding("dangerous", "shows the environment of processes, which may hold secrets")]
    return [Finding("safe", "ps lists")]


def _git(rest: tuple[Word, ...], places: Places, cwds: Cwds) -> list[Finding]:
    return judge_git(rest, places, cwds)


def _host_name(rest: tuple[Word, ...], _places: Places, _cwds: Cwds) -> list[Finding]:
    return [Finding("critical", "names the machine anew") if rest else Finding("safe", "prints a name")]


def _container(name: str, rest: tuple[Word, ...]) -> Finding:
    texts = [w.text or w.prefix for w in rest]
    for position, text in enumerate(texts):
        value = text.split("=", 1)[-1] if "=" in text else (texts[position + 1] if position + 1 < len(texts) else "")
        option = text.split("=", 1)[0]
        if option == "--privileged" or option in ("--device", "--cap-add", "--security-opt"):
            return Finding("critical", f"{name} {option} hands over the machine")
        if option in ("--pid", "--userns", "--ipc", "--uts") and value == "host":
            return Finding("critical", f"{name} {option}=host hands over the machine")
        mount = text[2:] if re.match(r"-v.", text) else value
        if option in ("-v", "--volume", "--mount") or re.match(r"-v.", text):
            if re.match(
                r"(?:.*(?:source|src)=)?(?:/|/etc|/root|/home|/usr|/var|/var/run/docker\.sock)/?(?::|,|\Z)", mount
            ):
                return Finding("critical", f"{name} mounts the machine's own folders")
    return Finding("dangerous", f"{name} runs and changes containers")


_Judge = Callable[[tuple[Word, ...], Places, Cwds], list[Finding]]
_JUDGES: dict[str, _Judge] = {
    "awk": judge_awk,
    "gawk": judge_awk,
    "mawk": judge_awk,
    "sed": judge_sed,
    "git": _git,
    "cd": _cd,
    "pushd": _cd,
    "popd": _cd,
    "set": _set,
    "export": _declares,
    "declare": _declares,
    "typeset": _declares,
    "local": _declares,
    "readonly": _declares,
    "unset": _declares,
    "rm": judge_removal,
    "unlink": judge_removal,
    "rmdir": judge_new_entries,
    "mkdir": judge_new_entries,
    "touch": judge_new_entries,
    "truncate": judge_new_entries,
    "tee": judge_new_entries,
    "cp": judge_copies,
    "install": judge_copies,
    "mv": judge_moves,
    "ln": judge_links,
    "chmod": judge_rights,
    "chown": judge_owner,
    "chgrp": judge_owner,
    "dd": _dd,
    "kill": _kill,
    "find": _find,
    "tar": _tar,
    "ps": _processes,
    "hostname": _host_name,
}

PLACED = frozenset(
    {
        *READERS,
        *PRINTERS,
        *(
            "awk",
            "gawk",
            "mawk",
            "sed",
            "cd",
            "pushd",
            "mkdir",
            "rmdir",
            "touch",
            "truncate",
            "tee",
            "cp",
            "install",
            "mv",
        ),
        *("ln", "chmod", "find", "tar", "ps"),
    }
)
"""Programs whose risk comes from where they read and write, or from odd options, not from what they are."""
LISTED = frozenset({*READERS, *PRINTERS, *_JUDGES, *_MACHINE, *_CONTAINERS, *SHELLS})
"""Programs the tables know by name, and that do not run what they are given."""
