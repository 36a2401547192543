"""The console script. It decides what must happen before anything is imported, and how the process ends.

Rule: `--help` and `--version` load argparse and nothing of ours; a process in which agents run becomes a child of its
keeper before it loads anything else. A command that talks to the hub has no agent in it, and no keeper.
"""

from __future__ import annotations

import os
import sys

from enginehouse_hosts.terminal import exit_codes

TYPE_CHECKING = False  # `typing` itself would be the dearest import here
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> None:
    code = exit_codes.FAILED
    try:
        code = _command(sys.argv[1:])
    except SystemExit as asked:  # of argparse: after help, or for a wrong call
        code = asked.code if isinstance(asked.code, int) else exit_codes.MISUSED
    except KeyboardInterrupt:
        code = exit_codes.INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        code = exit_codes.BROKEN_PIPE
    finally:
        _leave(code)


def _command(arguments: list[str]) -> int:
    try:
        if arguments[:1] == ["--version"]:
            from enginehouse import __version__

            print(f"enginehouse {__version__}")
            return exit_codes.COMPLETED
        if _runs_agents(arguments):
            from enginehouse_core.keeper import keep

            keep()
        from enginehouse.cli import parse

        command, parsed = parse(arguments)
        return command(parsed)
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 the process ends here, whatever was raised
        from enginehouse.failure import told

        return told(error)


def _runs_agents(arguments: list[str]) -> bool:
    """Once too often, for a prompt that reads like an option, does no harm."""
    if {"-h", "--help"} & set(arguments):
        return False
    return arguments[:1] == ["demo"] or arguments[:2] == ["hub", "serve"] or {"run", "--no-hub"} <= set(arguments)


def _leave(code: int) -> NoReturn:
    """At once: without waiting for threads that still write to a pipe nobody reads, and without taking the
    interpreter apart, which `--help` would pay for. What cannot be said on stderr changes nothing."""
    try:
        code = _flushed(code)
    finally:
        os._exit(code)


def _flushed(code: int) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError) as error:  # unwritable, closed, or never there
            if stream is not sys.stdout or not isinstance(error, OSError):
                continue
            if isinstance(error, BrokenPipeError):
                return exit_codes.BROKEN_PIPE
            code = code or exit_codes.FAILED
            try:
                os.write(2, f"enginehouse: stdout cannot be written: {error.strerror}\n".encode())
            except OSError:
                pass
    return code


if __name__ == "__main__":
    main()
