"""Process ids that a command wrote inside its own PID namespace, as this side knows them.

Rule: nobody in there can know them, so a file named `INNER` is watched for and answered with one of the wanted name.
"""

import os
from pathlib import Path

import anyio
import psutil

INNER = ".inner"
"""The ending of a file with ids as the namespace counts them."""
_LOOK_S = 0.01


async def translate(folder: Path) -> None:
    """For ever: each file `NAME.inner` below `folder` becomes `NAME`, with the ids of our own descendants."""
    while True:
        for file in await anyio.to_thread.run_sync(_found, folder):
            wanted = [int(pid) for pid in file.read_text().split()]
            known = await anyio.to_thread.run_sync(_outside)
            if all(pid in known for pid in wanted):
                new = file.with_suffix(".new")
                new.write_text(" ".join(str(known[pid]) for pid in wanted))
                new.rename(file.with_suffix(""))
                file.unlink()
        await anyio.sleep(_LOOK_S)


def _found(folder: Path) -> list[Path]:
    try:
        return list(folder.rglob(f"*{INNER}"))
    except OSError:
        return []  # a folder went away while it was looked at


def _outside() -> dict[int, int]:
    """Id inside → id outside, of everything below this process."""
    known: dict[int, int] = {}
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        line = next((line for line in status.splitlines() if line.startswith("NSpid:")), f"NSpid: {process.pid}")
        known[int(line.split()[-1])] = process.pid
    return known
