"""The test suite that every backend takes up."""

# ruff: noqa: S101 - asserts are how a test speaks

from __future__ import annotations

import threading
import time
from typing import Callable, Iterator, Sequence

import numpy as np
import pytest

from synk_comm.abc import Communicator
from synk_comm.exceptions import AbortedError, ClosedError, CommTimeout, PeerLost

from ._checks import CHECKS
from ._ranks import in_threads

MakeGroup = Callable[[int], Sequence[Communicator]]


class CommunicatorContract:
    """What every backend must do; subclass it, and give it ``make_group``."""

    @pytest.fixture
    def make_group(self) -> MakeGroup:
        """Return a function that makes a list of communicators, in rank order."""
        raise NotImplementedError("a subclass gives this fixture")

    @pytest.fixture
    def pair(self, make_group: MakeGroup) -> Iterator[Sequence[Communicator]]:
        """A fresh group of two, to be broken."""
        comms = make_group(2)
        yield comms
        for comm in comms:
            comm.close()

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_every_check(self, make_group: MakeGroup, size: int) -> None:
        """Every rule of the contract holds, all in one group, which stays usable."""
        comms = make_group(size)
        try:
            for check in CHECKS:
                in_threads(comms, check)
                totals = in_threads(comms, lambda comm: comm.all_reduce(1).item())
                assert totals == [size] * size, check.__name__
        finally:
            for comm in comms:
                comm.close()

    def test_abort_ends_a_wait(self, pair: Sequence[Communicator]) -> None:
        """A waiting rank is let go by abort; later calls raise on both."""

        def run(comm: Communicator) -> None:
            if comm.rank == 0:
                with pytest.raises(AbortedError, match="enough is enough") as caught:
                    comm.barrier()
                assert caught.value.rank == 1
            else:
                time.sleep(0.1)
                comm.abort("enough is enough")
            for _ in range(2):
                with pytest.raises(AbortedError, match="enough is enough"):
                    comm.all_reduce(np.ones(3))
            assert "aborted" in repr(comm)

        in_threads(pair, run)

    def test_abort_from_another_thread(self, pair: Sequence[Communicator]) -> None:
        """The own wait, too, ends by abort from another thread."""
        timer = threading.Timer(0.1, pair[0].abort, ["stop"])
        timer.start()
        with pytest.raises(AbortedError, match="stop"):
            pair[0].barrier()
        timer.join()
        with pytest.raises(AbortedError, match="stop"):  # at the latest by the second call
            [pair[1].barrier() for _ in range(2)]

    def test_timeout_names_the_missing_and_ends_the_group(
        self, pair: Sequence[Communicator]
    ) -> None:
        """Who waits in vain says for whom; who comes late is told."""
        in_threads(pair, lambda comm: comm.all_reduce(np.ones(3), "max"))
        with pytest.raises(
            CommTimeout, match=r"rank 1: last entered call #1, all_reduce"
        ) as caught:
            pair[0].barrier(timeout_s=0.1)
        assert list(caught.value.missing) == [1]
        assert isinstance(caught.value, TimeoutError)
        for comm in pair:
            # A message may still be under way: at the latest the second call tells.
            with pytest.raises(AbortedError, match="CommTimeout"):
                [comm.barrier() for _ in range(2)]

    def test_closed_peer_is_lost(self, pair: Sequence[Communicator]) -> None:
        """A rank that waits for a closed one is let go; close can be repeated."""
        pair[1].close()
        pair[1].close()
        with pytest.raises(PeerLost, match="closed") as caught:
            pair[0].barrier()
        assert caught.value.rank == 1
        with pytest.raises(PeerLost):
            pair[0].barrier()
        with pytest.raises(ClosedError):
            pair[1].barrier()
        assert "closed" in repr(pair[1])

    def test_last_collective_completes_although_a_peer_closes(
        self, pair: Sequence[Communicator]
    ) -> None:
        """A rank that leaves after its last collective does not spoil it for the others."""

        def run(comm: Communicator) -> float:
            with comm:
                return float(comm.all_reduce(np.ones(1000)).sum())

        assert in_threads(pair, run) == [2000.0, 2000.0]

    def test_two_threads_at_once(self, pair: Sequence[Communicator]) -> None:
        """A second thread is refused; the first one's collective goes on."""
        first = threading.Thread(target=pair[0].barrier, daemon=True)
        first.start()
        time.sleep(0.1)
        with pytest.raises(RuntimeError, match="another thread"):
            pair[0].barrier()
        pair[1].barrier()
        first.join(10)
        assert not first.is_alive()
