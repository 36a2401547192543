"""The hang-up of a terminal, as something to wait for.

Rule: from the first moment to the last somebody hears it. Between two handlers it would end the process in the middle
of leaving; and a window that is closed says so in up to three ways: by the kernel, by the shell, by the keeper.
"""

import os
import signal
from types import FrameType
from typing import Self

import anyio


class HangUp:
    """A context manager for the main thread. Where hang-ups are ignored already, as under `nohup`, they stay so."""

    def __init__(self) -> None:
        self.left = False
        """Set it when this process is about to end: then the handler is followed by silence, not by what was before."""

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.getsignal(signal.SIGHUP)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        # What somebody outside Python installed is None here, and cannot be put back.
        after = signal.SIG_IGN if self.left else self._before if self._before is not None else signal.SIG_DFL
        signal.signal(signal.SIGHUP, after)
        os.close(self._reader)
        os.close(self._writer)

    async def wait(self) -> None:
        await anyio.wait_readable(self._reader)

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        try:
            os.write(self._writer, b"!")
        except BlockingIOError:
            pass  # it has been said often enough
