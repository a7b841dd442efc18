"""Programs in jobs of Slurm, and of MPICH on simulated hosts: their starts, ends and errors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _checkout import ROOT, ran

from synk_testing import Program, why_no_mpi

sys.path.append(str(ROOT / "integration/benchmarks"))

import _slurm
from _slurm import facts, pid_of
from hostbench import network

pytestmark = pytest.mark.nightly

SRUN = ("srun", "--mpi=pmi2", "-N2", "-n4")
RUN = [str(Path(sys.executable).with_name("synkhronos")), "run"]
BEGINNING = """
import json, os, signal, sys, time
print("read by a rank", flush=True)
import numpy as np
import theano
import theano.tensor as T
from theano.compile.ops import as_op
import synkhronos as synk

def say(**facts):
    print("@" + json.dumps(facts), flush=True)

x = T.dmatrix("x")
X = np.arange(24.0).reshape(8, 3)
try:
"""
END = """
except (Exception, KeyboardInterrupt) as error:
    say(error=[type(error).__name__, str(error)])
    raise
"""


@pytest.fixture
def slurm(request):
    """Two hosts, and Slurm on them; a parameter is how it binds ranks to cores."""
    problem = why_no_mpi() or network.missing() or _slurm.missing()
    if problem:
        pytest.skip(f"no Slurm: {problem}")
    with _slurm.cluster(*getattr(request, "param", ())) as made:
        yield made


def written(folder, body):
    script = folder / "train.py"
    script.write_text(BEGINNING + "\n".join(f"    {line}" for line in body.split("\n")) + END)
    return script


@pytest.fixture
def start(slurm, tmp_path):
    """Start a program on ranks: by `synkhronos run`, or by Python.

    About one job in fifty says nothing on a busy machine: all its ranks turn in MPI_Init, that of
    `from mpi4py import MPI`, before any code of ours communicates.
    """

    def started(body, *arguments, starts=SRUN, by=RUN):
        return slurm.program([*by, str(written(tmp_path, body))], *arguments, starts=starts)

    return started


COMPUTES = """
@as_op([T.dmatrix], [T.dmatrix])
def places(rows):
    host, memory = int(os.uname().nodename[1:]), os.stat("/dev/shm").st_dev
    place = host, int(os.environ["PMI_RANK"]), memory
    return np.tile(np.array(place, float), (len(rows), 1))

synk.fork(verbose=False, use_gpu=False)
w = theano.shared(np.zeros(3), "w")
f = synk.function([x], [(places(x), "gather"), (x.sum(axis=0), "sum")],
                  updates=[(w, w + x.sum(axis=0))], proof=False)
found, total = f(synk.data(X))
synk.all_reduce(w, op="sum")
say(places=found.T.tolist(), total=total.tolist(), w=w.get_value().tolist())
"""


@pytest.mark.parametrize(
    ("starts", "by", "readers"),
    [
        pytest.param(SRUN, RUN, 1, id="srun synkhronos run"),
        pytest.param(SRUN, [], 4, id="srun python"),
        pytest.param(
            ("salloc", "-N2", "-n4", str(Path(sys.executable).with_name("mpiexec"))),
            RUN,
            1,
            id="salloc mpiexec",
        ),
        pytest.param(("salloc", "-N2", "-n4"), [*RUN, "--hosts", "h1:2,h2:2"], 1, id="--hosts"),
    ],
)
def test_a_job_computes_on_both_hosts(start, starts, by, readers):
    with start(COMPUTES, starts=starts, by=by) as program:
        done = program.finish()
    assert done.status == 0, done.out + done.err
    assert done.out.count("read by a rank") == readers
    (said,) = facts(done.out)
    assert said["total"] == said["w"] == [84.0, 92.0, 100.0]
    hosts, ranks, memories = said["places"]
    assert set(hosts) == {1, 2}
    assert len(set(zip(hosts, memories))) == len(set(memories)) == 2, "each has its own memory"
    assert ranks == [0, 0, 1, 1, 2, 2, 3, 3]


def test_ranks_that_do_not_find_each_other_are_an_error_and_no_masters(start):
    with start(COMPUTES, starts=("srun", "--mpi=none", "-N2", "-n4")) as program:
        done = program.finish()
    assert done.status == 1
    assert "srun has started 4 processes, but MPI sees 1" in done.err
    assert "--mpi=pmi2" in done.err
    assert not any("total" in said for said in facts(done.out))


def test_the_status_is_the_programs(start):
    with start(COMPUTES + "sys.exit(3)") as program:
        done = program.finish()
    assert done.status == 3, done.out + done.err


STATES = """
state, go = sys.argv[1:]
synk.fork(verbose=False, use_gpu=False, timeout_s=4)
f = synk.function([x], (x.sum(), "sum"))
f(X)
if state == "between":
    synk.close()
say(ready=True)
while state == "in a call":
    f(X)
while not os.path.exists(go):
    time.sleep(0.01)
if state == "between":
    synk.fork(verbose=False, use_gpu=False, timeout_s=4)
    f = synk.function([x], (x.sum(), "sum"))
