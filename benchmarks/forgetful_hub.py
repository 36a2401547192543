"""`enginehouse hub serve`, except that it forgets an unused session after half a minute, not after five.

Rule: nothing else differs, so what it weighs is what the real one weighs.
"""

import os
import sys

from enginehouse_core.keeper import keep

KEPT_S = 30.0


def main() -> int:
    keep()
    from enginehouse import hub_process
    from enginehouse.wiring import FACTORIES
    from enginehouse_core.hub import Hub
    from enginehouse_core.profile.folders import Folders

    def forgetful(folders: Folders, what: str) -> Hub:
        return Hub(folders=folders, factories=FACTORIES, what=what, kept_s=KEPT_S, kept_with_engine_s=KEPT_S)

    hub_process.hub_of = forgetful  # pyright: ignore[reportPrivateImportUsage]
    return hub_process.run_process(Folders.of(os.environ), None)


if __name__ == "__main__":
    sys.exit(main())
