"""The peers as contenders: MPICH through mpi4py, gloo through torch, and plain copies."""

# ruff: noqa: D102 - what a method does, the metric of its name and the base class say

from __future__ import annotations

import datetime as dt
import importlib.util
import os
from functools import partial
from typing import Any, Callable

import numpy as np

from .cases import ROOT, Case
from .contender import TIMEOUT_S, Act, Contender, World, ping_pong
from .metrics import GLOO, MPICH, REFERENCE
from .mpi import mpi_files, mpi_version, mpiexec


class Mpich(Contender):
    """MPICH through mpi4py, by buffers: count and type are said, which is its quickest way."""

    name = MPICH

    def __init__(self, world: World) -> None:
        super().__init__(world)
        from mpi4py import MPI

        world.line.tell("files", mpi_files())
        self._mpi: Any = MPI
        self.comm = MPI.COMM_WORLD
        if (self.comm.rank, self.comm.size) != (world.rank, world.size):
            raise RuntimeError(f"mpiexec made rank {self.comm.rank} of {self.comm.size} of this")

    @classmethod
    def missing(cls) -> str:
        if not importlib.util.find_spec("mpi4py"):
            return "no mpi4py; pip install mpich mpi4py"
        if not mpiexec():
            return "no mpiexec beside Python or on PATH; pip install mpich"
        version = mpi_version()
        if not version.startswith("MPICH"):
            return f"mpi4py found {version or 'no MPI'}; pip install mpich"
        return ""

    def _spec(self, x: Any) -> Any:
        return (x, x.size, self._mpi.FLOAT)

    def _blocks(self, x: Any) -> Any:
        return (x, self._mpi.FLOAT)  # it divides by the number of ranks itself

    def _act(self, method: Callable[..., object], x: Any, out: Any, case: Case) -> Act:
        return Act(partial(method, x, out), case.x, case.out)

    def wait(self) -> object:
        return self.comm.Barrier()

    def all_reduce(self, case: Case) -> Act:
        method = partial(self.comm.Allreduce, op=self._mpi.SUM)
        return self._act(method, self._spec(case.x), self._spec(case.out), case)

    def all_reduce_in_place(self, case: Case) -> Act:
        method, x, op = self.comm.Allreduce, self._spec(case.x), self._mpi.SUM
        return Act(partial(method, self._mpi.IN_PLACE, x, op=op), case.x, case.x)

    all_reduce_shared = all_reduce_in_place  # it has no arrays that all ranks see

    def fused(self, case: Case) -> Act:
        pairs = [(self._spec(x), self._spec(out)) for x, out in zip(case.x, case.out)]
        method, op = self.comm.Allreduce, self._mpi.SUM

        def call() -> None:
            for x, out in pairs:
                method(x, out, op=op)

        return Act(call, case.x, case.out)

    def reduce(self, case: Case) -> Act:
        out = self._spec(case.out) if case.rank == ROOT else None
        method = partial(self.comm.Reduce, op=self._mpi.SUM, root=ROOT)
        return self._act(method, self._spec(case.x), out, case)

    def broadcast(self, case: Case) -> Act:
        return Act(partial(self.comm.Bcast, self._spec(case.x), root=ROOT), case.x, case.x)

    def scatter(self, case: Case) -> Act:
        x = self._blocks(case.x) if case.rank == ROOT else None
        method = partial(self.comm.Scatter, root=ROOT)
        return self._act(method, x, self._spec(case.out), case)

    def gather(self, case: Case) -> Act:
        out = self._blocks(case.out) if case.rank == ROOT else None
        return self._act(partial(self.comm.Gather, root=ROOT), self._spec(case.x), out, case)

    def all_gather(self, case: Case) -> Act:
        return self._act(self.comm.Allgather, self._spec(case.x), self._blocks(case.out), case)

    def reduce_scatter(self, case: Case) -> Act:
        method = partial(self.comm.Reduce_scatter_block, op=self._mpi.SUM)
        return self._act(method, self._blocks(case.x), self._spec(case.out), case)

    def all_to_all(self, case: Case) -> Act:
        return self._act(self.comm.Alltoall, self._blocks(case.x), self._blocks(case.out), case)

    def ping_pong(self, case: Case) -> Act:
        send, recv = self.comm.Send, self.comm.Recv
        kind = self._mpi.FLOAT
        return ping_pong(
            case,
            lambda x, rank: send((x, x.size, kind), rank),
            lambda out, rank: recv((out, out.size, kind), rank),
        )


