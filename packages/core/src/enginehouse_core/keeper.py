"""The keeper: a parent that only waits, so that no process is left behind whoever dies first.

Rule: it runs before everything else and imports nothing that costs. Two forms:

`keep()` splits the program in two. The parent is the keeper: it passes signals on, waits, ends what the program leaves
behind and leaves with the program's exit status. The child goes on as the program. Both are subreapers, so an orphan
comes first to the program and, when that is gone, to the keeper. When the *keeper* is killed, the program is told, ends
everything below itself, and then itself. When both are killed at one moment, `workspace.leftovers` is what remains.

`python -m enginehouse_core.keeper -- COMMAND…` stands in front of an engine that starts commands itself: stdin,
stdout and stderr are the engine's, and everything below dies when the engine ends, when whoever started the keeper
dies, or on SIGTERM. `command_kept` writes that command line.

Only Linux lets a process adopt orphans (`prctl`). Elsewhere the keeper ends what it can still find below itself, an
engine's process group included; what had left both is found by record and marker at the next start.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time

from enginehouse_core.workspace import process_tree

TYPE_CHECKING = False  # `typing` itself would be the dearest import here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from enginehouse_core.workspace.process_tree import Process

_LINUX = sys.platform == "linux"
_PARENT_DIED = signal.SIGRTMIN + 5 if _LINUX else signal.SIGUSR2  # nobody else uses it, and it can be handled
_PASSED_ON = {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
_TAKEN = {*_PASSED_ON, signal.SIGCHLD, signal.SIGTSTP, _PARENT_DIED}
_TYPED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""What the terminal sends to everybody in front of it."""
_JOB_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)

_GRACE_S = 0.3
_LIMIT_S = 5.0
_DYING_LIMIT_S = 1.5

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
_PR_GET_CHILD_SUBREAPER = 37
_SI_KERNEL = 0x80
_START = "import sys;sys.path.insert(0,sys.argv.pop(1));from enginehouse_core import keeper;keeper.main(sys.argv[1:])"


def keep() -> bool:
    """Become keeper and program; only the program returns. Call it once, first, while there is one thread.

    Returns whether orphans come to us here. An interrupt by `kill -INT` of a whole group reaches the program twice
    (from its sender and from the keeper); one typed at the terminal reaches it once.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the free number, so that no pipe of ours does
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, as some launchers leave it, nobody could be waited for
    adopting = _adopt_orphans()
    reader, writer = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    keeper = os.getpid()
    program = os.fork()
    if program != 0:
        _keep(program, writer)
    os.close(writer)
    _adopt_orphans()
    signal.signal(
        _PARENT_DIED,
        lambda _number, _frame: _stand_still() if _dying.locked() or os.getppid() != keeper else None,
    )
    _tell_when_parent_dies(_PARENT_DIED)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # The signal needs the main thread, the pipe does not: whichever comes through first.
    _thread.start_new_thread(_watch_pipe, (reader,))
    return adopting


def command_kept(command: Sequence[str]) -> list[str]:
    """`command` with a keeper in front that dies with *this* process. It starts in ten milliseconds and is deaf to the
    folder and the Python settings it is started in, which belong to the project."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [sys.executable, "-I", "-S", "-c", _START, packages, "--parent", str(os.getpid()), "--", *command]


def main(arguments: Sequence[str]) -> NoReturn:
    """`[--parent PID] -- COMMAND…`; `--parent` closes the gap in which the starter dies before we look."""
    rest = list(arguments)
    parent = os.getppid()
    if rest[:1] == ["--parent"] and len(rest) > 1 and rest[1].isdigit():
        if parent != int(rest[1]):
            _say("whoever started this has ended already")
            os._exit(1)
        del rest[:2]
    if rest[:1] == ["--"]:
        del rest[0]
    if not rest:
        _say("usage: python -m enginehouse_core.keeper [--parent PID] -- COMMAND…")
        os._exit(2)
    _stand_before(rest, parent)


def _keep(program: int, writer: int) -> NoReturn:
    """The parent's whole life. It holds open nothing of the program's: not its pipes, not its folder."""
    try:
        _let_go_of_everything(but=writer)
        status = _wait_for(program)
        _end_below()
        _leave_as(status if status is not None else signal.SIGTERM)
    except Exception as problem:  # noqa: BLE001 - a process ends here, and there is no log yet
        _say(f"broke: {problem!r}")
    finally:
        os._exit(70)


def _stand_before(command: list[str], parent: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not _adopt_orphans() and _LINUX:
        _say("this system does not hand orphans over; a process that leaves its group may survive")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    _tell_when_parent_dies(_PARENT_DIED)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, keeper, before)
    try:
        _let_go_of_everything()
        if os.getppid() != parent:
            os.kill(keeper, _PARENT_DIED)
        if not _LINUX:
            _thread.start_new_thread(_watch_parent, (parent,))
        status = _wait_for(child, parent)
        last_status = _end_below(child)
        _leave_as(next((one for one in (status, last_status) if one is not None), signal.SIGTERM))
    except Exception as problem:  # noqa: BLE001 - a process ends here, and there is no log yet
        _say(f"broke: {problem!r}")
    finally:
        os._exit(70)


