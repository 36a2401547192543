"""What every command's part of the parser is made of.

Rule: as in `cli`, argparse and nothing else is imported here.
"""

from __future__ import annotations

import argparse
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 argparse has no public name for it
MODES = ("plan", "default", "accept-edits", "yolo")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Without a width argparse imports shutil, and with it three compression libraries."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=max(60, min(_columns(), 110)), max_help_position=28)


def add(
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
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=where)
    return parser


def group(commands: Subparsers, name: str, about: str, example: str) -> Subparsers:
    parser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    return parser.add_subparsers(metavar="VERB", title="verbs", required=True)


def images(parser: argparse.ArgumentParser) -> None:
    about = "show the agent this PNG, JPEG, GIF or WebP as well; may be given several times"
    parser.add_argument("--image", metavar="FILE", dest="images", action="append", help=about)


def as_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def directory(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("-C", metavar="DIR", dest="directory", help=about)


def session(
    commands: Subparsers, name: str, where: str, about: str, example: str, *, more: str = ""
) -> argparse.ArgumentParser:
    parser = add(commands, name, where, about, example, more=more)
    parser.add_argument("session", metavar="ID", help="the beginning of an id is enough")
    return parser


# --- what an argument may be ------------------------------------------------------------------------------------------


def mode(text: str) -> str:
    chosen = text.replace("_", "-")
    if chosen not in MODES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(MODES)}, not {text!r}")
    return chosen.replace("-", "_")


def count(text: str) -> int:
    counted = number(text)
    if counted == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return counted


def number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise argparse.ArgumentTypeError(f"must be a number from 0, not {text!r}")
    return int(text)


def idle_after(text: str) -> float | None:
    """None: never."""
    if text == "never":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be seconds from 0, or never, not {text!r}")
    return seconds


def _columns() -> int:
    try:
        return int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        pass
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 100
