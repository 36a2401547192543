"""The command line: every command, its options, its help.

Rule: argparse and nothing else is imported here; a command's own module is imported when that command runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from enginehouse import __version__

TYPE_CHECKING = False
Command = Callable[[argparse.Namespace], int]
_MODES = ("plan", "default", "accept-edits", "yolo")

_EPILOG = """\
examples:
  enginehouse demo                                   see it work: offline, in a throwaway project
  enginehouse run "why does the parser's test fail?" ask an agent, in this directory
  git diff | enginehouse run "review this"           the piped text follows the prompt
  enginehouse run -c "now fix it"                    go on with the newest session of this directory

`enginehouse COMMAND --help` tells more about a command.
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Without a width argparse imports shutil, and with it three compression libraries."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=max(60, min(_columns(), 110)), max_help_position=28)


def parse(arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """The command to run, and what it was told. Ends the process with 2 for a wrong call, with 0 after help."""
    parser = _parser(next((each for each in arguments if not each.startswith("-")), None))
    parsed = parser.parse_args(arguments)
    where: str | None = getattr(parsed, "command", None)
    if where is None:
        parser.print_help()
        return _nothing, parsed
    module, _, name = where.partition(":")
    return getattr(import_module(f"enginehouse.commands.{module}"), name), parsed


def _nothing(_: argparse.Namespace) -> int:
    return 0


def _parser(wanted: str | None) -> argparse.ArgumentParser:
    """Only the wanted command is built with everything below it: all of them would cost half of the start-up."""
    parser = argparse.ArgumentParser(
        prog="enginehouse",
        description="Talk to a coding agent; it asks before anything risky happens, and nothing that was said is lost.",
        epilog=_EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"enginehouse {__version__}", help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, (about, build) in _COMMANDS.items():
        if name == wanted:
            build(commands, name, about)
        else:
            commands.add_parser(name, help=about, add_help=False)
    return parser


if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 argparse has no public name for it


def _add(
    commands: Subparsers,
    name: str,
    where: str,
    about: str,
    *examples: str,
    more: str = "",
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + "." + (f"\n\n{more}" if more else ""),
        epilog="\n".join(("examples:" if len(examples) > 1 else "example:", *(f"  {each}" for each in examples))),
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=where)
    return parser


def _group(commands: Subparsers, name: str, about: str, example: str) -> Subparsers:
    parser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    return parser.add_subparsers(metavar="VERB", title="verbs", required=True)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _directory(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("-C", metavar="DIR", dest="directory", help=about)


def _add_run(commands: Subparsers, name: str, about: str) -> None:
    run = _add(
        commands,
        name,
        "run:run",
        about,
        'enginehouse run "add a test for the empty file"',
        "enginehouse run --mode accept-edits -C ../project < task.md",
        'enginehouse run --json "list the open questions" | jq -r .body.type',
        "enginehouse run --session s_01k2 --mode plan 'what is left to do?'",
        more=(
            "stdout gets the answer; titles, diffs and questions go to stderr. When stdin and stderr are a terminal\n"
            "you are asked before anything risky happens; otherwise it is denied.\n\n"
            "exit code: 0 completed, 1 the turn failed or stopped at a limit, 2 usage or configuration, 4 completed\n"
            "but something was denied for lack of anyone to ask, 129 you left, 130 interrupted. Ctrl-C interrupts\n"
            "the turn, a second one leaves.\n\n"
            "OPENAI_API_KEY and OPENAI_BASE_URL say where the model is; the options of the file in providers/ that\n"
            "has the same base_url count there too. ENGINEHOUSE_ENGINE, _MODEL, _EFFORT and _MODE set defaults for\n"
            "new sessions; a session that is continued keeps its own."
        ),
    )
    run.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to do; piped text follows it")
    _directory(run, "work in this directory instead of the current one")
    run.add_argument("--engine", metavar="E", help="the engine of a new session; see `enginehouse engines`")
    run.add_argument("-m", "--model", metavar="M", help="the model; without it the only one the server lists")
    run.add_argument("--effort", metavar="X", help="how hard the model thinks, in the engine's own words")
    run.add_argument("--mode", type=_mode, metavar="|".join(_MODES), help="how much happens without asking")
    which = run.add_mutually_exclusive_group()
    which.add_argument("-c", "--continue", dest="newest", action="store_true", help="the newest session of DIR")
    which.add_argument("--session", metavar="ID", help="this session; the beginning of its id is enough")
    run.add_argument("--json", action="store_true", help="every event as one JSON line on stdout, and nothing else")
    run.add_argument("--max-steps", type=_count, metavar="N", help="at most this many model calls")


def _add_sessions(commands: Subparsers, name: str, about: str) -> None:
    sessions = _group(commands, name, about, "enginehouse sessions list")
    listed = _add(
        sessions, "list", "sessions:list_sessions", "list sessions, newest first", "enginehouse sessions list -C ."
    )
    _directory(listed, "only those of this directory")
    _json(listed)
    show = _session(
        sessions, "show", "sessions:show", "read a conversation as text", "enginehouse sessions show s_01k2"
    )
    _json(show)
    events = _session(
        sessions,
        "events",
        "sessions:events",
        "print a session's events as JSON lines, exactly as they were recorded",
        "enginehouse sessions events s_01k2 --after 40",
    )
    events.add_argument("--after", type=_number, default=0, metavar="N", help="only those after seq N")
    rename = _session(
        sessions,
        "rename",
        "sessions:rename",
        "give a session a title",
        "enginehouse sessions rename s_01k2 'The parser'",
    )
    rename.add_argument("title", metavar="TITLE")
    _session(
        sessions,
        "close",
        "sessions:close",
        "end a session for good: it can be read, not continued",
        "enginehouse sessions close s_01k2",
    )
    delete = _session(
        sessions,
        "delete",
        "sessions:delete",
        "delete a session and everything it recorded",
        "enginehouse sessions delete s_01k2 --yes",
    )
    delete.add_argument("--yes", action="store_true", help="do not ask")
    check = _add(
        sessions,
        "check",
        "sessions:check",
        "look for damage in the records of one session or of all",
        "enginehouse sessions check",
        "enginehouse sessions check s_01k2 --repair",
        more="Exits with 1 when it finds damage. Without --repair nothing is changed.",
    )
    check.add_argument("session", metavar="ID", nargs="?", help="the beginning of an id is enough")
    check.add_argument("--repair", action="store_true", help="set a torn end aside and close what was cut off")
    _json(check)


def _session(commands: Subparsers, name: str, where: str, about: str, example: str) -> argparse.ArgumentParser:
    parser = _add(commands, name, where, about, example)
    parser.add_argument("session", metavar="ID", help="the beginning of an id is enough")
    return parser


def _add_permissions(commands: Subparsers, name: str, about: str) -> None:
    permissions = _group(commands, name, about, "enginehouse permissions allow 'execute(pytest *)'")
    listed = _add(permissions, "list", "permissions:list_rules", "list your rules", "enginehouse permissions list")
    _directory(listed, "only those that hold in this directory")
    _json(listed)
    for verb, does in (
        ("allow", "let what matches happen without asking"),
        ("deny", "never let what matches happen"),
        ("remove", "take a rule back"),
    ):
        parser = _add(
            permissions, verb, f"permissions:{verb}", does, f"enginehouse permissions {verb} 'execute(pytest *)'"
        )
        parser.add_argument(
            "rule", metavar="RULE", help="execute(git status *), edit(src/**), fetch(https://host/*), tool(NAME)"
        )
        _directory(parser, "for the project in this directory instead of the current one")
        parser.add_argument("--everywhere", action="store_true", help="not only in this project")
        if verb == "remove":
            effects = ("allow", "ask", "deny")
            parser.add_argument("--effect", choices=effects, help="only the rule that does this")
    explain = _add(
        permissions,
        "explain",
        "permissions:explain",
        "tell what would happen to a command, in every mode, and why",
        "enginehouse permissions explain git push --force",
        "enginehouse permissions explain 'edit(src/a.py)'",
    )
    explain.add_argument(
        "words", metavar="COMMAND_OR_RULE", nargs=argparse.REMAINDER, help="a shell command, or KIND(WHAT)"
    )
    _directory(explain, "in this directory instead of the current one")


def _add_profile(commands: Subparsers, name: str, about: str) -> None:
    profile = _group(commands, name, about, "enginehouse profile check")
    _add(profile, "path", "profile:path", "print the profile's folder", "ls $(enginehouse profile path)")
    check = _add(
        profile,
        "check",
        "profile:check",
        "look for mistakes in the profile's files; nothing is changed",
        "enginehouse profile check",
    )
    _json(check)


def _mode(text: str) -> str:
    mode = text.replace("_", "-")
    if mode not in _MODES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(_MODES)}, not {text!r}")
    return mode.replace("-", "_")


def _count(text: str) -> int:
    number = _number(text)
    if number == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise argparse.ArgumentTypeError(f"must be a number from 0, not {text!r}")
    return int(text)


def _columns() -> int:
    try:
        return int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        pass
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 100


def _add_engines(commands: Subparsers, name: str, about: str) -> None:
    _json(_add(commands, name, "engines:list_engines", about, "enginehouse engines"))


def _add_doctor(commands: Subparsers, name: str, about: str) -> None:
    _add(commands, name, "doctor:examine", about, "enginehouse doctor")


def _add_demo(commands: Subparsers, name: str, about: str) -> None:
    _add(commands, name, "demo:play", about, "enginehouse demo")


_COMMANDS = {
    "run": ("send a message to an agent and follow its turn to the end", _add_run),
    "sessions": ("list, read and tidy up conversations", _add_sessions),
    "permissions": ("the rules for what happens without asking, or never", _add_permissions),
    "profile": ("where Enginehouse keeps everything, and whether it is sound", _add_profile),
    "engines": ("list the engines, and whether each can be used", _add_engines),
    "doctor": ("look at this machine, the profile and the engines, and say what is missing", _add_doctor),
    "demo": ("watch a rehearsed agent at work: offline, in a throwaway project", _add_demo),
}
