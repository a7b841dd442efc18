"""Tools for tests: ranks in fresh processes, ranks in threads, and a test suite for backends.

A backend passes if a subclass of ``CommunicatorContract`` with one fixture does::

    class TestMine(CommunicatorContract):
        @pytest.fixture
        def make_group(self):
            return lambda size: [...]  # a list of ``size`` communicators, for threads

Where ranks can only be processes that something else starts, every rank of such a job calls
``check_job``, or it is started as ``python -m synk_comm.testing BACKEND``.
"""

from __future__ import annotations

from ._checks import CHECKS, THEMES, check_all, check_job
from ._contract import CommunicatorContract
from ._ranks import Outcome, in_threads, run_ranks

__all__ = [
    "CHECKS",
    "THEMES",
    "CommunicatorContract",
    "Outcome",
    "check_all",
    "check_job",
    "in_threads",
    "run_ranks",
]
