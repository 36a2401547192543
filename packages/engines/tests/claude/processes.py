"""The CLI's processes as the machine sees them, and the ways in which they come to an end."""

import os
import signal

import psutil


def clis() -> list[psutil.Process]:
    """Every `claude` below this process, without what stands in front of it."""
    return [process for process in _below() if _name(process) == "claude"]


def fronts() -> list[psutil.Process]:
    """What we started ourselves: it stands in front of a CLI."""
    ours = psutil.Process().children()
    return [process for process in ours if any(_name(below) == "claude" for below in process.children(recursive=True))]


def kill(processes: list[psutil.Process]) -> None:
    """At once, as the kernel does it when there is no memory."""
    assert processes, "there is nothing to kill"
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)


def _below() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _name(process: psutil.Process) -> str:
    try:
        return os.path.basename(process.exe())
    except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return ""
