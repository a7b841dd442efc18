"""The mpi backend keeps the contract, on ranks that mpiexec starts."""

from __future__ import annotations

import os

import pytest
from _jobs import job

SIZES = (1, 2, 3, 4, 5) if os.environ.get("SYNK_TESTS") == "all" else (2, 3)


@pytest.mark.parametrize("size", SIZES)
def test_every_check(size):
    """Of more than two ranks, two share a host, and see each other's process."""
    words = ["-m", "synk_comm.testing", "mpi"]
    with job(words, size=size, on_a_host=1 if size < 3 else 2, limit_s=300.0) as program:
        done = program.finish()
    assert done.status == 0, done.out + done.err
    assert done.out.count("keeps the contract") == size
    hosts = min(size, 2)
    assert done.out.count(f"{size} rank(s) on {hosts} machine(s)") == size
