"""Puts a server through its paces: what of the interface works, what we tolerate, what is missing.

Rule: over real HTTP with the engine's own client and reader, so what passes here passes in a session.
"""

from enginehouse_engines.openai_compatible.certify.certification import Certificate, certified
from enginehouse_engines.openai_compatible.certify.checks import CHECKS
from enginehouse_engines.openai_compatible.certify.findings import Check, Finding, Outcome

__all__ = ["CHECKS", "Certificate", "Check", "Finding", "Outcome", "certified"]
