"""Ranks on several hosts, started by MPI's launcher. What they compute: integration/multi_gpu."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest

import synk_shm
from synk_core._graph.devices.assignment import choose_in_world
from synk_core._wire import launcher, world
from synk_core._workers.pool import WorkerPool
from synk_core.exceptions import InputTypeError, InputValueError, StartError, WorkerDied
from synk_testing import mpi_job, why_no_mpi

NIGHTLY = pytest.mark.nightly

PREAMBLE = """
import json, os, signal, sys, time, warnings
import numpy as np
from synk_testing.engine import T, as_op, engine
from synk_core import Runtime

def say(**facts):
    print("@" + json.dumps(facts), flush=True)

def outcome(act, *args, **kwargs):
    try:
        act(*args, **kwargs)
    except (Exception, KeyboardInterrupt) as error:
        return [type(error).__name__, str(error)]
    return None

x = T.dmatrix("x")
X = np.random.default_rng(1).normal(size=(40, 3))
"""


@pytest.fixture
def job():
    """Start a program on ranks; what it printed last is its facts."""
    problem = why_no_mpi()
    if problem:
        pytest.skip(problem)

    def start(code, *arguments, size=3, on_a_host=2, **how):
        environment = {"THEANO_FLAGS": "linker=py,optimizer=fast_compile"}
        environment.update(how.pop("environment", {}))
        return mpi_job(
            PREAMBLE + code,
            *arguments,
            size=size,
            on_a_host=on_a_host,
            environment=environment,
            **how,
        )

    return start


def facts(done):
    lines = [line for line in done.out.splitlines() if line.startswith("@")]
    return [json.loads(line[1:]) for line in lines]


WHOLE = """
print("before fork", os.environ["PMI_RANK"], flush=True)
runtime = Runtime()
mean = runtime.function([x], [(x.mean(), "avg"), (x * 2, "gather")], name="mean")
w = engine.shared(np.zeros(3), "w")
step = runtime.function([x], updates=[(w, w + x.sum(axis=0))], name="step")
d = runtime.data(X)
said = dict(size=runtime.size, repr=repr(runtime), pids=len(set(runtime.worker_pids)))
got, rows = mean(d)
np.testing.assert_allclose(got, X.mean(), rtol=1e-14)
np.testing.assert_array_equal(rows, X * 2)
index = np.array([39, 1, 5, 5, 0, 17, 30])
np.testing.assert_array_equal(mean(d, batch=index)[1], X[index] * 2)
across = runtime.function([x], (x.T * 2, "gather"), row_axis={x: 1})
for given in (X.T, runtime.data(X.T)):
    np.testing.assert_array_equal(across(given), X * 2)
    np.testing.assert_array_equal(across(given, batch=index), X[index] * 2)
d[30] = 7.0
np.testing.assert_array_equal(mean(d, batch=index)[1][6], np.full(3, 14.0))
step(d)
runtime.collectives.all_reduce(w, "sum")
np.testing.assert_allclose(runtime.collectives.gather(w), [d.array.sum(axis=0)] * 3)
said["stats"] = sorted(runtime.stats())
with runtime.timeline(sys.argv[1]):
    mean(d)
runtime.close()
say(**said)

@as_op([T.dmatrix], [T.dmatrix])
def picky(rows):
    if rows.max() > 50:
        raise ValueError(f"not this, says {os.environ['SYNKHRONOS_NODE']}")
    return rows

