"""The contract on every rank of a job: ``mpiexec -n 4 python contract_job.py mpi [theme ...]``.

Ends with 1 if a check failed, and says which.
"""

from __future__ import annotations

import sys

from contract.checks import THEMES, check_job

from synk_comm import connect


def main(backend, *themes):
    make = lambda: connect(backend=backend, timeout_s=30.0)  # noqa: E731
    with make() as comm:
        who, why = f"rank {comm.rank} of {comm.size}", comm.why
    failures = check_job(make, themes or [*THEMES, "ends"])
    for failure in failures:
        print(f"{who}: {failure}")
    if not failures:
        print(f"{who} keeps the contract ({why})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