f(X)
"""


def wait_until_ready(program):
    while not program.line().startswith("@"):
        pass


# Rank 1 is on the master's host, rank 3 is not. Without -K the end of rank 3 shows by timeout, if
# that is over before the 5 s after which the helper of rank 3 has the job aborted.
KILLED = [
    (0, "in a call", ()),
    (1, "between two calls", ()),
    (3, "between two calls", ()),
    (3, "in a call", ("--kill-on-bad-exit=1",)),
    (3, "between", ("--kill-on-bad-exit=1",)),
]


@pytest.mark.parametrize(("rank", "state", "options"), KILLED)
def test_a_killed_rank_ends_the_job(slurm, start, tmp_path, rank, state, options):
    with start(STATES, state, tmp_path / "go", starts=(*SRUN, *options)) as program:
        wait_until_ready(program)
        os.kill(pid_of(program, rank), signal.SIGKILL)
        (tmp_path / "go").touch()
        done = program.finish()
    assert done.status != 0, done.out + done.err
    assert f"task {rank}: Killed" in done.err or "tasks" in done.err
    slurm.wait_until_idle()
    for said in facts(done.out) if state == "between two calls" else ():
        name, text = said["error"]
        assert name == {1: "WorkerDied", 3: "WorkerStalled"}[rank]
        assert f"rank {rank} " in text
        assert f"on host {'h1' if rank == 1 else 'h2'}" in text
    # MPICH ends the job from another rank, if that looks for messages before the master calls.
    assert rank != 1 or facts(done.out) or "Abort(" in done.err


STRUCK = """
mark = sys.argv[1]

@as_op([T.dmatrix], [T.dmatrix])
def slow(rows):
    if rows.max() > 50:
        open(mark + os.environ["SLURM_PROCID"], "w").close()
        for _ in range(600):
            time.sleep(0.1)
    return rows

synk.fork(verbose=False, use_gpu=False)
w = theano.shared(np.zeros(3), "w")
f = synk.function([x], (slow(x).sum(), "sum"), updates=[(w, w + 1)])
f(X)
bad = X.copy()
bad[-1] = 99
try:
    f(bad)
except KeyboardInterrupt:
    say(interrupted=True, w=w.get_value().tolist(), fine=float(f(X) - X.sum()))
"""


def test_an_interrupt_undoes_the_call_on_both_hosts(slurm, start, tmp_path):
    with start(STRUCK, tmp_path / "rank") as program:
        while not (tmp_path / "rank3").exists():
            assert program.status is None, program.printed()
            time.sleep(0.01)
        slurm.ran("scancel", "--signal=INT", "1.0")
        done = program.finish()
    assert facts(done.out) == [{"interrupted": True, "w": [1.0] * 3, "fine": 0.0}], done.err


def test_the_program_handles_sigterm(slurm, start):
    program = """
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append("SIGTERM"))
synk.fork(verbose=False, use_gpu=False)
f = synk.function([x], (x.sum(), "sum"))
f(X)
say(ready=True)
while not asked:
    f(X)
say(asked=asked, total=float(f(X)))
"""
    with start(program) as program:
        wait_until_ready(program)
        slurm.ran("scancel", "--signal=TERM", "1.0")
        done = program.finish()
    assert done.status == 0, done.out + done.err
    assert facts(done.out) == [{"asked": ["SIGTERM"], "total": 276.0}]


def test_a_job_that_is_cancelled_ends_on_both_hosts(slurm, start, tmp_path):
    with start(STATES, "in a call", tmp_path / "go") as program:
        wait_until_ready(program)
        slurm.ran("scancel", "1")
        done = program.finish()
    assert done.status != 0, done.out + done.err
    slurm.wait_until_idle()


BOUND = """
import threadpoolctl

@as_op([T.dmatrix], [T.dmatrix])
def cores(rows):
    allowed = os.sched_getaffinity(0)
    (pool,) = {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    place = len(allowed), min(allowed), pool
    return np.tile(np.array(place, float), (len(rows), 1))

synk.fork(verbose=False, use_gpu=False)
say(cores=synk.function([x], (cores(x), "gather"), proof=False)(X[:2]).tolist())
"""


@pytest.mark.parametrize("slurm", [(2, "task/affinity")], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-N1", "-n2", "--cpu-bind=cores"), [[1, 0, 1], [1, 1, 1]]),
        (("-N2", "-n2", "-c2", "--cpu-bind=cores"), [[2, 0, 2], [2, 0, 2]]),
    ],
    ids=["one core each", "two cores each"],
)
def test_ranks_use_the_cores_that_they_are_bound_to(start, options, expected):
    with start(BOUND, starts=("srun", "--mpi=pmi2", *options)) as program:
        done = program.finish()
    assert done.status == 0, done.out + done.err
    assert facts(done.out) == [{"cores": expected}]


NEXT_PROGRAM = "import synk_shm; synk_shm.zeros(1)"


def test_the_death_of_a_host_ends_the_job(tmp_path):
    if problem := why_no_mpi() or network.missing():
        pytest.skip(f"no simulated hosts: {problem}")
    quiet = {"UCX_LOG_LEVEL": "error", "THEANO_FLAGS": "linker=py,optimizer=fast_compile"}
    program = written(tmp_path, COMPUTES + "while True:\n    f(X)")
    with network.hosts(2) as made:
        prefix = made.command(str(Path(sys.executable).with_name("mpiexec.hydra")))
        with Program(program, prefix=prefix, environment=quiet) as started:
            wait_until_ready(started)
            assert left_on(made)  # ranks, which are found
            made.kill("h2")
            assert started.wait() != 0
            started.wait_alone()
        assert left_on(made) == []
    # MPI's launcher has killed the master, which could not remove its shared memory.
    assert ran(sys.executable, "-c", NEXT_PROGRAM, timeout=200).returncode == 0


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
