"""``python -m synkhronos._running script.py ...``: run a script with all ranks of a launcher.

Rank 0 runs the script; the others compute what it orders, and never read it. Without a launcher
this is what Python does itself. ``-m module ...`` runs a module.
"""

from __future__ import annotations

import sys

from synk_core import StartError, mpi

from ._checking.script import run_script


def _main() -> int:
    try:
        world = mpi.join()
    except StartError as error:
        sys.stderr.write(f"synkhronos: {error}\n")
        return 1
    if world is not None and world.rank:
        mpi.serve()
        return 0
    status = run_script(sys.argv[1], sys.argv[2:])
    if world is not None:
        world.status = status  # it ends after all that the script has left open
    return status


if __name__ == "__main__":
    sys.exit(_main())
