"""Where in the file a seq is, so that "events after N" does not read from the start.

Rule: a record found in a damaged file is known by its exact bytes, because what lies between two of them may be
anything. Whole lines one after the other need a signpost only now and then.
"""

import bisect
from array import array

import msgspec

EVERY = 64


class Place(msgspec.Struct, frozen=True):
    """The exact bytes of one record, without newline."""

    seq: int
    offset: int
    size_bytes: int


class Whereabouts(msgspec.Struct, frozen=True):
    """Where to read the records after a seq."""

    places: tuple[Place, ...] = ()
    """The next ones, when they are among the records found in a damaged file; then `offset` does not matter."""
    offset: int | None = 0
    """At or before the next one, with nothing but whole lines from here on; None: there is no next one."""


class SeqIndex:
    """The offset of about one record in `EVERY`, and of each record that was found in a damaged file."""

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._offsets: list[int] = []
        self._found_seqs = array("q")
        self._found_offsets = array("q")
        self._found_sizes = array("q")

    def add(self, seq: int, offset: int) -> None:
        """A line of its own, after all that was added before."""
        if not self._seqs or seq >= self._seqs[-1] + EVERY:
            self._seqs.append(seq)
            self._offsets.append(offset)

    def add_found(self, place: Place) -> None:
        """A record of a damaged file. All of them are added before anything is appended to the file."""
        self._found_seqs.append(place.seq)
        self._found_offsets.append(place.offset)
        self._found_sizes.append(place.size_bytes)

    def after(self, seq: int, most: int) -> Whereabouts:
        """Where to read on after `seq`; of exact places no more than `most`."""
        first = bisect.bisect_right(self._found_seqs, seq)
        if first < len(self._found_seqs):
            found = range(first, min(first + most, len(self._found_seqs)))
            return Whereabouts(
                places=tuple(
                    Place(self._found_seqs[at], self._found_offsets[at], self._found_sizes[at]) for at in found
                )
            )
        signpost = bisect.bisect_right(self._seqs, seq + 1) - 1
        if signpost >= 0:
            return Whereabouts(offset=self._offsets[signpost])
        # Behind the records found in a damaged file there is only what was appended since: nothing yet.
        return Whereabouts(offset=None if self._found_seqs else 0)
