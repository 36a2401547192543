"""The command line: every command, its options, its help.

Rule: argparse and nothing else is imported here; a command's own module is imported when that command runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module

from enginehouse import __version__
from enginehouse.parsing import (
    MODES,
    Formatter,
    add,
    as_json,
    count,
    directory,
    group,
    idle_after,
    images,
    mode,
    number,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enginehouse.parsing import Subparsers
Command = Callable[[argparse.Namespace], int]

_EPILOG = """\
examples:
  enginehouse demo                                   see it work: offline, in a throwaway project
  enginehouse run "why does the parser's test fail?" ask an agent, in this directory
  git diff | enginehouse run "review this"           the piped text follows the prompt
  enginehouse run -c "now fix it"                    go on with the newest session of this directory

`enginehouse COMMAND --help` tells more about a command.
"""


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
        formatter_class=Formatter,
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


def _add_run(commands: Subparsers, name: str, about: str) -> None:
    run = add(
        commands,
        name,
        "run:run",
        about,
        'enginehouse run "add a test for the empty file"',
        "enginehouse run --mode accept-edits -C ../project < task.md",
        'enginehouse run --json "list the open questions" | jq -r .body.type',
        "enginehouse run --session s_01k2 --mode plan 'what is left to do?'",
        'enginehouse run --image mockup.png "make the page look like this"',
        more=(
            "stdout gets the answer; titles, diffs and questions go to stderr. When stdin and stderr are a terminal\n"
            "you are asked before anything risky happens; otherwise it is denied.\n\n"
            "exit code: 0 completed, 1 the turn failed or stopped at a limit, 2 usage or configuration, 4 completed\n"
            "but something was denied for lack of anyone to ask, 129 you left, 130 interrupted. Ctrl-C interrupts\n"
            "the turn, a second one leaves. The work is done in the hub, a process that is started when one is needed\n"
            "and shared by all hosts; `enginehouse sessions attach ID` looks at the same session from elsewhere.\n\n"
            "--provider says where the model is, else OPENAI_BASE_URL and OPENAI_API_KEY do, else the only provider\n"
            "there is; `enginehouse providers` adds and tests them. ENGINEHOUSE_PROVIDER, _ENGINE, _MODEL, _EFFORT\n"
            "and _MODE set defaults for new sessions; a session that is continued keeps its own."
        ),
    )
    run.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to do; piped text follows it")
    directory(run, "work in this directory instead of the current one")
    images(run)
    run.add_argument("--engine", metavar="E", help="the engine of a new session; see `enginehouse engines`")
    run.add_argument("--provider", metavar="P", help="the provider to use; see `enginehouse providers list`")
    run.add_argument("-m", "--model", metavar="M", help="the model; without it the only one the server lists")
    run.add_argument("--effort", metavar="X", help="how hard the model thinks, in the engine's own words")
    run.add_argument("--mode", type=mode, metavar="|".join(MODES), help="how much happens without asking")
    which = run.add_mutually_exclusive_group()
    which.add_argument("-c", "--continue", dest="newest", action="store_true", help="the newest session of DIR")
    which.add_argument("--session", metavar="ID", help="this session; the beginning of its id is enough")
    run.add_argument("--json", action="store_true", help="every event as one JSON line on stdout, and nothing else")
    run.add_argument("--max-steps", type=count, metavar="N", help="at most this many model calls")
    run.add_argument("--no-hub", action="store_true", help="in this process, without the shared hub")


def _add_sessions(commands: Subparsers, name: str, about: str) -> None:
    from enginehouse.cli_sessions import add_sessions

    add_sessions(commands, name, about)


def _add_inbox(commands: Subparsers, name: str, about: str) -> None:
    from enginehouse.cli_sessions import add_inbox

    add_inbox(commands, name, about)


def _add_permissions(commands: Subparsers, name: str, about: str) -> None:
    permissions = group(commands, name, about, "enginehouse permissions allow 'execute(pytest *)'")
    listed = add(permissions, "list", "permissions:list_rules", "list your rules", "enginehouse permissions list")
    directory(listed, "only those that hold in this directory")
    as_json(listed)
    for verb, does in (
        ("allow", "let what matches happen without asking"),
        ("deny", "never let what matches happen"),
        ("remove", "take a rule back"),
    ):
        parser = add(
            permissions, verb, f"permissions:{verb}", does, f"enginehouse permissions {verb} 'execute(pytest *)'"
        )
        parser.add_argument(
            "rule", metavar="RULE", help="execute(git status *), edit(src/**), fetch(https://host/*), tool(NAME)"
        )
        directory(parser, "for the project in this directory instead of the current one")
        parser.add_argument("--everywhere", action="store_true", help="not only in this project")
        if verb == "remove":
            effects = ("allow", "ask", "deny")
            parser.add_argument("--effect", choices=effects, help="only the rule that does this")
    explain = add(
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
    directory(explain, "in this directory instead of the current one")


def _add_profile(commands: Subparsers, name: str, about: str) -> None:
    profile = group(commands, name, about, "enginehouse profile check")
    add(profile, "path", "profile:path", "print the profile's folder", "ls $(enginehouse profile path)")
    check = add(
        profile,
        "check",
        "profile:check",
        "look for mistakes in the profile's files; nothing is changed",
        "enginehouse profile check",
    )
    as_json(check)


def _add_hub(commands: Subparsers, name: str, about: str) -> None:
    hub = group(commands, name, about, "enginehouse hub status")
    serve = add(
        hub,
        "serve",
        "hub:serve",
        "be the hub of this profile; the first command that needs one starts it by itself",
        "enginehouse hub serve --idle-after never",
    )
    serve.add_argument(
        "--idle-after",
        type=idle_after,
        default=60.0,
        metavar="S",
        help="end after S seconds without a view, a turn or a request; `never` stays (default 60)",
    )
    status = add(
        hub, "status", "hub:show_status", "tell whether a hub runs, and what it does", "enginehouse hub status"
    )
    as_json(status)
    add(hub, "stop", "hub:stop", "end the hub; turns that run are cut off", "enginehouse hub stop")
    logs = add(hub, "logs", "hub:logs", "print what the hub wrote down about itself", "enginehouse hub logs --follow")
    logs.add_argument("-n", type=number, default=50, metavar="LINES", dest="lines", help="the last LINES (default 50)")
    logs.add_argument("--follow", action="store_true", help="go on with what comes, until Ctrl-C")


def _add_providers(commands: Subparsers, name: str, about: str) -> None:
    from enginehouse.cli_providers import add_providers

    add_providers(commands, name, about)


def _add_engines(commands: Subparsers, name: str, about: str) -> None:
    as_json(add(commands, name, "engines:list_engines", about, "enginehouse engines"))


def _add_doctor(commands: Subparsers, name: str, about: str) -> None:
    add(commands, name, "doctor:examine", about, "enginehouse doctor")


def _add_demo(commands: Subparsers, name: str, about: str) -> None:
    add(commands, name, "demo:play", about, "enginehouse demo")


_COMMANDS = {
    "run": ("send a message to an agent and follow its turn to the end", _add_run),
    "sessions": ("list, read, join and tidy up conversations", _add_sessions),
    "inbox": ("what waits for you in all sessions: permission requests and questions", _add_inbox),
    "hub": ("the process of this profile that all hosts share", _add_hub),
    "permissions": ("the rules for what happens without asking, or never", _add_permissions),
    "profile": ("where Enginehouse keeps everything, and whether it is sound", _add_profile),
    "providers": ("where the models are, and their keys: add, list, test, remove", _add_providers),
    "engines": ("list the engines, and whether each can be used", _add_engines),
    "doctor": ("look at this machine, the profile and the engines, and say what is missing", _add_doctor),
    "demo": ("watch a rehearsed agent at work: offline, in a throwaway project", _add_demo),
}
