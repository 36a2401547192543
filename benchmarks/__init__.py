"""Benchmarks, run with `python -m benchmarks`.

Some need the scripted model and the host processes of the tests, so the tests' folder is looked in too.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))