def _become(command: list[str], keeper: int, mask: set[int | signal.Signals]) -> NoReturn:
    try:
        if _LINUX:
            _tell_when_parent_dies(signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(1)
        else:
            os.setpgid(0, 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Python ignores them, and that would be inherited
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(command[0], command)
    except OSError as problem:
        _say(f"cannot start {command[0]!r}: {problem.strerror}")
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)
    except ValueError as problem:
        _say(f"cannot start {command[0]!r}: {problem}")
        os._exit(126)


def _wait_for(child: int, parent: int | None = None) -> int | None:
    """Wait until `child` has ended and return its status; meanwhile pass signals on and stop when it is stopped.

    With `parent`, SIGTERM and the death of `parent` end the wait: None.
    """
    suspended = False
    while True:
        number, typed = _next_signal()
        if number == signal.SIGCHLD:
            while (found := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0] != 0:
                pid, status = found
                if pid != child:
                    continue
                if not os.WIFSTOPPED(status):
                    return status
                # Only for the terminal's sake. A program stopped by somebody's SIGSTOP needs a keeper awake.
                if suspended or os.WSTOPSIG(status) in _JOB_STOPS:
                    suspended = False
                    _stop_too()
                    os.kill(child, signal.SIGCONT)
        elif number == _PARENT_DIED:
            # It also comes when only the *thread* that started us ended; that is nothing to die of.
            if parent is not None and os.getppid() != parent:
                return None
        elif number == signal.SIGTERM and parent is not None:
            return None
        elif number == signal.SIGTSTP and typed:
            suspended = True
        elif not typed:  # what was typed at the terminal went to the whole group: the child has it
            os.kill(child, number)


def _next_signal() -> tuple[int, bool]:
    """The next signal, and whether the terminal sent it."""
    if sys.platform == "linux":
        came = signal.sigwaitinfo(_TAKEN)
        # A hang-up comes from the kernel too, but to the session's leader alone.
        return came.si_signo, came.si_code == _SI_KERNEL and came.si_signo in _TYPED
    number = signal.sigwait(_TAKEN)
    typed = number in _TYPED and _in_foreground()
    return number, typed


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _stop_too() -> None:
    """Let the shell see its job stopped. With nobody to continue us the kernel drops this signal, and so we go on."""
    os.kill(os.getpid(), signal.SIGTSTP)  # waits while blocked, and becomes one with a typed one still waiting
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def _end_below(child: int = 0) -> int | None:
    """End every process below us, or say which could not be ended. Only the keeper may: it reaps whatever it finds.

    Returns the status of `child` if it ended only now. `child` leads the group to be ended where orphans do not come.
    """
    last_status: int | None = None

    def living() -> list[Process]:
        nonlocal last_status
        for _ in range(100):
            try:
                while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
                    if found[0] == child:
                        last_status = found[1]
            except ChildProcessError:
                if _LINUX:
                    return []  # the kernel's word that nothing is left
            if left := process_tree.descendants(os.getpid()):
                return left
            if not _LINUX:
                return [one for one in process_tree.processes().values() if one.alive and one.group == child]
        return []  # what is there cannot be seen, so it cannot be ended

    survivors = process_tree.end(living, grace_s=_GRACE_S, limit_s=_LIMIT_S)
    if survivors:
        _say(f"could not end the processes {', '.join(str(one.pid) for one in survivors)}")
    return last_status


def _leave_as(status: int) -> NoReturn:
    """End the way the child ended, so that a shell sees what it would have seen without us."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _prctl(_PR_SET_DUMPABLE, 0)  # one core file is enough, and ours says nothing
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


def _watch_pipe(reader: int) -> None:
    os.read(reader, 1)  # nobody writes: this returns when the keeper is gone
    _die_with_everything()


_dying = _thread.allocate_lock()


def _stand_still() -> NoReturn:
    """The main thread's last act: it starts nothing more and takes no command's end for a result."""
    _thread.start_new_thread(_die_with_everything, ())
    while True:
        time.sleep(60)


def _die_with_everything() -> None:
    """In the program, after its keeper was killed; on a thread of its own, whichever is first."""
    if not _dying.acquire(blocking=False):
        return
    us = os.getpid()
    os.kill(us, _PARENT_DIED)  # makes the main thread stand still, if it does not yet
    time.sleep(0.01)
    # Nothing is reaped: the program's own waiting threads would speak up.
    process_tree.end(
        lambda: process_tree.descendants(us) or process_tree.descendants(us), grace_s=_GRACE_S, limit_s=_DYING_LIMIT_S
    )
    os.kill(us, signal.SIGKILL)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), _PARENT_DIED)


def _let_go_of_everything(but: int = -1) -> None:
    """Keep stderr, for the one sentence we may have to say."""
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, 0)
    os.dup2(empty, 1)
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor != but:
            try:
                os.close(descriptor)
            except OSError:
                pass  # the one the listing itself used
    os.chdir("/")
    _prctl(_PR_SET_NAME, b"enginehouse-keep")


def _adopt_orphans() -> bool:
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hands_orphans_over() -> bool:
    """Whether orphans would come to a keeper on this system. Tries it, and leaves this process as it was."""
    if not _LINUX:
        return False
    import ctypes

    before = ctypes.c_int()
    if ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
        return False
    adopting = _adopt_orphans()
    _prctl(_PR_SET_CHILD_SUBREAPER, before.value)
    return adopting


def _tell_when_parent_dies(number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, int(number))


def _prctl(option: int, value: int | bytes) -> bool:
    if not _LINUX:
        return False
    import ctypes

    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    nothing = ctypes.c_ulong(0)
    return ctypes.CDLL(None).prctl(ctypes.c_int(option), argument, nothing, nothing, nothing) == 0


def _say(text: str) -> None:
    try:
        os.write(2, f"enginehouse keeper: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
