"""The shm backend keeps the contract, in threads and in processes."""

from __future__ import annotations

import os

import pytest
from _helpers import join_in_threads

from synk_comm.testing import CommunicatorContract, check_all, run_ranks

ALL = os.environ.get("SYNK_TESTS") == "all"


class TestShm(CommunicatorContract):
    # Two of them are tested in processes.
    sizes = (1, 2, 3, 4, 5) if ALL else (1, 3)

    @pytest.fixture
    def make_group(self):
        return lambda size: join_in_threads(size, "shm")


@pytest.mark.parametrize("size", [2, 4] if ALL else [2])
def test_all_of_it_in_processes(size):
    run_ranks(size, check_all, backend="shm", timeout_s=50)
