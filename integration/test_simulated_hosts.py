"""Hosts that are simulated, by root: two of them compute, and one dies."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from _checkout import ROOT, ran

from synk_testing import Program, why_no_mpi

sys.path.append(str(ROOT / "integration/benchmarks"))

from hostbench import network

LIMIT_S = 200


@pytest.fixture
def hosts():
    """Make simulated hosts; see `network.hosts`."""
    problem = why_no_mpi() or network.missing()
    if problem:
        pytest.skip(f"no simulated hosts: {problem}")
    return network.hosts


COMPUTES = """
import json, os
import numpy as np
import theano
import theano.tensor as T
from theano.compile.ops import as_op
import synkhronos as synk

@as_op([T.dmatrix], [T.dmatrix])
def places(rows):
    "Return, for each row, which /dev/shm its rank has, and the number in its hostname."
    place = os.stat("/dev/shm").st_dev, int(os.uname().nodename[1:])
    return np.tile(np.array(place, float), (len(rows), 1))

synk.fork(verbose=False, use_gpu=False)
x = T.dmatrix("x")
w = theano.shared(np.zeros(3), "w")
step = [(w, w + x.sum(axis=0))]
shown = [(places(x), "gather"), (x.sum(axis=0), "sum")]
function = synk.function([x], shown, updates=step, proof=False)
data = synk.data(np.arange(24.0).reshape(8, 3))
first = function(data)
data[7] = 100
second = function(data)
synk.all_reduce(w, op="sum")
facts = [first[0].tolist(), first[1].tolist(), second[1].tolist(), w.get_value().tolist()]
print(json.dumps(facts), flush=True)
while True:
    function(data)
"""


def started(made, code):
    """Start a program on all hosts."""
    mpiexec = Path(sys.executable).with_name("mpiexec.hydra")
    quiet = {"UCX_LOG_LEVEL": "error", "THEANO_FLAGS": "linker=py,optimizer=fast_compile"}
    return Program(code, prefix=made.command(str(mpiexec)), environment=quiet)


@pytest.mark.nightly
def test_two_hosts_compute_and_the_death_of_one_ends_the_job(hosts):
    x = np.arange(24.0).reshape(8, 3)
    changed = x.copy()
    changed[7] = 100
    with hosts(2) as made:
        with started(made, COMPUTES) as program:
            places, *sums = program.answer()
            assert [number for _, number in places] == [1] * 4 + [2] * 4
            memories = [memory for memory, _ in places]
            assert len(set(memories[:4])) == len(set(memories[4:])) == 1
            assert memories[0] != memories[7]
            assert sums == [whole.sum(axis=0).tolist() for whole in (x, changed, x + changed)]
            assert left_on(made)  # ranks, which are found
            made.kill("h2")
            assert program.wait() != 0
            program.wait_alone()
        assert left_on(made) == []
    # MPI's launcher has killed the master, which could not remove its shared memory.
    assert ran(sys.executable, "-c", NEXT_PROGRAM, timeout=LIMIT_S).returncode == 0


NEXT_PROGRAM = "import synk_shm; synk_shm.zeros(1)"
"""Removes what killed programs have left on this host."""


def left_on(made):
    """Return the commands of processes in the hosts' namespaces, but those that keep them."""
    found = []
    for name in made.names:
        pids = subprocess.run(
            ["ip", "netns", "pids", made.namespace(name)], capture_output=True, text=True
        ).stdout.split()
        for pid in pids:
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip())
    return [
        command for command in found if command != "sleep infinity" and "unshare" not in command
    ]
