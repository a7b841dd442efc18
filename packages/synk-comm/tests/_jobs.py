"""Jobs of MPI's launcher, or a skipped test where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from synk_testing import mpi_job, why_no_mpi
from synk_testing.mpi import SETTINGS

__all__ = ["FOLDER", "SETTINGS", "job", "require_mpi"]

FOLDER = Path(__file__).parent


def require_mpi():
    problem = why_no_mpi()
    if problem:
        pytest.skip(problem)


def job(source, *arguments, **how):
    require_mpi()
    return mpi_job(source, *arguments, **how)