with Runtime() as again:
    w = engine.shared(np.zeros(3), "w")
    f = again.function([x], (picky(x).sum(), "sum"), updates=[(w, w + x.sum(axis=0))], name="f")
    g = again.function([x], (x.sum(), "sum"))
    bad = X.copy()
    bad[-1] = 99
    d = again.data(bad)
    errors = [outcome(f, bad), outcome(f, X), outcome(f, d)]
    np.testing.assert_allclose(w.get_value(), X[:14].sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose([g(bad), g(d)], bad.sum(), rtol=1e-12)
    say(errors=errors)
raise ValueError("own")
"""


@pytest.mark.feature("stats", "timeline")
def test_a_program_runs_on_hosts_of_different_sizes(job, tmp_path):
    path = tmp_path / "trace.json"
    with job(WHOLE, path) as program:
        done = program.finish()
    # All ranks run the program, up to the first runtime.
    assert done.out.count("before fork") == 3
    said, failures = facts(done)
    assert (said["size"], said["pids"]) == (3, 2)
    assert "rank 0 of 3" in said["repr"]
    assert "mean" in said["stats"]
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1, 2}
    # One clock: each rank computes while the master's call is under way.
    call = next(event for event in spans if event["pid"] == 0 and event["cat"] == "call")
    for event in spans:
        if event["cat"] == "compute":
            assert call["ts"] - 2e4 <= event["ts"] <= call["ts"] + call["dur"] + 2e4
    # An exception on another host changes nothing; the program's own ends the job.
    failed, fine, again = failures["errors"]
    assert fine is None
    for name, text in (failed, again):
        assert name == "WorkerFailed"
        assert "rank 2 failed in function 'f'" in text
        assert "not this, says hostb" in text
    assert done.status == 1, done.out + done.err
    assert "ValueError: own" in done.err


VANISHES = """
(who, status), when = map(int, sys.argv[1:3]), sys.argv[3]

def vanish():
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)

@as_op([T.dmatrix], [T.dmatrix])
def vanishing(rows):
    if rows.max() > 50:
        vanish()
    return rows

runtime = Runtime()
f = runtime.function([x], (vanishing(x).sum(), "sum"), proof=False)
f(X)
say(ready=True)
bad = X.copy()
bad[(0, 20, 39)[who]] = 99
if when == "in a call":
    try:
        f(bad)
    finally:
        time.sleep(999)  # nobody but the lost rank's own host is to end the job
if when == "closed":
    runtime.close()
if when != "in a call":
    vanish()
"""


@pytest.mark.parametrize(
    ("rank", "status", "when", "on_a_host"),
    [
        pytest.param(0, 6, "between calls", 1, id="the master, alone on its host"),
        pytest.param(2, 0, "in a call", 2, id="a worker of another host, without a word"),
        pytest.param(2, -9, "in a call", 2, id="a worker that is killed", marks=NIGHTLY),
        pytest.param(0, 0, "closed", 2, id="the master, between runtimes", marks=NIGHTLY),
    ],
)
@pytest.mark.feature("proof")
def test_a_rank_that_is_lost_ends_the_job(job, rank, status, when, on_a_host):
    with job(VANISHES, rank, status, when, on_a_host=on_a_host, limit_s=60) as program:
        done = program.finish()
    said = done.out + done.err
    assert done.status != 0
    assert facts(done) == [{"ready": True}], said
    assert status >= 0 or f"EXIT CODE: {-status}" in said
    # The launcher may drop what is said just before the end; none names another rank.
    named = [line for line in said.splitlines() if "without MPI_Finalize" in line]
    assert all(f"synkhronos: rank {rank} on host" in line for line in named), said
    synk_shm.cleanup()  # as the next program would: ranks that were killed have left some


INTERRUPTED = """
struck = []
if sys.argv[2] == "True":
    signal.signal(signal.SIGINT, lambda number, frame: struck.append(number))

@as_op([T.dmatrix], [T.dmatrix])
def slow(rows):
    if rows.max() > 50:
        open(sys.argv[1] + os.environ["PMI_RANK"], "w").close()
        while not os.path.exists(sys.argv[1] + "go"):
            time.sleep(0.01)
    return rows

with Runtime() as runtime:
    w = engine.shared(np.zeros(3), "w")
    f = runtime.function([x], (slow(x).sum(), "sum"), updates=[(w, w + 1)])
    f(X)
    bad = X.copy()
    bad[-1] = 99
    error = outcome(f, bad)
    said = dict(error=error, struck=len(struck), w=w.get_value().tolist())
    say(fine=float(f(X) - X.sum()), **said)
