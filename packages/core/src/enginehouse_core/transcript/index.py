"""Where in the file a seq is: a sparse table, so that "events after N" does not read from the start."""

import bisect

EVERY = 64


class SeqIndex:
    """Remembers the offset of about one record in `EVERY`."""

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._offsets: list[int] = []

    def add(self, seq: int, offset: int) -> None:
        if not self._seqs or seq >= self._seqs[-1] + EVERY:
            self._seqs.append(seq)
            self._offsets.append(offset)

    def offset_before(self, seq: int) -> int:
        """An offset at or before the first record after `seq`; 0 when nothing is known."""
        place = bisect.bisect_right(self._seqs, seq + 1) - 1
        return self._offsets[place] if place >= 0 else 0
