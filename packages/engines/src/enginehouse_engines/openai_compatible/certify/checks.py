"""All checks of a certification, in the order in which they are told."""

from enginehouse_engines.openai_compatible.certify.checks_edges import EDGES
from enginehouse_engines.openai_compatible.certify.checks_talk import TALK
from enginehouse_engines.openai_compatible.certify.checks_tools import TOOLS
from enginehouse_engines.openai_compatible.certify.findings import Check

CHECKS: tuple[Check, ...] = (*TALK, *TOOLS, *EDGES)
