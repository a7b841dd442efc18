"""Kill -9 at random moments of a job of MPI on two simulated hosts: it ends, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from _checkout import ROOT, ran

from synk_testing import Program, why_no_mpi
from synk_testing.mpi import SETTINGS

sys.path.append(str(ROOT / "integration/benchmarks"))

import _slurm
from hostbench import network

pytestmark = pytest.mark.nightly

KILLS = int(os.environ.get("SYNK_HOST_KILLS", "8"))
RANKS = 4
HANG_S = 60.0
VICTIM = Path(__file__).with_name("_host_victim.py")
SOURCE = [str(Path(sys.executable).with_name("synkhronos")), "run", str(VICTIM)]
FLAGS = {"THEANO_FLAGS": "linker=py,optimizer=fast_compile", "UCX_LOG_LEVEL": "error"}

Start = Callable[[int], Program]


@contextlib.contextmanager
def mpich() -> Iterator[tuple[network.Hosts, Start]]:
    """Yield hosts, and what starts the program there: by MPICH's mpiexec."""
    with network.hosts(2) as made:
        prefix = made.command(str(Path(sys.executable).with_name("mpiexec.hydra")), 2)
        environment = {**SETTINGS, **FLAGS}
        yield made, lambda seed: Program(SOURCE, seed, prefix=prefix, environment=environment)


@contextlib.contextmanager
def slurm() -> Iterator[tuple[network.Hosts, Start]]:
    """The same by srun, as docs/clusters.md advises."""
    with _slurm.cluster() as made:
        starts = ("srun", "--mpi=pmi2", "--kill-on-bad-exit=1", "-N2", "--ntasks-per-node=2")

        def start(seed: int) -> Program:
            made.wait_until_idle()
            return made.program(SOURCE, seed, starts=starts)

        yield made.hosts, start


def kill_a_rank(start: Start, rng: random.Random, whole_s: float) -> bool:
    """Start a job, and kill a rank of it; return whether it still ran.

    The job ends in time with a status that is not 0; an exception of the program names this rank.
    """
    rank, moment = rng.randrange(RANKS), rng.random() * whole_s
    with start(rng.randrange(2**31)) as program:
        program.line()
        end = time.monotonic() + moment
        while time.monotonic() < end and program.status is None:
            time.sleep(0.01)
        pid = _slurm.pid_of(program, rank)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended = program.finish(limit_s=HANG_S)
        program.wait_alone()
    said = {name: value for each in _slurm.facts(ended.out) for name, value in each.items()}
    if pid is None or said.get("state") == "over":
        return False
    told = f"rank {rank} after {moment:.3f} s: {ended}"
    assert ended.status != 0, told
    name, _, named = said.get("error", ("", "", rank))
    assert name not in ("WorkerDied", "StartError") or named == rank, told
    return True


def left(made: network.Hosts) -> list[str]:
    """Return our shared memory on the hosts, when the next program has run there."""
    found = []
    for name in made.names:
        code = (
            "import os, synk_shm; synk_shm.zeros(1)\n"
            "print(*(n for n in os.listdir('/dev/shm') if n.startswith('synk.')))"
        )
        done = ran(*made.on(name, inside=True), sys.executable, "-c", code)
        found += [n for n in done.stdout.split() if not n.endswith(".lock")]
    return found


@pytest.mark.parametrize("launcher", [mpich, slurm])
def test_some_random_kills(launcher: Callable[[], Any]) -> None:
    problem = why_no_mpi() or network.missing()
    if problem := problem or (launcher is slurm and _slurm.missing()):
        pytest.skip(f"no hosts: {problem}")
    rng = random.Random()
    with launcher() as (made, start):
        with start(1) as program:
            program.line()
            began = time.monotonic()
            program.finish()
            whole_s = time.monotonic() - began
        kills = 0
        while kills < KILLS:
            kills += kill_a_rank(start, rng, whole_s)
        assert left(made) == []
