"""The zmq backend keeps the contract, in threads and in processes."""

from __future__ import annotations

import os

import pytest

from synk_comm import create_group, join
from synk_comm.testing import CommunicatorContract, check_all, in_threads, run_ranks


class TestZmq(CommunicatorContract):
    # More take a minute: the messages of five ranks go through one process here.
    sizes = (1, 2, 3, 4, 5) if os.environ.get("SYNK_TESTS") == "all" else (1, 3)

    @pytest.fixture
    def make_group(self):
        def make(size):
            with create_group(size, "zmq") as group:
                tickets = [group.ticket(rank) for rank in range(size)]
                return join_in_threads(tickets)

        return make


def join_in_threads(tickets):
    class Seat:
        def __init__(self, rank):
            self.rank = rank

        def abort(self, reason):
            pass

    seats = [Seat(rank) for rank in range(len(tickets))]
    return in_threads(seats, lambda seat: join(tickets[seat.rank], timeout_s=20))


@pytest.mark.nightly
@pytest.mark.parametrize("size", [3 if os.environ.get("SYNK_TESTS") == "all" else 2])
def test_all_of_it_in_processes(size):
    run_ranks(size, check_all, backend="zmq", timeout_s=50)
