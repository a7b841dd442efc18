"""The runtime's life, and its other ways to run."""

from __future__ import annotations

import gc
import pstats
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from _leaks import no_ranks_left

import synk_comm
import synk_core
import synk_shm
from synk_core import Runtime
from synk_testing.engine import T, as_op, engine

x = T.dvector("x")


def files_of_packages():
    folders = [Path(package.__file__).parent for package in (synk_core, synk_comm, synk_shm)]
    found = [path for folder in folders for path in folder.rglob("*")]
    return {path for path in found if "__pycache__" not in path.parts}


@as_op([T.dvector], [T.dvector])
def is_single(values):
    from synk_testing.engine import engine

    return np.full(len(values), float(engine.config.floatX == "float32"))


def test_a_runtime_reports_its_state_and_writes_no_other_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine.config, "floatX", "float32")  # reaches the workers
    lines, before = [], files_of_packages()
    with Runtime(2, report=lines.append, profile_workers=True) as runtime:
        assert repr(runtime) == "<Runtime rank 0 of 2, starting>"
        f = runtime.function([x], (is_single(x), "gather"), mode="FAST_COMPILE")
        runtime.distribute()
        assert repr(runtime) == "<Runtime rank 0 of 2, ready>"
        assert f(np.ones(4)).tolist() == [1] * 4
        assert files_of_packages() <= before
    assert repr(runtime) == "<Runtime rank 0 of 2, closed: by close()>"
    assert lines[0].startswith("Synkhronos attempting to use 2 ")
    assert lines[1:3] == [
        "Synkhronos: 2 CPU processes initialized, master rank: 0",
        "Synkhronos distributing functions...",
    ]
    assert re.fullmatch(r"\.\.\.distribution complete \(\d+ s\)\.", *lines[3:])
    assert [path.name for path in tmp_path.iterdir()] == ["synkhronos_profile_rank1.prof"]
    assert pstats.Stats("synkhronos_profile_rank1.prof").total_calls > 0
    assert files_of_packages() <= before


def test_one_rank_starts_no_process():
    with Runtime(1) as runtime:
        assert runtime.worker_pids == ()
        assert runtime.function([x], x.mean())(np.arange(3.0)) == 1.0


def test_collectives_through_zeromq():
    with Runtime(3, backend="zmq") as runtime:
        x = T.matrix("x")
        value = np.random.RandomState(0).randn(10, 2)
        f = runtime.function([x], [x.mean(), (x, "gather")])
        mean, gathered = f(value)
        np.testing.assert_allclose(mean, value.mean())
        np.testing.assert_array_equal(gathered, value)
        s = engine.shared(np.zeros(2), name="s")
        runtime.collectives.scatter(s, np.arange(3.0))
        runtime.collectives.all_reduce(s, op="sum")
        assert s.get_value().tolist() == [3.0]


def test_memory_that_arrays_free_is_kept_for_the_next_ones(pair):
    """Not given back to the kernel, which would clear each page anew, in every call."""

    @as_op([T.dvector], [T.dvector])
    def faults(values):
        counts = []
        for _ in range(4):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            arrays = [np.ones(400_000) for _ in range(4)]
            del arrays
            counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return np.full(len(values), float(min(counts)))

    f = pair.function([x], (faults(x), "gather"), mode="FAST_COMPILE")
    pages = 4 * 400_000 * 8 // resource.getpagesize()
    assert max(f(np.zeros(2))) < pages / 10


def held():
    gc.collect()
    return sum(info.mine for info in synk_shm.list())


def test_rooms_that_became_too_small_are_given_back(pair):
    f = pair.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
    g = pair.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
    for function in (f, g):
        function(np.ones(10))
        function(np.ones(10), batch=[1, 2])
    before = held()
    for length in range(1, 60, 6):
        assert f(np.ones(length * 1000)) == length * 1000
        assert f(np.ones(length * 1000), batch=list(range(length))) == length
    assert g(np.ones(10), batch=[1, 2, 3]) == 3
    assert f(np.ones(10)) == 10
    assert held() <= before + 2


def test_an_array_that_is_gone_is_forgotten_though_ctrl_c_came_in_between(monkeypatch):
    with no_ranks_left(), Runtime(2) as runtime:
        f = runtime.function([x], (x.sum(), "sum"))
        held = runtime.data(np.ones(4))
        assert f(held) == 4.0
        key = runtime.orders.store.ref(held).key
        assert key in runtime._rank.arrays._held
        del held
        gc.collect()

        def struck(_keys):
            raise KeyboardInterrupt

        monkeypatch.setattr(runtime.orders.acts, "forget_arrays", struck)
        with pytest.raises(KeyboardInterrupt):
            f(np.ones(2))
        monkeypatch.undo()
        assert f(np.ones(2)) == 2.0
        assert key not in runtime._rank.arrays._held


@pytest.mark.feature("timeline")
def test_closing_before_the_workers_have_started_does_not_wait_for_them(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    with no_ranks_left(), Runtime(2, timeline=str(path)) as runtime:
        monkeypatch.setattr(runtime._lifecycle, "await_workers", pytest.fail)
    assert runtime.closed
    assert path.exists()
