"""``python -m synkhronos._checking script.py ...``: run a script, report, and exit."""

from __future__ import annotations

import sys

from .report import print_report, problems
from .script import run_script
from .watch import Watch


def _main() -> int:
    watch = Watch()
    watch.begin()
    status = run_script(sys.argv[1], sys.argv[2:])
    watch.finish()
    sys.stdout.flush()
    print_report(watch)
    return status or (1 if problems(watch) else 0)


if __name__ == "__main__":
    sys.exit(_main())
