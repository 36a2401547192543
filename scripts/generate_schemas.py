"""Writes the JSON Schemas of `profile-schema/`, or with `--check` only says whether they are up to date."""

import argparse
import sys
from pathlib import Path

from enginehouse_core.profile.schema import schema_files

FOLDER = Path(__file__).resolve().parent.parent / "profile-schema"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something differs")
    check: bool = parser.parse_args().check
    wanted = schema_files()
    there = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.schema.json")}
    differing = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    if check:
        for name in differing:
            print(
                f"profile-schema/{name} differs from the models; run scripts/generate_schemas.py",
                file=sys.stderr,
            )
        return 1 if differing else 0
    for name in differing:
        path = FOLDER / name
        if name in wanted:
            path.write_text(wanted[name], "utf-8")
        else:
            path.unlink()
        print(f"profile-schema/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
