"""`enginehouse profile`: where everything is kept, and whether it is sound. Changes nothing."""

import argparse
import os
from dataclasses import asdict

from enginehouse.output import put_listing, put_path
from enginehouse_core.profile.folders import Folders


def path(_: argparse.Namespace) -> int:
    put_path(str(Folders.of(os.environ).profile))
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Exit code 1: something will not work, or is open to others."""
    from enginehouse_core.profile.check import check_profile

    folders = Folders.of(os.environ)
    findings = check_profile(folders)
    put_listing(
        ("severity", "path", "finding"),
        [(found.severity, found.path, found.message) for found in findings],
        [asdict(found) for found in findings],
        as_json=arguments.json,
        none=f"{folders.profile}: " + ("nothing to complain about" if folders.profile.exists() else "not made yet"),
    )
    return 1 if any(found.severity == "error" for found in findings) else 0
