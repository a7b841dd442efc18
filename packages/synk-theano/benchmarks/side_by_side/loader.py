"""Loads a function that was pickled in the plain way: ``python -m side_by_side.loader FILE``.

Says ``ready``, waits for a line, loads, and says ``loaded`` and how often it took the compile lock.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import theano
from theano.gof import cmodule, compilelock

RECURSION_LIMIT = 50_000


def main(path: Path) -> None:
    """Do what the module says."""
    sys.setrecursionlimit(RECURSION_LIMIT)
    taken = 0
    lock = compilelock.lock

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal taken
        taken += 1
        return lock(*args, **kwargs)

    compilelock.lock = counted
    cmodule.get_module_cache(theano.config.compiledir)
    taken = 0
    print("ready", flush=True)  # noqa: T201 - the process that measures reads it
    sys.stdin.readline()
    pickle.loads(path.read_bytes())  # noqa: S301 - the benchmark wrote it a moment ago
    print(f"loaded {taken}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
