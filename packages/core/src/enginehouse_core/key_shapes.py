"""Recognises keys the hub does not hold by their well-known beginnings.

Rule: what is found here is flagged, never replaced: a guess must not change what was said. The cost is
bounded: a text without any of the beginnings costs one `in` for each.
"""

import re
from typing import NamedTuple

LIMIT = 20
"""More finds than this are not reported."""
_ATTEMPTS = 1_000

_SHAPES: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (kind, start, re.compile(shape))
    for kind, start, shape in (
        # A digit is demanded where an ordinary hyphenated word could begin the same way ("risk-",
        # "sk-learn-…").
        ("api_key", "sk-", r"sk-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{20,200}"),
        ("github_token", "ghp_", r"ghp_[A-Za-z0-9]{36,255}"),
        ("github_token", "github_pat_", r"github_pat_[A-Za-z0-9_]{22,255}"),
        ("gitlab_token", "glpat-", r"glpat-[A-Za-z0-9_-]{20,200}"),
        ("aws_key_id", "AKIA", r"AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
        ("slack_token", "xoxb-", r"xoxb-[0-9][A-Za-z0-9-]{15,200}"),
        ("slack_token", "xoxp-", r"xoxp-[0-9][A-Za-z0-9-]{15,200}"),
        ("google_api_key", "AIza", r"AIza[A-Za-z0-9_-]{35}"),
        ("private_key", "-----BEGIN ", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY"),
    )
)


class KeyShape(NamedTuple):
    """Something at `text[start:end]` that looks like a key of this kind."""

    kind: str
    start: int
    end: int


def looks_like_key(text: str) -> list[KeyShape]:
    """What in `text` looks like a key, in order; at most `LIMIT`."""
    found: list[KeyShape] = []
    for kind, start, shape in _SHAPES:
        at = text.find(start)
        for _ in range(_ATTEMPTS):
            if at < 0 or len(found) >= LIMIT:
                break
            match = None if at and text[at - 1].isalnum() else shape.match(text, at)
            if match is not None:
                found.append(KeyShape(kind, at, match.end()))
            at = text.find(start, at + len(start) if match is None else match.end())
    return sorted(found, key=lambda shape: shape.start)
