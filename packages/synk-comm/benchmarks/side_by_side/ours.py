"""synk-comm as a contender: by shared memory, by ZeroMQ, and one array after the other."""

# ruff: noqa: D102 - what a method does, the metric of its name and the base class say

from __future__ import annotations

import importlib.util
from typing import Any, Callable

import numpy as np

from .cases import ROOT, Case
from .contender import TIMEOUT_S, Act, Contender, World, ping_pong
from .metrics import OURS, REFERENCE


class Synk(Contender):
    """synk-comm by shared memory, through its public calls."""

    name = OURS
    backend = "shm"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        import synk_comm

        self._mismatch = synk_comm.MismatchError
        group, tickets = None, None
        if world.rank == 0:
            group = synk_comm.create_group(world.size, self.backend)
            tickets = [group.ticket(rank) for rank in range(world.size)]
        ticket = world.line.share(tickets)[0][world.rank]
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

    all_reduce_shared = all_reduce_in_place  # it has no arrays that all ranks see

    def fused(self, case: Case) -> Act:
        xs, outs = list(case.x), list(case.out)
        all_reduce = self.comm.all_reduce
        return Act(lambda: all_reduce(xs, out=outs), case.x, case.out)

    def reduce(self, case: Case) -> Act:
        reduce = self.comm.reduce
        out = case.out if case.rank == ROOT else None
        return Act(lambda: reduce(case.x, "sum", ROOT, out=out), case.x, case.out)

    def broadcast(self, case: Case) -> Act:
        broadcast = self.comm.broadcast
        return Act(lambda: broadcast(case.x, ROOT), case.x, case.x)

    def scatter(self, case: Case) -> Act:
        scatter = self.comm.scatter
        x = list(case.x) if case.rank == ROOT else None
        return Act(lambda: scatter(x, ROOT, out=case.out), case.x, case.out)

    def gather(self, case: Case) -> Act:
        gather = self.comm.gather
        out = case.out if case.rank == ROOT else None
        return Act(lambda: gather(case.x, ROOT, out=out), case.x, case.out)

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


class SynkZmq(Synk):
    """synk-comm by ZeroMQ."""

    backend = "zmq"

    def all_reduce_zmq(self, case: Case) -> Act:
        return self.all_reduce(case)


class Loop(Contender):
    """synk-comm's answer to a list, without lists: a call for each array."""

    name = REFERENCE

    def __init__(self, world: World, synk: Synk) -> None:
        super().__init__(world)
        self._synk = synk

    def wait(self) -> object:
        return self._synk.wait()

    def fused(self, case: Case) -> Act:
        pairs = list(zip(case.x, case.out))
        all_reduce = self._synk.comm.all_reduce

        def call() -> None:
            for x, out in pairs:
                all_reduce(x, out=out)

        return Act(call, case.x, case.out)
