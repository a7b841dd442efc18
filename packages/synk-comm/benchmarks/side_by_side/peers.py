"""The peers as contenders: MPICH through mpi4py, gloo through torch, and plain copies."""

# ruff: noqa: D102 - what a method does, the metric of its name and the base class say

from __future__ import annotations

import datetime as dt
import functools
import importlib.util
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable

import numpy as np
from synk_benchmarks.process import Failed, ask

from .cases import ROOT, Case
from .contender import OURS, OVER_MPI, TIMEOUT_S, Act, Contender, World, ping_pong
from .ours import Synk, SynkMpi

MPICH, GLOO = "MPICH", "gloo"


def mpiexec() -> str:
    """Return the program that starts MPI's ranks: preferably the one installed beside Python."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec") or ""


@functools.cache
def mpi_version() -> str:
    """Return what the library behind mpi4py calls itself: "MPICH 5.0.2"; empty if there is none."""
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())"
    )
    try:
        said = ask([sys.executable, "-c", program], 60, os.environ)
    except (OSError, Failed):
        return ""
    return " ".join(said.partition("\n")[0].replace("Version:", "").split())


class Mpich(Contender):
    """MPICH through mpi4py, by buffers: count and type are said, which is its quickest way."""

    name = MPICH

    def __init__(self, world: World) -> None:
        super().__init__(world)
        from mpi4py import MPI

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

    def broadcast(self, case: Case) -> Act:
        return Act(partial(self.comm.Bcast, self._spec(case.x), root=ROOT), case.x, case.x)

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

    def order(self, case: Case) -> Act:
        word = np.zeros(32, "i8")

        def call() -> None:
            self.comm.Bcast(word)
            self.comm.Barrier()

        return Act(call, case.x, case.out, checked=False)


class Gloo(Contender):
    """gloo through torch.distributed, over the loopback interface, in place on NumPy's memory."""

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

    def _in_place(self, x: Any) -> Act:
        return Act(partial(self._dist.all_reduce, self._tensor(x)), x, x)

    def broadcast(self, case: Case) -> Act:
        return Act(partial(self._dist.broadcast, self._tensor(case.x), ROOT), case.x, case.x)

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
            case, lambda x, rank: send(tensor(x), rank), lambda out, rank: recv(tensor(out), rank)
        )


CONTENDERS: dict[str, type[Contender]] = {OURS: Synk, OVER_MPI: SynkMpi, MPICH: Mpich, GLOO: Gloo}
