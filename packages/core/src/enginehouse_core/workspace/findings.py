"""Searching behind the fence: what may be searched, and what the search's answer means.

Rule: a search may look where reading or listing may, nowhere else, and what it names can be asked for again.
"""

import stat

from anyio import to_thread

from enginehouse_core.workspace import search as searching
from enginehouse_core.workspace.descriptors import Identity, require_plain_file
from enginehouse_core.workspace.fence import Fence, Place, failing_as
from enginehouse_core.workspace.outer_ignores import OuterRules, outer_rules
from enginehouse_protocol.errors import FileUnusable, UsageError
from enginehouse_protocol.workspace import FoundFiles, SearchHit, SearchResult


class FencedSearch:
    def __init__(self, fence: Fence, deadline_s: float) -> None:
        self._fence = fence
        self._deadline_s = deadline_s

    async def lines(self, place: Place, pattern: str, glob: str | None, limit: int) -> SearchResult:
        """Lines that match; raises as `Workspace.search` does."""
        if len(pattern) > searching.PATTERN_CHARACTERS:
            raise UsageError(f"the pattern is longer than {searching.PATTERN_CHARACTERS} characters")
        outcome = await self._search(place, pattern, glob, limit)
        hits = tuple(
            SearchHit(path=_named(place, hit), line_number=hit.line_number, line=hit.line) for hit in outcome.hits
        )
        return SearchResult(hits=hits, truncated=outcome.ended != "complete")

    async def files(self, place: Place, glob: str, limit: int) -> FoundFiles:
        """Files whose names match; raises as `Workspace.find` does."""
        if not glob or len(glob) > searching.PATTERN_CHARACTERS:
            raise UsageError(f"a file pattern has between 1 and {searching.PATTERN_CHARACTERS} characters")
        outcome = await self._search(place, None, glob, limit)
        paths = tuple(_named(place, hit) for hit in outcome.hits)
        return FoundFiles(paths=paths, truncated=outcome.ended != "complete")

    async def _search(self, place: Place, pattern: str | None, glob: str | None, limit: int) -> searching.Outcome:
        if not 0 < limit <= searching.HITS:
            raise UsageError(f"a search returns between 1 and {searching.HITS} hits, not {limit}")
        off_limits, outer = await to_thread.run_sync(self._check_searchable, place, abandon_on_cancel=True)
        request = searching.Request(
            parts=place.parts,
            pattern=pattern,
            glob=glob,
            limit=limit,
            deadline_s=self._deadline_s,
            off_limits=off_limits,
            outer=outer,
        )
        with place.anchor.borrow() as root:
            outcome = await searching.search(root, request)
        match outcome.ended:
            case "bad_pattern":
                raise UsageError(f"{pattern!r} is no regular expression of Python's `re`: {outcome.detail}")
            case "bad_glob":
                raise UsageError(f"{glob!r} is no file pattern: {outcome.detail}")
            case "failed":
                raise FileUnusable(place.asked, f"the search failed: {outcome.detail}")
            case "deadline" if not outcome.hits:
                where = f", then in {outcome.detail!r}" if outcome.detail else ""
                raise FileUnusable(
                    place.asked,
                    f"the search found nothing in {self._deadline_s:g} s{where}, and was ended; use a simpler "
                    "pattern, or a narrower path or glob",
                )
            case _:
                return outcome

    def _check_searchable(self, place: Place) -> tuple[tuple[Identity, ...], OuterRules]:
        """Raise what reading or listing `place` would; return the folders the search must not enter, and what is
        ignored because of files above the root."""
        with failing_as(place):
            if place.parts:
                with self._fence.folder(place, parent=True) as folder:
                    found = self._fence.look(folder, place)
                    if found is None:
                        raise FileUnusable(place.asked, "it does not exist")
                    if not stat.S_ISDIR(found.st_mode):
                        require_plain_file(found, place.asked)
            off_limits = tuple(self._fence.identities_of_protected())
        return off_limits, outer_rules(place.anchor.real) if not place.anchor.private else ()


def _named(place: Place, hit: searching.Hit) -> str:
    return Place("", place.anchor, tuple(hit.path.split("/"))).named()