class Gloo(Contender):
    """gloo through torch.distributed, over the loopback interface, on tensors of NumPy's memory.

    It reduces in place only.
    """

    name = GLOO

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # By the host's name it would find whatever interface that resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._dist: Any = dist
        self._tensor: Callable[[Any], Any] = torch.from_numpy
        dist.init_process_group(
            "gloo",
            init_method=f"file://{world.folder}/gloo",
            rank=world.rank,
            world_size=world.size,
            timeout=dt.timedelta(seconds=TIMEOUT_S),
        )

    @classmethod
    def missing(cls) -> str:
        if not importlib.util.find_spec("torch"):
            return "no torch; pip install torch (its build for CPUs is enough)"
        return ""

    def close(self) -> None:
        self._dist.destroy_process_group()

    def wait(self) -> object:
        return self._dist.barrier()

    def all_reduce(self, case: Case) -> Act:
        return self._in_place(case.scratch())

    def all_reduce_in_place(self, case: Case) -> Act:
        return self._in_place(case.x)

    all_reduce_shared = all_reduce_in_place
    all_reduce_zmq = all_reduce

    def _in_place(self, x: Any) -> Act:
        return Act(partial(self._dist.all_reduce, self._tensor(x)), x, x)

    def fused(self, case: Case) -> Act:
        x = case.scratch()
        tensors, method = [self._tensor(row) for row in x], self._dist.all_reduce

        def call() -> None:
            for tensor in tensors:
                method(tensor)

        return Act(call, x, x)

    def reduce(self, case: Case) -> Act:
        x = case.scratch()
        return Act(partial(self._dist.reduce, self._tensor(x), ROOT), x, x)

    def broadcast(self, case: Case) -> Act:
        return Act(partial(self._dist.broadcast, self._tensor(case.x), ROOT), case.x, case.x)

    def scatter(self, case: Case) -> Act:
        x = [self._tensor(row) for row in case.x] if case.rank == ROOT else None
        call = partial(self._dist.scatter, self._tensor(case.out), x, src=ROOT)
        return Act(call, case.x, case.out)

    def gather(self, case: Case) -> Act:
        out = [self._tensor(row) for row in case.out] if case.rank == ROOT else None
        call = partial(self._dist.gather, self._tensor(case.x), out, dst=ROOT)
        return Act(call, case.x, case.out)

    def all_gather(self, case: Case) -> Act:
        out = [self._tensor(row) for row in case.out]
        return Act(partial(self._dist.all_gather, out, self._tensor(case.x)), case.x, case.out)

    def reduce_scatter(self, case: Case) -> Act:
        dist = self._dist
        # Newer versions have it by another name, and warn at each use of the old one.
        method = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        x = self._tensor(case.x.reshape(-1))
        return Act(partial(method, self._tensor(case.out), x), case.x, case.out)

    def all_to_all(self, case: Case) -> Act:
        out, x = self._tensor(case.out), self._tensor(case.x)
        return Act(partial(self._dist.all_to_all_single, out, x), case.x, case.out)

    def ping_pong(self, case: Case) -> Act:
        send, recv, tensor = self._dist.send, self._dist.recv, self._tensor
        return ping_pong(
            case,
            lambda x, rank: send(tensor(x), rank),
            lambda out, rank: recv(tensor(out), rank),
        )


class Copy(Contender):
    """The bound that memory sets: all ranks at once copy as many bytes as each receives.

    A rank that receives nothing copies nothing. It begins by another contender's barrier.
    """

    name = REFERENCE

    def __init__(self, world: World, beside: Contender) -> None:
        super().__init__(world)
        self._beside = beside

    def wait(self) -> object:
        return self._beside.wait()

    def all_reduce(self, case: Case) -> Act:
        return self._act(partial(np.copyto, case.out, case.x), case)

    all_reduce_in_place = all_reduce_shared = all_to_all = all_reduce

    def reduce(self, case: Case) -> Act:
        return self.all_reduce(case) if case.rank == ROOT else self._act(_nothing, case)

    ping_pong = reduce

    def broadcast(self, case: Case) -> Act:
        return self.all_reduce(case) if case.rank != ROOT else self._act(_nothing, case)

    def scatter(self, case: Case) -> Act:
        return self._act(partial(np.copyto, case.out, np.ones_like(case.out)), case)

    reduce_scatter = scatter

    def all_gather(self, case: Case) -> Act:
        rows, x = list(case.out), case.x

        def call() -> None:
            for row in rows:
                np.copyto(row, x)

        return self._act(call, case)

    def gather(self, case: Case) -> Act:
        return self.all_gather(case) if case.rank == ROOT else self._act(_nothing, case)

    def _act(self, call: Callable[[], object], case: Case) -> Act:
        return Act(call, case.x, case.out, checked=False)


def _nothing() -> None:
    """Do what a rank does that receives nothing."""
