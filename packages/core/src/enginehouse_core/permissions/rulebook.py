"""The person's rules, read from the profile and kept for judging.

Rule: judging touches no disk; `refresh` does, at the start of every turn. Rules that cannot be read count as one that
asks for everything.
"""

from collections.abc import Sequence
from pathlib import Path

from enginehouse_core.permissions.places import Places
from enginehouse_core.permissions.policy import Judgement, judge
from enginehouse_core.permissions.rules import OnFile, StoredRule, parse_rule
from enginehouse_core.profile.rules_file import WrittenRule, add_rule, read_rules
from enginehouse_protocol.errors import ProfileError
from enginehouse_protocol.events import ToolUse
from enginehouse_protocol.settings import Mode


class Rulebook:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._rules: Sequence[OnFile] = ()
        self.problem = ""
        """Why the file cannot be used; empty while it can."""

    def refresh(self) -> None:
        """Read the file again. Blocking; never raises."""
        try:
            self._rules, self.problem = read_rules(self._path), ""
        except ProfileError as error:
            self._rules = (StoredRule(effect="ask", rule=f"[{error}]"),)
            self.problem = str(error)

    def judge(self, use: ToolUse, *, mode: Mode, places: Places) -> Judgement:
        # Commands run without an operating system's sandbox so far; policy knows what that means.
        return judge(
            use.kind, use.name, use.input, use.paths, mode=mode, rules=self._rules, places=places, sandboxed=False
        )

    def allow(self, rule: str, project: str) -> None:
        """Store an allow rule for one project and know it at once. Blocking.

        Raises:
            RuleRefused, ProfileError
        """
        text = parse_rule(rule, "allow").text
        add_rule(self._path, WrittenRule(effect="allow", rule=text, project=project))
        self.refresh()
