"""The zmq backend keeps the contract, in threads and in processes."""

from __future__ import annotations

import os

import pytest
from _helpers import join_in_threads

from synk_comm.testing import CommunicatorContract, check_all, run_ranks


class TestZmq(CommunicatorContract):
    # More take a minute: the messages of five ranks go through one process here.
    sizes = (1, 2, 3, 4, 5) if os.environ.get("SYNK_TESTS") == "all" else (1, 3)

    @pytest.fixture
    def make_group(self):
        return lambda size: join_in_threads(size, "zmq")


@pytest.mark.nightly
@pytest.mark.parametrize("size", [3 if os.environ.get("SYNK_TESTS") == "all" else 2])
def test_all_of_it_in_processes(size):
    run_ranks(size, check_all, backend="zmq", timeout_s=50)
