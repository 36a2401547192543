"""Frames that are nested too deeply to be read, cut where nobody could follow them.

Rule: what is asked about is what runs. A frame is cut before anybody reads it, so the question, the record and the
answer all carry the same shorter value; where it was deeper there is null.
"""

import re
from typing import Final

LIMIT: Final = 100
"""Levels of a frame, its own ones included; the record takes 128."""
_MARK: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def shallow(line: bytes) -> bytes:
    """The same frame with everything below `LIMIT` levels replaced by null. Costs nothing for a frame of few parts."""
    if line.count(b"{") + line.count(b"[") <= LIMIT:
        return line
    depth = kept_to = 0
    parts: list[bytes] = []
    for found in _MARK.finditer(line):
        mark = found[0]
        if mark in (b"{", b"["):
            depth += 1
            if depth == LIMIT + 1:
                parts += (line[kept_to : found.start()], b"null")
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == LIMIT:
                kept_to = found.end()
    return line if not parts else b"".join(parts) + line[kept_to:]
