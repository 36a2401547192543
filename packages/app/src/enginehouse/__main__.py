"""The console script. It decides what must happen before anything is imported, and how the process ends.

Rule: `--help` and `--version` load argparse and nothing of ours; a command that runs an agent becomes a child of its
keeper before it loads anything else.
"""

import os
import sys

_KEPT = ("run", "demo")
_USAGE_EXIT, _BROKEN_PIPE_EXIT, _INTERRUPT_EXIT = 2, 141, 130


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--version"]:
        from enginehouse import __version__

        sys.stdout.write(f"enginehouse {__version__}\n")
        return
    if arguments[:1] and arguments[0] in _KEPT and not {"-h", "--help"} & set(arguments):
        from enginehouse_core.keeper import keep

        keep()
    try:
        code = _command(arguments)
    except SystemExit as asked:  # of argparse: after help, or for a wrong call
        code = asked.code if isinstance(asked.code, int) else _USAGE_EXIT
    except KeyboardInterrupt:
        code = _INTERRUPT_EXIT
    except BrokenPipeError:  # whoever read our output has seen enough
        code = _BROKEN_PIPE_EXIT
    _leave(code)


def _command(arguments: list[str]) -> int:
    from enginehouse.cli import parse

    command, parsed = parse(arguments)
    try:
        return command(parsed)
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 the process ends here, whatever was raised
        from enginehouse.failure import told

        return told(error)


def _leave(code: int) -> None:
    """At once: without waiting for threads that still write to a pipe nobody reads, and without taking the
    interpreter apart, which `--help` would pay for."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = _BROKEN_PIPE_EXIT if stream is sys.stdout else code
        except OSError as error:
            code = code or 1
            os.write(2, f"enginehouse: the output cannot be written: {error.strerror}\n".encode())
        except (ValueError, AttributeError):  # closed, or never there
            pass
    os._exit(code)


if __name__ == "__main__":
    main()
