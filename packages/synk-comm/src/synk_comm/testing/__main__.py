"""The contract's checks on every rank of a job: ``mpiexec -n 4 python -m synk_comm.testing mpi``.

Ends with 1 if any failed, and then says which.
"""

from __future__ import annotations

import argparse
import sys

from synk_comm._join.connect import connect

from ._checks import THEMES, check_job

_ALL = [*THEMES, "ends"]


def main() -> int:
    """Run the checks in groups that ``connect`` makes; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m synk_comm.testing", description=__doc__)
    parser.add_argument("backend", help="for connect(backend=...)")
    parser.add_argument("themes", nargs="*", metavar="theme", help=f"of {', '.join(_ALL)}")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="of every call; default 30")
    options = parser.parse_args()
    if unknown := set(options.themes) - set(_ALL):
        parser.error(f"unknown theme {', '.join(sorted(unknown))}")
    with connect(backend=options.backend, timeout_s=options.timeout_s) as comm:
        who = f"rank {comm.rank} of {comm.size}"
        why = comm.why
    failures = check_job(
        lambda: connect(backend=options.backend, timeout_s=options.timeout_s), options.themes
    )
    for failure in failures:
        sys.stdout.write(f"{who}: {failure}\n")
    if not failures:
        sys.stdout.write(f"{who} keeps the contract ({why})\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