"""


@pytest.mark.parametrize("handled", [False, pytest.param(True, marks=NIGHTLY)])
def test_ctrl_c_interrupts_a_rank_of_another_host_unless_the_program_handles_it(
    job, tmp_path, handled
):
    """The Trainer handles it: it finishes its step and saves."""
    with job(INTERRUPTED, tmp_path / "rank", handled) as program:
        while not (tmp_path / "rank2").exists():
            assert program.status is None, program.printed()
            time.sleep(0.01)
        os.kill(program.pid, signal.SIGINT)
        if handled:
            time.sleep(1.0)  # longer than a rank waits for the master's decision
            (tmp_path / "rankgo").touch()
        done = program.finish()
    assert done.status == 0, done.out + done.err
    (said,) = facts(done)
    assert said["struck"] == handled
    assert said["error"] is None if handled else said["error"][0] == "KeyboardInterrupt"
    assert said["w"] == [1.0 + handled] * 3
    assert abs(said["fine"]) < 1e-9


def test_the_rank_that_mpi_has_reported_is_named_before_others_that_ended():
    pool = object.__new__(WorkerPool)
    pool._world, pool._first = SimpleNamespace(gone=set(), lost=""), None
    ended = {"is_gone": lambda: True, "exitcode": lambda *_: None}
    pool._workers = [SimpleNamespace(rank=n, host=f"host{n}", **ended) for n in (1, 2, 3)]
    pool.blame(-1)  # MPI does not know
    with pytest.raises(StartError, match="rank 1 on host host1"):
        pool.require_started([])
    pool.blame(3)
    with pytest.raises(WorkerDied) as caught:
        pool.check("in a call")
    assert (caught.value.rank, caught.value.host) == (3, "host3")
    with pytest.raises(StartError, match="rank 3 on host host3"):
        pool.require_started([])


def test_a_launcher_is_found_in_the_environment():
    for variables, expected in (
        ({}, None),
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, None),
        ({"PMI_SIZE": "4", "PMI_RANK": "3"}, ("mpiexec", 4, 3)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, ("mpiexec of Open MPI", 2, 1)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "7"}, ("srun", 8, 7)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),  # the batch script itself
        # mpiexec in a job of Slurm, whose helper is a task of its own.
        (
            {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "PMI_SIZE": "8", "PMI_RANK": "5"},
            ("mpiexec", 8, 5),
        ),
        # A program that a rank has started has the names, but not the connection.
        ({"PMI_SIZE": "4", "PMI_RANK": "3", "PMI_FD": "9999"}, None),
        ({"PMI_SIZE": "many", "PMI_RANK": "3"}, None),
    ):
        assert launcher.detected(variables) == expected, variables


def test_workers_of_this_machine_do_not_take_the_launcher_for_theirs():
    kept = {"PATH", "SLURM_JOB_ID", "MPICH_SOMETHING"}
    gone = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALRANKID", "HYDI_CONTROL_FD"}
    assert not any(launcher.belongs_to_launcher(name) for name in kept)
    assert all(launcher.belongs_to_launcher(name) for name in gone)


def info(host="a", pid=1, cores=(0, 1), gpus=(), **versions):
    known = {"Python": "3.11.7", "numpy": "1.23.5"}
    about = host, f"memory of {host}", pid, cores, len(cores), 64
    return world.RankInfo(*about, gpus, {**known, **versions})


def a_world(*infos):
    """Return a world of these ranks, as far as it needs no MPI."""
    made = object.__new__(world.World)
    made.members, made.rank, made.size = list(infos), 0, len(infos)
    return made


def test_versions_have_to_be_equal():
    world._require_equal([info(), info("b")])
    with pytest.raises(StartError, match=r"rank 1 on host b has numpy 2\.0, but rank 0 on host a"):
        world._require_equal([info(), info("b", numpy="2.0")])


def test_cores_are_divided_unless_the_launcher_has_bound_ranks():
    divided = a_world(*[info(cores=tuple(range(8)))] * 2, info("b", cores=tuple(range(8))))
    assert [divided.threads(rank) for rank in range(3)] == [4, 4, 8]
    bound = a_world(info(cores=(0, 1)), info(cores=(2, 3, 4)))
    assert [bound.threads(rank) for rank in range(2)] == [2, 3]


def test_a_launcher_that_binds_ranks_to_one_core_is_noticed():
    def lines(*infos):
        return choose_in_world(a_world(*infos), None, False, 0, None).lines

    one = info(cores=(0,))._replace(host_cores=16)
    assert "rank 0 to 1 of host a's 16 cores, and it could have 8" in lines(one, one)[0]
    half = [info(cores=tuple(range(first, first + 8))) for first in (0, 8)]
    assert len(lines(*(each._replace(host_cores=16) for each in half))) == 1  # what is used
    limited = one._replace(quota=2)
    assert len(lines(limited, limited)) == 1


def test_gpus_are_those_of_the_host(monkeypatch):
    assignment = "synk_core._graph.devices.assignment"
    monkeypatch.setattr(f"{assignment}.why_no_devices", lambda: "")
    monkeypatch.delenv("SYNKHRONOS_USE_GPU", raising=False)
    both = ("u0", "u1")
    shared = a_world(info(gpus=both), info(gpus=both), info("b", gpus=("u2", "u3")))
    # srun --gpus-per-task=1: each sees its own alone, as number 0.
    alone = a_world(info(gpus=("u0",)), info(gpus=("u1",)))
    two, few, none = (a_world(*[info(gpus=g)] * n) for g, n in ((both, 2), (both, 3), ((), 2)))
    named = ["cuda1", "cuda1"]  # both ranks on one card, as asked for
    for ranks, use_gpu, asked, devices, distinct in (
        (shared, None, None, ("cuda0", "cuda1", "cuda0"), True),
        (alone, True, None, ("cuda0", "cuda0"), True),
        (two, None, named, ("cuda1", "cuda1"), False),
        (few, False, None, (), None),
        (none, None, None, (), None),
    ):
        chosen = choose_in_world(ranks, None, use_gpu, 0, asked)
        assert chosen.devices == devices
        assert distinct in (chosen.distinct_gpus, None)
    assert choose_in_world(shared, None, None, 0, None).noun == "3 GPUs on 2 hosts"
    some = a_world(info(gpus=both), info("b"))
    for ranks, use_gpu, match in (
        (few, True, "host a has 2 visible GPUs for 3 ranks"),
        (few, None, "host a has 2 visible GPUs for 3 ranks"),
        (some, None, "host b has 0 visible GPUs"),
        (none, True, "no rank sees a GPU"),
    ):
        with pytest.raises(StartError, match=match):
            choose_in_world(ranks, None, use_gpu, 0, None)
    for wrong in ({"n_parallel": 3}, {"master_rank": 1}, {"devices": ["cuda0"]}, {"devices": 1}):
        arguments = {"n_parallel": None, "use_gpu": None, "master_rank": 0, "devices": None}
        with pytest.raises((InputValueError, InputTypeError)):
            choose_in_world(alone, **{**arguments, **wrong})


def test_a_launcher_of_another_mpi_is_one_clear_error(monkeypatch):
    mpi4py = pytest.importorskip("mpi4py")
    library = "MPICH 5\n..."
    ranks = SimpleNamespace(size=1, rank=0)
    fake = SimpleNamespace(COMM_WORLD=ranks, Get_library_version=lambda: library)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", fake)
    monkeypatch.setattr(mpi4py, "MPI", fake, raising=False)
    with pytest.raises(StartError, match=r"MPI sees 1: .*MPICH 5.*--mpi=pmi2"):
        world.World(launcher.Launch("srun", 2, 0))


def test_without_mpi4py_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(StartError, match=r"pip install 'synkhronos\[mpi\]'"):
        world.World(launcher.Launch("mpiexec", 2, 0))
