"""synk-comm as a contender: by shared memory, and over MPI."""

# ruff: noqa: D102 - what a method does, the metric of its name and the base class say

from __future__ import annotations

import importlib.util
from typing import Any, Callable

import numpy as np

from .cases import ROOT, Case
from .contender import OURS, OVER_MPI, TIMEOUT_S, Act, Contender, World, ping_pong


class Synk(Contender):
    """synk-comm by shared memory, through its public calls."""

    name = OURS

    def __init__(self, world: World) -> None:
        super().__init__(world)
        import synk_comm

        self._mismatch = synk_comm.MismatchError
        group, tickets = None, None
        if world.rank == 0:
            group = synk_comm.create_group(world.size, "shm")
            tickets = [group.ticket(rank) for rank in range(world.size)]
        ticket = world.share(tickets)[0][world.rank]
        self.comm: Any = synk_comm.join(ticket, timeout_s=TIMEOUT_S)
        self.comm.barrier()
        if group is not None:
            group.close()

    @classmethod
    def missing(cls) -> str:
        return "" if importlib.util.find_spec("synk_comm") else "pip install synk-comm"

    def close(self) -> None:
        self.comm.close()

    def wait(self) -> object:
        return self.comm.barrier()

    def _act(self, method: Callable[..., object], case: Case, out: Any) -> Act:
        return Act(lambda: method(case.x, out=out), case.x, out)

    def all_reduce(self, case: Case) -> Act:
        return self._act(self.comm.all_reduce, case, case.out)

    def all_reduce_in_place(self, case: Case) -> Act:
        return self._act(self.comm.all_reduce, case, case.x)

    def broadcast(self, case: Case) -> Act:
        broadcast = self.comm.broadcast
        return Act(lambda: broadcast(case.x, ROOT), case.x, case.x)

    def all_gather(self, case: Case) -> Act:
        return self._act(self.comm.all_gather, case, case.out)

    def reduce_scatter(self, case: Case) -> Act:
        reduce_scatter = self.comm.reduce_scatter
        x = case.x.reshape(-1)
        return Act(lambda: reduce_scatter(x, out=case.out), case.x, case.out)

    def all_to_all(self, case: Case) -> Act:
        return self._act(self.comm.all_to_all, case, case.out)

    def ping_pong(self, case: Case) -> Act:
        recv = self.comm.recv
        return ping_pong(case, self.comm.send, lambda out, rank: recv(rank, out=out))

    def mismatch(self, case: Case) -> Act:
        """Time until every rank has its error; the group has to work afterwards."""
        all_reduce, error = self.comm.all_reduce, self._mismatch
        x = np.zeros(1000 + case.rank, np.float32)

        def call() -> None:
            try:
                all_reduce(x, out=x)
            except error:
                return
            raise AssertionError("arrays of different lengths were summed")

        return Act(call, case.x, case.out, checked=False)


class SynkMpi(Synk):
    """synk-comm over MPI, between the ranks that mpiexec has started."""

    name = OVER_MPI

    def __init__(self, world: World) -> None:
        Contender.__init__(self, world)
        import synk_comm

        self._mismatch = synk_comm.MismatchError
        self.comm = synk_comm.connect(backend="mpi", timeout_s=TIMEOUT_S)

    def order(self, case: Case) -> Act:
        """Return what synk-core does for each call: a broadcast of 256 bytes and a barrier."""
        word = np.zeros(32, "i8")
        broadcast, barrier = self.comm.broadcast, self.comm.barrier

        def call() -> None:
            broadcast(word)
            barrier()

        return Act(call, case.x, case.out, checked=False)
